"""The process group of a run."""
import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_distributed
from mmengine.logging import print_log

# The group that a run of this process has made; the caller's group is never it.
_own_group: dist.ProcessGroup | None = None


@contextmanager
def process_group(cfg: Config) -> Iterator[None]:
    """Runs its body in the caller's process group, or else in one that is made for `cfg.launcher`.

    A group that the caller has made (in Ray, Kubeflow or a notebook) is used whatever the launcher is, and stays. With
    a launcher and no GPU the group is made here, with gloo; with GPUs mmengine's runner makes it. Such a group serves
    further runs of this process, too, and ends with the process, or when a run fails.

    Args:
        cfg: See `load_config`. In a group of the caller, a launcher of 'none' becomes 'pytorch', which tells mmengine
            that there are several processes.
    """
    if is_distributed() and dist.group.WORLD is not _own_group:
        if cfg.launcher == 'none':
            cfg.launcher = 'pytorch'
        # Launchers set it; mmengine reads which GPU is this process's.
        os.environ.setdefault('LOCAL_RANK', str(torch.cuda.current_device() if torch.cuda.is_available() else 0))
        yield
    elif cfg.launcher == 'none':
        yield
    else:
        with _group_of_this_process(cfg.launcher):
            yield


@contextmanager
def _group_of_this_process(launcher: str) -> Iterator[None]:
    """Keeps the group that is made here, or in the body, for the next run; ends it if the body fails."""
    global _own_group
    if launcher == 'pytorch' and get_device() == 'cpu' and not is_distributed():
        print_log('torch sees no GPU: running on the CPU, with gloo between the processes.', 'current')
        dist.init_process_group('gloo')  # mmengine would ask for a GPU
    try:
        yield
    except BaseException:
        # Without waiting for the others: they wait for this process as long as it is in the group.
        atexit.unregister(_leave_together)
        if is_distributed():
            dist.destroy_process_group()
        raise
    if dist.group.WORLD is not _own_group:
        _own_group = dist.group.WORLD
        atexit.register(_leave_together)


def _leave_together() -> None:
    """Ends the group: one that outlives the interpreter, or loses a process while it ends, aborts the others."""
    if dist.group.WORLD is not None and dist.group.WORLD is _own_group:
        dist.barrier()
        dist.destroy_process_group()
