"""Checks all datasets of a config."""
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config
from mmengine.registry import init_default_scope

from cpvt_mm.errors import UserError, first_line, missing_file

from .coco import read_coco
from .datasets import Job, check_annotations
from .findings import Finding, Kind, UnusableFile
from .layouts import build_unread, classes_of, dataset_class, layout_of, loads, unwrap

SPLITS = ('train', 'val', 'test')
MISSING = 'does not exist'


@dataclass(frozen=True)
class Plan:
    """Checks of one dataset.

    Attributes:
        splits: The dataloaders of the dataset: 'train', 'val', 'test', or several of them, joined by commas.
        name: The dotted name of the dataset's config.
        dataset: The dataset's config.
        findings: The faults that were found without decoding files.
        jobs: The checks of the dataset's files.
    """
    splits: str
    name: str
    dataset: dict[str, Any]
    findings: list[Finding]
    jobs: list[Job]


def plan_checks(cfg: Config, splits: Sequence[str] = SPLITS) -> Iterator[Plan]:
    """Reads the annotations of a config's datasets, one after the other.

    Args:
        cfg: See `cpvt_mm.engine.load_config`.
        splits: The dataloaders whose datasets are checked. Defaults to all.
    """
    init_default_scope(cfg.default_scope)
    model = cfg.get('model', {})
    heads = {'coco': dict(_num_classes(model, 'model')),
             'label maps': dict(_num_classes(model.get('decode_head'), 'model.decode_head'))}
    datasets: dict[str, tuple[list[str], str, dict[str, Any]]] = {}
    for split in splits:
        loader = cfg.get(f'{split}_dataloader')
        for name, dataset in unwrap(loader['dataset'].to_dict(), f'{split}_dataloader.dataset') if loader else ():
            # In most configs, validation and test use the same data, and pipelines may augment one dataset differently.
            key = repr({**dataset, 'pipeline': loads(dataset, 'with_mask')})
            datasets.setdefault(key, ([], name, dataset))[0].append(split)
    for found, name, dataset in datasets.values():
        readers = (model.get('decode_head'), model.get('auxiliary_head')) if found[0] == 'train' else (
            cfg.get(f'{found[0]}_evaluator'),)
        findings, jobs = _check(dataset, heads, _ignored(*readers))
        for split in dict.fromkeys(found):
            findings += _check_evaluator(cfg, f'{split}_evaluator', dataset)
        yield Plan(', '.join(dict.fromkeys(found)), name, dataset, findings, jobs)


def _ignored(*heads_or_metrics: Any) -> set[int]:
    """Returns the labels that all heads, or all metrics, of mmseg ignore."""
    parts = [part for one in heads_or_metrics for part in _listed(one)]
    return set.intersection(*({part.get('ignore_index', 255)} for part in parts or [{}]))


def _listed(value: Any) -> list[dict[str, Any]]:
    """Returns the dicts in a list, or a single dict as a list."""
    return [one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, dict)]


def _check(dataset: dict[str, Any], heads_of: dict[str, dict[str, int]], ignored: set[int]
           ) -> tuple[list[Finding], list[Job]]:
    try:
        # Heads are compared with the classes of known layouts only. `num_classes` of heads that read class names is a
        # number of tokens.
        heads = {} if dataset.get('return_classes') else heads_of.get(layout_of(dataset_class(dataset)), {})
        classes = classes_of(build_unread(dataset))
        findings, jobs = check_annotations(dataset, min(heads.values(), default=None), ignored)
    except UnusableFile as error:
        return [Finding(Kind.DATASET, error.file, error.detail)], []
    except Exception as error:  # datasets can raise any error
        path = missing_file(error) if isinstance(error, FileNotFoundError) else None
        if path:
            return [Finding(Kind.DATASET, path, MISSING)], []
        file = _annotation_file(dataset) or str(dataset.get('type'))
        return [Finding(Kind.NOT_BUILT, file, f'is not checked ({type(error).__name__}: {first_line(error)})')], []
    wrong = [Finding(Kind.NUM_CLASSES if number > len(classes) else Kind.TOO_FEW_CLASSES,
                     f'{name}.num_classes', f'is {number}, but the dataset has {len(classes)} '
                     'classes')
             for name, number in heads.items() if classes and number != len(classes)]
    return [*wrong, *findings], jobs


def _annotation_file(dataset: dict[str, Any]) -> str:
    return os.path.join(dataset.get('data_root') or '', dataset.get('ann_file') or '')


def _num_classes(model: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yields heads and their `num_classes`, if these are the classes of the dataset."""
    if isinstance(model, list | tuple):
        for index, one in enumerate(model):
            yield from _num_classes(one, f'{path}.{index}')
    if isinstance(model, dict):
        # Region proposal and semantic heads of detectors have other classes.
        if 'head' in path and not re.search('rpn|semantic', path) and isinstance(model.get('num_classes'), int):
            yield path, model['num_classes']
        for name, one in model.items():
            yield from _num_classes(one, f'{path}.{name}')


def _check_evaluator(cfg: Config, name: str, dataset: dict[str, Any]) -> Iterator[Finding]:
    """Compares the annotation file of mmdet's CocoMetric with that of the evaluated dataset."""
    own = _annotation_file(dataset)
    for metric in _listed(cfg.get(name)):
        file = metric.get('ann_file') if str(metric.get('type')).endswith('CocoMetric') else None
        if not file or os.path.normpath(file) == os.path.normpath(own):
            continue
        try:
            known = {image['id'] for image in read_coco(file, metric.get('backend_args'))['images']}
            ids = [image['id'] for image in read_coco(own, dataset.get('backend_args'))['images']]
        except (FileNotFoundError, UserError) as error:
            yield Finding(Kind.EVALUATOR, f'{name}.ann_file', f'is {file}, which cannot be read '
                          f'({first_line(error).rstrip(".")})')
            continue
        unknown = [id for id in ids if id not in known]
        if unknown:
            yield Finding(Kind.EVALUATOR, f'{name}.ann_file', f'is {file}, which lacks {len(unknown)} of the '
                          f'{len(ids)} images of {own}')


def run(jobs: Sequence[Job]) -> Iterator[list[Finding]]:
    """Runs checks of files on all cores and yields results in order; threads suffice, as decoders release the GIL."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        yield from threads.map(lambda job: job(), jobs)
