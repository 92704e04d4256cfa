"""The processes of a run, its ranks: their group, how they decide and end together, and what they share."""
import atexit
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from mmengine.device import get_device
from mmengine.dist import (
    all_gather_object,
    init_dist,
    is_distributed,
    is_main_process,
)
from mmengine.logging import print_log
from mmengine.utils.dl_utils import set_multi_processing
from torch.utils.data import Dataset

from openmmlab_tools.data.datasets import unwrap_built
from openmmlab_tools.errors import UserError, first_line

# The group that a run of this process has made; never a group of the caller.
_own_group: dist.ProcessGroup | None = None


@contextmanager
def process_group(launcher: str, env_cfg: Mapping[str, Any]) -> Iterator[str]:
    """Runs the `with` block in the caller's process group, or else in a group for the launcher, which it yields.

    A group of the caller (in Ray, Kubeflow or a notebook) is not destroyed. Then the launcher is 'pytorch' instead of
    'none', so that mmengine knows of several processes. Otherwise, with a launcher, a group is made with
    `env_cfg.dist_cfg`, with gloo for 'pytorch' without a GPU. It is kept until the process ends, or a run fails.
    """
    global _own_group
    is_callers = is_distributed() and dist.group.WORLD is not _own_group
    if is_callers:
        launcher = 'pytorch' if launcher == 'none' else launcher
        # Launchers set LOCAL_RANK; mmengine chooses the GPU of this process by it.
        os.environ.setdefault('LOCAL_RANK', str(torch.cuda.current_device() if torch.cuda.is_available() else 0))
    if launcher != 'none':
        # Models, runners and hooks refer to each other, and to the group, so it lives on when it is destroyed. A thread
        # of gloo that is still there when the interpreter ends can abort the process
        # (https://github.com/pytorch/pytorch/issues/190489).
        atexit.unregister(gc.collect)
        atexit.register(gc.collect)
    if is_callers or launcher == 'none':
        yield launcher
        return
    if not is_distributed():
        _make_group(launcher, env_cfg)
    try:
        yield launcher
    except BaseException:
        # No barrier here: the other processes wait for this process as long as it is in the group.
        atexit.unregister(_leave_together)
        if is_distributed():
            dist.destroy_process_group()
        _own_group = None
        raise
    if dist.group.WORLD is not _own_group:
        _own_group = dist.group.WORLD
        atexit.register(_leave_together)


def _make_group(launcher: str, env_cfg: Mapping[str, Any]) -> None:
    dist_cfg = env_cfg.get('dist_cfg') or {}
    if launcher == 'pytorch' and get_device() == 'cpu':
        print_log('torch finds no GPU. The run uses the CPU, and its processes communicate with gloo.', 'current')
        seconds = dist_cfg.get('timeout')
        # mmengine would require a GPU.
        dist.init_process_group('gloo', timeout=None if seconds is None else timedelta(seconds=seconds))
    else:
        set_multi_processing(**(env_cfg.get('mp_cfg') or {}), distributed=True)  # otherwise, init_dist sets 'spawn'
        init_dist(launcher, **dist_cfg)


def _leave_together() -> None:
    """Destroys the group after a barrier, since gloo fails in a process whose peers have gone."""
    global _own_group
    if dist.group.WORLD is not None and dist.group.WORLD is _own_group:
        dist.barrier()
        dist.destroy_process_group()
        _own_group = None


@contextmanager
def all_or_none() -> Iterator[None]:
    """Ends all ranks if the `with` block fails in one rank; at its end, each rank waits for the other ranks.

    The main process raises its own error, or a UserError with the error of the first rank that failed. Other ranks exit
    with 1.
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


def compact(dataset: Dataset) -> None:
    """Makes `cat_img_map` of mmdet's CocoDataset arrays, in place: its lists keep 2 GB of unused memory for COCO."""
    for part in unwrap_built(dataset):
        if hasattr(part, 'cat_img_map'):
            part.cat_img_map = {key: np.array(images) for key, images in part.cat_img_map.items()}
