"""Compares the classes that a checkpoint was trained for with those of a dataset."""
import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from cpvt_mm.errors import UserError


def trained_classes(checkpoint: Mapping[str, Any]) -> list[str]:
    """Returns the classes in a checkpoint's `meta`, in the order of the labels; empty if there are none.

    mmengine writes `dataset_meta['classes']`. Older libraries wrote `CLASSES`, there or in `meta` itself.
    """
    meta = checkpoint.get('meta') or {}
    for place in (meta.get('dataset_meta') or {}, meta):
        if classes := place.get('classes') or place.get('CLASSES'):
            return [classes] if isinstance(classes, str) else list(classes)
    return []


def check_classes(trained: Sequence[str], tested: Sequence[str], checkpoint: str | Path) -> None:
    """Compares the classes of a checkpoint with those of the test data; logs a warning if their names differ.

    Args:
        trained: See `trained_classes`. Empty: unknown, so nothing is compared.
        tested: The classes of the test data, in the order of its labels. Empty: unknown.
        checkpoint: The file, for the message.

    Raises:
        UserError: If the names are the same in another order, so that metrics would be of the wrong classes.
    """
    if not trained or not tested or [*trained] == [*tested]:
        return
    pairs = zip_longest(map(repr, trained), map(repr, tested), fillvalue='missing')
    index, theirs, ours = next((index, *pair) for index, pair in enumerate(pairs) if pair[0] != pair[1])
    if sorted(trained) == sorted(tested):
        raise UserError(f'checkpoint {checkpoint} has the {len(tested)} classes of the test data in another order '
                        f'(class {index} is {theirs} there, and {ours} here), so metrics would be of wrong classes: '
                        'put metainfo.classes of test_dataloader.dataset in the order of the checkpoint.')
    print_log(f'Checkpoint {checkpoint} was trained for {len(trained)} classes, but the test data has {len(tested)} of '
              f'other names: class {index} is {theirs} there, and {ours} here. Metrics take the one for the other.',
              'current', logging.WARNING)
