"""What is looked at before a run: annotation files, but no image."""
import logging
from collections.abc import Sequence
from typing import Any

from mmengine.logging import print_log

from cpvt_mm.errors import UserError

from .datasets import check_annotations
from .findings import Finding, Kind
from .layouts import dataset_class, layout_of, unwrap

# What would be learnt or measured is wrong, or mmdet fails. The rest is left out by mmdet.
FATAL = (Kind.CLASSES, Kind.UNLISTED_CATEGORY, Kind.DUPLICATE, Kind.MASK)


def check_before_training(cfg: dict[str, Any]) -> None:
    """Warns of what is wrong with the annotations of a dataset's config.

    Args:
        cfg: A dataset's config, of COCO's or ADE20K's layout or wrapping such; others pass.

    Raises:
        FileNotFoundError: If an annotation file or the folder of images does not exist.
        UserError: If one is of no use, or annotations do not belong to the classes.
    """
    for one in unwrap(cfg):
        if layout_of(dataset_class(one)) == 'images':
            continue
        findings, _ = check_annotations(one)
        for kind in Kind:
            found = [finding for finding in findings if finding.kind is kind and finding.is_error]
            if found and kind in FATAL:
                raise UserError(f'{_sentence(found)}: correct the file, or metainfo.classes of the config '
                                '(tools/misc/check_dataset.py finds all).')
            if found:
                print_log(f'{_sentence(found)}; tools/misc/check_dataset.py finds all.', 'current', logging.WARNING)


def _sentence(found: Sequence[Finding]) -> str:
    more = f' (and {len(found) - 1} more of this kind)' if len(found) > 1 else ''
    return f'{found[0].file} {found[0].detail}{more}'
