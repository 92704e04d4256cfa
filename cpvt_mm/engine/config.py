"""Reads configs of mmdet, mmseg and mmpretrain."""
import os
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_distributed

from cpvt_mm.errors import UserError, first_line
from cpvt_mm.stack import require

from .unread_keys import warn_of_unread_keys

LIBRARIES = ('mmdet', 'mmseg', 'mmpretrain')
# The environment variable that a launcher sets for each of its processes.
LAUNCHERS = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID', 'mpi': 'OMPI_COMM_WORLD_RANK'}


def load_config(path: str | Path, options: dict[str, Any] | None = None, work_dir: str | None = None,
                launcher: str = 'none') -> Config:
    """Reads a config file of mmdet, mmseg or mmpretrain, completes it, and imports its library.

    Args:
        path: The file.
        options: Values to override, with dotted keys. Defaults to None.
        work_dir: Folder for logs and checkpoints. Defaults to None: the config's, or else `work_dirs/<name of the
            file>`.
        launcher: The program that started the processes: 'none', 'pytorch', 'slurm' or 'mpi'. Defaults to 'none'.

    Raises:
        UserError: If the file cannot be read, an option does not fit, or `default_scope` is not a known library. Also
            if the `launcher` did not start this process and there is no process group.
        ImportError: If the library cannot be imported.
    """
    if launcher != 'none' and LAUNCHERS[launcher] not in os.environ and not is_distributed():
        raise UserError(f'--launcher {launcher} is for processes that {launcher} starts, but {LAUNCHERS[launcher]} is '
                        'not set: use dist_train.sh, slurm_train.sh or mpirun, or no launcher.')
    if not Path(path).is_file():
        raise UserError(f'config {path} does not exist: check the path.')
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # a config is a program and can raise any error
        # If a `_base_` is from a library that is not installed, mmengine raises the error.
        require(*(library for library in LIBRARIES if f'{library} is not installed' in str(error)))
        raise UserError(f'config {path} cannot be read ({type(error).__name__}: {_reasons(error)}): correct it or its '
                        '_base_.') from error
    try:
        cfg.merge_from_dict(options or {})
    except (AssertionError, KeyError, IndexError, TypeError) as error:
        raise UserError(f'--cfg-options do not fit config {path} ({first_line(error)}): correct the keys.') from error
    scope = cfg.get('default_scope')
    if scope not in LIBRARIES:
        raise UserError(f'default_scope of config {path} is {scope!r}, but must be {", ".join(LIBRARIES[:-1])} or '
                        f'{LIBRARIES[-1]}: set it to the library that the config is for.')
    require(scope)
    warn_of_unread_keys(cfg, options or {})
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'work_dirs/{Path(path).stem}'
    cfg.launcher = launcher
    return cfg


def _reasons(error: BaseException) -> str:
    """Joins the first lines of an error and of its causes, because a failed custom import raises three errors."""
    lines = [first_line(error)]
    while error := error.__cause__ or error.__context__:  # type: ignore[assignment]  # ends with None
        lines.append(first_line(error))
    return '; '.join(dict.fromkeys(lines))
