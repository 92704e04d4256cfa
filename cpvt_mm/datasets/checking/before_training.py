"""The check before a run: annotation files, but no image."""
import logging
from collections.abc import Sequence
from typing import Any

from mmengine.logging import print_log

from cpvt_mm.errors import UserError, first_line

from .datasets import check_annotations
from .findings import Finding, Kind
from .layouts import dataset_class, layout_of, loads_masks, unwrap


def check_before_training(cfg: dict[str, Any]) -> None:
    """Logs what is wrong with the annotations of a dataset's config.

    Args:
        cfg: The config of a dataset in COCO's or ADE20K's layout, or of one that wraps such; others pass.

    Raises:
        FileNotFoundError: If an annotation file or the folder of images does not exist.
        UserError: If a file cannot be used, mmdet would fail on it, or labels would stand for other classes.
    """
    # A dataset that occurs several times is read once, whatever its augmentations.
    datasets = {repr({**one, 'pipeline': _loads_masks(one)}): one for one in unwrap(cfg)}
    for one in datasets.values():
        try:
            cls = dataset_class(one)
            if layout_of(cls) == 'images':
                continue
            findings, _ = check_annotations(one)
        except (FileNotFoundError, UserError):
            raise
        except Exception as error:  # a dataset may be built in another way; if it is at fault, the runner will say so
            print_log(f'The annotations of {one.get("type")} are not checked ({type(error).__name__}: '
                      f'{first_line(error)}).', 'current', logging.WARNING)
            continue
        fatal = _fatal(one, cls)
        for kind in Kind:
            found = [finding for finding in findings if finding.kind is kind]
            if found and kind in fatal:
                raise UserError(f'{_sentence(found)}: correct the file, or metainfo.classes of the config '
                                '(tools/misc/check_dataset.py finds all).')
            if found:
                print_log(f'{_sentence(found)}; tools/misc/check_dataset.py finds all.', 'current',
                          logging.WARNING if found[0].is_error else logging.INFO)


def _loads_masks(cfg: dict[str, Any]) -> bool:
    return any(map(loads_masks, cfg.get('pipeline') or ()))


def _fatal(cfg: dict[str, Any], cls: type) -> set[Kind]:
    """Returns the kinds on which mmdet fails, or reads another class or mask. It copes with the rest, or skips it."""
    return {Kind.CLASSES, *([Kind.DUPLICATE_ANNOTATION] if getattr(cls, 'ANN_ID_UNIQUE', False) else ()),
            *([Kind.MASK] if _loads_masks(cfg) else ())}


def _sentence(found: Sequence[Finding]) -> str:
    more = f' (and {len(found) - 1} more of this kind)' if len(found) > 1 else ''
    return f'{found[0].file} {found[0].detail}{more}'
