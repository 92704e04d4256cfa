"""Reads the `report.json` of another test, and checks everything that a comparison uses."""
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from openmmlab_tools.texts import shown

from .average_precision import IOUS
from .intervals import KINDS

Check = Callable[[Any], bool]


def read_report(text: str) -> dict[str, Any]:
    """Returns the classes, metrics and images of a report; a ValueError names the first value that cannot be right."""
    report = json.loads(text)
    _check_keys('the report', report, ('classes', 'is_exact', 'metrics', 'images'))
    _check('classes', report['classes'], lambda value: isinstance(value, list) and all(isinstance(name, str)
           for name in value) and len({*value}) == len(value), 'a list of different names')
    _check('is_exact', report['is_exact'], lambda value: isinstance(value, bool), 'true or false')
    _check('metrics', report['metrics'], lambda value: isinstance(value, dict) and {*value} <= {*KINDS}, (
        f'an object with {", ".join(KINDS)}'))
    _check('images', report['images'], lambda value: isinstance(value, dict), 'an object')
    return dict({key: report[key] for key in ('classes', 'metrics', 'is_exact')}, images={
        name: _read_image(f'images[{shown(name)}]', image, report['metrics'], len(report['classes']))
        for name, image in report['images'].items()})


def _read_image(where: str, image: Any, metrics: Mapping[str, Any], classes: int) -> dict[str, Any]:
    _check_keys(where, image, ('objects', 'truth', *metrics))
    _check(f'{where}.objects', image['objects'], lambda value: _are_counts(value, classes),
           f'a list of {classes} counts')
    _check(f'{where}.truth', image['truth'], lambda value: _is_whole(value, 1 << 32), 'a checksum')
    for kind in metrics:
        if kind in ('regions', 'boundaries'):
            _check(f'{where}.{kind}', image[kind], lambda value: isinstance(value, list) and len(value) == 2 and all(
                _are_counts(part, classes) for part in value), f'two lists of {classes} counts')
            continue
        _check(f'{where}.{kind}', image[kind], lambda value: isinstance(value, list), 'a list')
        for index, row in enumerate(image[kind]):
            _check(f'{where}.{kind}[{index}]', row, lambda value: _is_box(value, classes),
                   f'[class from 0 to {classes - 1}, score from 0 to 1, hits, ignored]')
    return {key: image[key] for key in ('objects', 'truth', *metrics)}


def _check_keys(where: str, value: Any, keys: Iterable[str]) -> None:
    _check(where, value, lambda value: isinstance(value, dict), 'an object')
    if missing := [key for key in keys if key not in value]:
        raise ValueError(f'{where} has no {missing[0]}')


def _check(where: str, value: Any, is_right: Check, expected: str) -> None:
    if not is_right(value):
        raise ValueError(f'{where} is {shown(value)}, but must be {expected}')


def _is_whole(value: Any, end: int) -> bool:
    return type(value) is int and 0 <= value < end


def _are_counts(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(_is_whole(count, 1 << 53) for count in value)


def _is_box(row: Any, classes: int) -> bool:
    if not isinstance(row, list) or len(row) != 4:
        return False
    label, score, *bits = row
    return (_is_whole(label, classes) and type(score) in (int, float) and 0 <= score <= 1
            and all(_is_whole(bit, 1 << len(IOUS)) for bit in bits))
