"""Lets the processes of a run, its ranks, decide together, end together, and share annotations on a machine."""
import hashlib
import logging
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, barrier, get_rank, get_world_size, is_main_process
from mmengine.logging import print_log
from torch import nn
from torch.utils.data import Dataset

from openmmlab_runs.config_walk import walk
from openmmlab_runs.data.datasets import unwrap_built
from openmmlab_runs.errors import UserError, first_line
from openmmlab_runs.redaction import is_secret, redact

# Parts of a config on which the weights depend, and what in them they do not depend on.
PARTS = ('model', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'train_dataloader', 'custom_hooks', 'auto_scale_lr')
LOADING = ('num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor', 'worker_init_fn')
PLACE = 'data_root'  # machines may have their data in different folders
MAX_NAMED = 4


@contextmanager
def all_or_none() -> Iterator[None]:
    """Ends all ranks if the `with` block fails in one of them; each rank waits at its end for the others. The main
    process raises its own error, or a UserError with that of the first rank that fails. Others exit with 1.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    messages = all_gather_object(failure and (str(failure) if isinstance(failure, UserError) else first_line(failure)))
    failed = next((rank for rank, message in enumerate(messages) if message is not None), None)
    if failed is not None:
        end_all(failure or UserError(f'rank {failed} fails: {messages[failed]}'))


def end_all(error: Exception) -> NoReturn:
    """Raises the error in the main process, and exits with status 1 in others. All ranks must call it."""
    raise error if is_main_process() else SystemExit(1)


def settings(cfg: Config) -> dict[str, str]:
    """Returns the settings of a config on which the weights depend, as texts by dotted key, without secrets."""
    parts, _ = redact({name: cfg.to_dict().get(name) for name in PARTS})
    found = {'.'.join(map(str, (*path, key))): re.sub(' at 0x[0-9a-f]+', '', repr(value))  # functions and objects
             for path, part in walk(parts) for key, value in part.items()
             if value is not None and key != PLACE and not any(walk(value))}  # None is as good as no value
    return {key: value for key, value in found.items() if key.removeprefix('train_dataloader.') not in LOADING}


def differences(mine: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Returns a clause with the keys whose values differ, such as 'train_cfg.max_iters is 4 (not 8)'; '' if none do."""
    # Texts end with a quote, containers with a bracket: others, such as numbers, are no secrets.
    mine, others = ({key: redact(value)[0] for key, value in part.items() if not (
        is_secret(key) and value.endswith(('"', "'", ')', ']', '}')))} for part in (mine, others))
    keys = [key for key in {**others, **mine} if mine.get(key) != others.get(key)]
    named = ', '.join(f'{key} is {mine.get(key, "not set")} (not {others.get(key, "set")})' for key in keys[:MAX_NAMED])
    return named + (f', and {len(keys) - MAX_NAMED} more' if len(keys) > MAX_NAMED else '')


def hash_weights(model: nn.Module) -> str:
    found = hashlib.blake2b(digest_size=8)
    for value in model.state_dict().values():
        if isinstance(value, torch.Tensor):
            found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def share_annotations(dataset: Dataset) -> None:
    """Keeps the annotations of a dataset, in place, once for each machine; all ranks must call it before workers start.

    One rank of a machine writes the bytes to a temporary file, all its ranks map it, and it is removed. `cat_img_map`
    of mmdet's CocoDataset becomes arrays, also in a single process: its lists keep 2 GB of unused memory for COCO.
    """
    for part in unwrap_built(dataset):
        if hasattr(part, 'cat_img_map'):
            part.cat_img_map = {key: np.array(images) for key, images in part.cat_img_map.items()}
        if isinstance(getattr(part, 'data_bytes', None), np.ndarray) and get_world_size() > 1:
            part.data_bytes = share(part.data_bytes)


def share(array: np.ndarray) -> np.ndarray:
    """Returns an array of equal content in memory that ranks of this machine share, if they find the file of one."""
    own = socket.gethostname(), _hash(array)
    everyone: list[Any] = all_gather_object(own)
    writer = everyone.index(own)
    path, shared = '', array
    with ExitStack() as files:
        if writer == get_rank():
            try:
                path = files.enter_context(tempfile.TemporaryDirectory(
                    prefix='openmmlab_runs_', ignore_cleanup_errors=True)) + '/annotations.npy'
                np.save(path, array)
            except OSError as error:
                print_log(f'Ranks of this machine do not share annotations ({first_line(error)}).', 'current',
                          logging.WARNING)
        paths = all_gather_object(path)
        with suppress(OSError, ValueError, EOFError):  # another machine's file is not here, or not whole
            found = np.load(paths[writer], mmap_mode='r').view(np.ndarray)
            shared = found if _hash(found) == own[1] else array
        barrier()  # each rank has mapped the file, or has not found it
    return shared


def _hash(array: np.ndarray) -> bytes:
    return hashlib.blake2b(array.data, digest_size=16).digest()
