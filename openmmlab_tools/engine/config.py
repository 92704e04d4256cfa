"""Reads the config of a run of mmdet, mmseg or mmpretrain."""
import os
import re
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_distributed
from mmengine.logging import MMLogger

from openmmlab_tools.config_text import to_text_style
from openmmlab_tools.errors import UserError, as_sentence, check_path, filter_for_readers, first_line
from openmmlab_tools.libraries import require, shipped_configs, without_pkg_resources_warning
from openmmlab_tools.redaction import redact
from openmmlab_tools.registry import in_scope

from .run_config import of_run
from .steps import LIBRARIES, for_reading

# The environment variable that a launcher sets for each of its processes.
LAUNCHERS = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID', 'mpi': 'OMPI_COMM_WORLD_RANK'}


@in_scope()
def load_config(path: str | Path, options: dict[str, Any] | None = None, work_dir: str | None = None,
                launcher: str = 'none') -> Config:
    """Reads a config file of mmdet, mmseg or mmpretrain, completes it, and imports its library.

    Args:
        path: The file.
        options: Values to override, with dotted keys. Defaults to None.
        work_dir: Folder for logs and checkpoints. Defaults to None: the config's, or else `work_dirs/<name of file>`.
        launcher: The program that started the processes: 'none', 'pytorch', 'slurm' or 'mpi'. Defaults to 'none'.

    Raises:
        UserError: If the config, an option or the launcher is wrong.
        ImportError: If the library is missing.
    """
    if launcher != 'none' and LAUNCHERS[launcher] not in os.environ and not is_distributed():
        raise UserError(f'--launcher {launcher} is for processes that {launcher} starts, but {LAUNCHERS[launcher]} is '
                        'not set: use dist_train.sh, slurm_train.sh or mpirun, or no launcher.')
    check_path('config', path)
    if not Path(path).is_file():
        raise UserError(f'config {path} does not exist: check the path.')
    MMLogger.get_current_instance().addFilter(filter_for_readers)  # mmengine logs the variables that a config reads
    try:
        with without_pkg_resources_warning():
            cfg = Config.fromfile(path)
    except Exception as error:  # a config is a program and can raise any error
        raise cannot_be_read(path, error, 'correct it or its _base_') from error
    cfg = to_text_style(cfg, LIBRARIES)
    redact(options or {})  # to know its secrets
    with as_sentence(f'--cfg-options do not fit config {path}', 'correct the keys'):
        cfg.merge_from_dict(options or {})
    cfg = of_run(cfg)
    for_reading(cfg, options or {}, work_dir, launcher)
    return cfg


def cannot_be_read(name: str | Path, error: Exception, todo: str) -> UserError:
    """Returns the error for a config that cannot be read: if an import fails, what to do is about that.

    Raises:
        ImportError: If a `_base_` is from a library that is not installed.
    """
    chain: list[BaseException] = [error]  # a failed custom import raises three errors
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    lines = dict.fromkeys(first_line(link) for link in chain)
    reasons = [line for line in lines if not line.startswith('Failed to import custom modules')] or [*lines]
    imports = [link for link in chain if isinstance(link, ImportError)]
    not_found = [library for library in LIBRARIES if re.search(rf'\b{library}\w* is not installed', '\n'.join(lines))]
    require(*not_found)
    if not_found:  # the library is installed, but from a distribution with another name, such as onedl-mmsegmentation
        scope, folder = f'{not_found[0]}::', shipped_configs(not_found[0])
        todo = f'mmengine does not know {scope} in this installation; replace {scope} with {folder}/'
    elif missing := next((link for link in imports if isinstance(link, ModuleNotFoundError)), None):
        module = f'the package with the module {missing.name}' if missing.name else 'the missing package'
        todo = (f'install {module}, add the folder that has it to PYTHONPATH, or '
                'correct the import (custom_imports of a config)')
    elif imports:
        todo = 'correct the module that it imports (custom_imports of a config), or install the version that it needs'
    return UserError(f'config {name} cannot be read ({type(chain[-1]).__name__}: {"; ".join(reasons)}): {todo}.')
