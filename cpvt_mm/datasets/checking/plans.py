"""Checks of all datasets of a config."""
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config
from mmengine.registry import init_default_scope

from cpvt_mm.errors import UserError, first_line, missing_file

from .datasets import Job, check_annotations
from .findings import Finding, Kind
from .layouts import build_unread, classes_of, dataset_class, layout_of, unwrap

SPLITS = ('train', 'val', 'test')


@dataclass(frozen=True)
class Plan:
    """Checks of one dataset.

    Attributes:
        splits: The dataloaders that load it: 'train', 'val', 'test', or several of them, joined by commas.
        findings: The faults that were found without decoding a file.
        jobs: The checks of its files.
    """
    splits: str
    findings: list[Finding]
    jobs: list[Job]


def plan_checks(cfg: Config) -> Iterator[Plan]:
    """Reads the annotations of a config's datasets, one after the other.

    Args:
        cfg: See `cpvt_mm.engine.load_config`.
    """
    init_default_scope(cfg.default_scope)
    model = cfg.get('model', {})
    heads = {'coco': dict(_num_classes(model, 'model')),
             'label maps': dict(_num_classes(model.get('decode_head'), 'model.decode_head'))}
    datasets: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for split in SPLITS:
        loader = cfg.get(f'{split}_dataloader')
        for dataset in unwrap(loader['dataset'].to_dict()) if loader else ():
            dataset.pop('pipeline', None)
            # Validation and test have the same data in most configs.
            datasets.setdefault(repr(dataset), ([], dataset))[0].append(split)
    for splits, dataset in datasets.values():
        yield Plan(', '.join(dict.fromkeys(splits)), *_check(dataset, heads))


def _check(dataset: dict[str, Any], heads_of: dict[str, dict[str, int]]) -> tuple[list[Finding], list[Job]]:
    try:
        # Heads are compared with the classes of known layouts only; heads that read class names count tokens.
        heads = {} if dataset.get('return_classes') else heads_of.get(layout_of(dataset_class(dataset)), {})
        classes = classes_of(build_unread(dataset))
        findings, jobs = check_annotations(dataset, min(heads.values(), default=None))
    except Exception as error:  # datasets raise what they like
        path = missing_file(error) if isinstance(error, FileNotFoundError) else None
        if path:
            return [Finding(Kind.DATASET, path, 'does not exist')], []
        reason = str(error) if isinstance(error, UserError) else f'{type(error).__name__}: {first_line(error)}'
        file = os.path.join(dataset.get('data_root') or '', dataset.get('ann_file') or '') or str(dataset.get('type'))
        return [Finding(Kind.DATASET, file, f'is of no use: {reason}')], []
    wrong = [Finding(Kind.NUM_CLASSES, f'{name}.num_classes', f'is {number}, but the dataset has {len(classes)} '
                     'classes')
             for name, number in heads.items() if classes and number != len(classes)]
    return [*wrong, *findings], jobs


def _num_classes(model: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yields the heads that state their number of classes, if these are the classes of the dataset."""
    if isinstance(model, list | tuple):
        for index, one in enumerate(model):
            yield from _num_classes(one, f'{path}.{index}')
    if isinstance(model, dict):
        # Region proposal and semantic heads of detectors have classes of their own.
        if 'head' in path and not re.search('rpn|semantic', path) and isinstance(model.get('num_classes'), int):
            yield path, model['num_classes']
        for name, one in model.items():
            yield from _num_classes(one, f'{path}.{name}')


def run(jobs: Sequence[Job]) -> Iterator[list[Finding]]:
    """Runs checks of files, in their order, on all cores: decoders work outside of the interpreter's lock."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield from threads.map(_call, jobs)


def _call(job: Job) -> list[Finding]:
    return job()
