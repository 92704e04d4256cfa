"""Checks annotation files, but no images, before a run."""
import logging
from collections.abc import Sequence

from mmengine.config import Config
from mmengine.logging import print_log

from cpvt_mm.errors import UserError

from .findings import Finding, Kind
from .layouts import dataset_class, loads
from .plans import MISSING, Plan, plan_checks

# Faults that would make training or testing fail, or make it use wrong labels or images.
FATAL = {Kind.DATASET, Kind.CLASSES, Kind.TOO_FEW_CLASSES, Kind.NOTHING_LEFT, Kind.CORNERS, Kind.EVALUATOR}


def check_before_training(cfg: Config, splits: Sequence[str]) -> None:
    """Logs faults in the annotations of datasets in COCO's or ADE20K's layout; skips other datasets.

    Args:
        cfg: See `cpvt_mm.engine.load_config`.
        splits: The dataloaders whose datasets are checked: 'train', 'val', 'test'.

    Raises:
        UserError: If a file cannot be used, mmdet would fail on it, or labels would mean other classes.
    """
    for plan in plan_checks(cfg, splits):
        fatal = _fatal(plan)
        for kind in Kind:
            found = [finding for finding in plan.findings if finding.kind is kind]
            if found and kind in fatal:
                raise UserError(_error(found, plan.name))
            if found and kind is not Kind.NOT_CHECKED:
                print_log(f'{_sentence(found)}; tools/misc/check_dataset.py finds all.', 'current',
                          logging.WARNING if found[0].is_error else logging.INFO)


def _fatal(plan: Plan) -> set[Kind]:
    """Returns the kinds of faults that make mmdet fail, or read a wrong class or mask; mmdet tolerates the others."""
    if {finding.kind for finding in plan.findings} & {Kind.DATASET, Kind.NOT_BUILT}:
        return FATAL
    unique = getattr(dataset_class(plan.dataset), 'ANN_ID_UNIQUE', False)
    return {*FATAL, *([Kind.DUPLICATE_ANNOTATION] if unique else ()),
            *([Kind.MASK] if loads(plan.dataset, 'with_mask') else ())}


def _sentence(found: Sequence[Finding]) -> str:
    more = f' (and {len(found) - 1} more of this kind)' if len(found) > 1 else ''
    return f'{found[0].file} {found[0].detail}{more}'


def _error(found: Sequence[Finding], name: str) -> str:
    """Returns a message with the fault, and the config key or the file to correct."""
    kind, file, detail = found[0].kind, found[0].file, found[0].detail
    if kind is Kind.DATASET:  # `detail` says what to do, unless the file is missing
        advice = f': put the file there, or correct {name}.data_root, .ann_file or .data_prefix.'
        return f'{file} {detail}{advice if detail == MISSING else ""}'
    if kind is Kind.CLASSES:
        return (f'{name}.metainfo.classes does not match the annotations, {file} {detail}: correct either '
                '(tools/misc/check_dataset.py finds all).')
    what = {Kind.EVALUATOR: 'the path', Kind.TOO_FEW_CLASSES: 'the config'}.get(kind, 'the file')
    return f'{_sentence(found)}: correct {what} (tools/misc/check_dataset.py finds all).'
