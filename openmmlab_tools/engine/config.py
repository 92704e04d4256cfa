"""The config of a run of mmdet, mmseg or mmpretrain: it has no keys that nothing uses, and its copies have no secrets.
"""
import difflib
import inspect
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config
from mmengine.dist import is_distributed
from mmengine.logging import MMLogger
from mmengine.runner import Runner

from openmmlab_tools.checkpoints.loading import bands_loader
from openmmlab_tools.config_text import assignments, to_text_style, without_templates
from openmmlab_tools.config_walk import walk
from openmmlab_tools.data.datasets import SPLITS
from openmmlab_tools.errors import UserError, as_sentence, check_path, filter_for_readers, first_line
from openmmlab_tools.files import write_text
from openmmlab_tools.libraries import require, without_pkg_resources_warning
from openmmlab_tools.redaction import redact
from openmmlab_tools.registry import in_scope

LIBRARIES = ('mmdet', 'mmseg', 'mmpretrain')
# The environment variable that a launcher sets for each of its processes.
LAUNCHERS = {'pytorch': 'RANK', 'slurm': 'SLURM_PROCID', 'mpi': 'OMPI_COMM_WORLD_RANK'}
# Keys that are read: arguments of mmengine's runner, other keys that it reads from the config, and keys that the tools
# of the libraries read.
READ = {*inspect.signature(Runner.__init__).parameters, 'runner_type', 'custom_imports', 'compile', 'optimizer',
        'activation_checkpointing', 'efficient_conv_bn_eval', 'find_unused_parameters', 'model_wrapper_cfg',
        'tta_model', 'tta_pipeline'} - {'self', 'cfg'}
# What must be a dict, if it is set.
DICTS = ('model', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'default_hooks', 'env_cfg', *(
    f'{split}_dataloader' for split in SPLITS))
# Top-level keys of mmdet 2 and mmseg 0, with the keys that replaced them.
OLD_KEYS = dict(data='train_dataloader, val_dataloader and test_dataloader', total_epochs='train_cfg.max_epochs',
                lr_config='param_scheduler', checkpoint_config='default_hooks.checkpoint', evaluation='val_evaluator',
                optimizer_config='optim_wrapper')
# Similarity of options that may be misspelt, such as `lrr` for `lr`, or `modle` for `model`.
NEAR = 0.75


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
        # If a `_base_` is from a library that is not installed, mmengine raises the error.
        require(*(library for library in LIBRARIES if f'{library} is not installed' in str(error)))
        raise cannot_be_read(path, error, 'correct it or its _base_') from error
    cfg = to_text_style(cfg, LIBRARIES)
    redact(options or {})  # to know its secrets
    with as_sentence(f'--cfg-options do not fit config {path}', 'correct the keys'):
        cfg.merge_from_dict(options or {})
    cfg = of_run(cfg)
    check_config(cfg)
    scope = cfg.get('default_scope')
    if scope not in LIBRARIES:
        raise UserError(f'default_scope of config {path} is {scope!r}, but must be that of its library: set it to '
                        f'{" or ".join(map(repr, LIBRARIES))}.')
    require(scope)
    check_unread_keys(cfg, options or {})
    cfg.work_dir = work_dir or cfg.get('work_dir') or f'work_dirs/{Path(path).stem}'
    cfg.launcher = launcher
    return cfg


def cannot_be_read(name: str | Path, error: Exception, todo: str) -> UserError:
    """Returns the error for a config that cannot be read: if an import fails, what to do is about that."""
    chain: list[BaseException] = [error]  # a failed custom import raises three errors
    while cause := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(cause)
    lines = dict.fromkeys(first_line(one) for one in chain)
    reasons = [line for line in lines if not line.startswith('Failed to import custom modules')] or [*lines]
    imports = [one for one in chain if isinstance(one, ImportError)]
    if missing := next((one for one in imports if isinstance(one, ModuleNotFoundError)), None):
        todo = (f'install the package with the module {missing.name}, add the folder that has it to PYTHONPATH, or '
                'correct the import (custom_imports of a config)')
    elif imports:
        todo = 'correct the module that it imports (custom_imports of a config), or install the version that it needs'
    return UserError(f'config {name} cannot be read ({type(chain[-1]).__name__}: {"; ".join(reasons)}): {todo}.')


def check_config(cfg: Config) -> None:
    """Raises a UserError for old keys, parts that cannot be read, and an order of channels that bands do not have."""
    # Some of mmpretrain's own configs still have old keys beside the new ones.
    is_mixed = 'train_dataloader' in cfg and cfg.get('default_scope') == 'mmpretrain'
    for key, new in OLD_KEYS.items():
        if key in cfg and not is_mixed:
            raise UserError(f'config {cfg.filename} has {key}, as configs of mmdet 2 and mmseg 0, which mmdet 3 and '
                            f'mmseg 1 ignore: write {new} instead, and see their migration guides.')
    for key in DICTS:
        if cfg.get(key) is not None and not isinstance(cfg[key], dict):
            raise UserError(f'{key} of config {cfg.filename} is {cfg[key]!r}, but must be a dict: correct it.')
        if 'dataloader' in key and cfg.get(key) and 'dataset' not in cfg[key]:
            raise UserError(f'{key} of config {cfg.filename} has no dataset, but {", ".join(cfg[key])}: add it.')
    preprocessor = (cfg.get('model') or {}).get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    if preprocessor.get('bgr_to_rgb') and any(bands_loader(cfg.get(f'{split}_dataloader')) for split in SPLITS):
        raise UserError('data_preprocessor.bgr_to_rgb is True, but LoadBandsFromFile loads no BGR: set it False.')


def check_unread_keys(cfg: Config, options: dict[str, Any]) -> None:
    """Raises a UserError for options that nothing reads, and keys at the top level that are misspelt.

    An option that overrides a variable of the file is one, because the file has used its variables already. A name one
    letter away from a key is refused if the config has no such key, or if it is a mistake in a file that inherits it.
    """
    paths = [(*path, key) for path, part in walk(cfg.to_dict()) for key in part]
    keys = ['.'.join(map(str, path)) for path in paths if path[0] in READ and all(isinstance(key, str) for key in path)]
    for name in (option.split('.')[0] for option in options):
        if name not in READ:
            nearest = _nearest(name, keys)
            raise UserError(f'--cfg-options {name} is not used: '
                            + (f'did you mean {nearest}.' if nearest else 'remove it, or correct its name.'))
    for name in sorted(set(cfg) - READ):
        key = next((key for key in sorted(READ) if is_one_slip_from(name, key)), None)
        if key and (key not in cfg or _overrides_nothing(name, Path(cfg.filename).read_text('utf-8'))):
            raise UserError(f'{name} of config {cfg.filename} is not used: did you mean {key}.')


def is_one_slip_from(name: str, key: str) -> bool:
    """Returns whether a name has one letter more, less or other than a key, or two neighbours of it swapped."""
    start = next((index for index, (a, b) in enumerate(zip(name, key, strict=False)) if a != b),
                 min(len(name), len(key)))
    mine, theirs = name[start:], key[start:]
    return name != key and (mine[1:] == theirs or mine == theirs[1:] or mine[1:] == theirs[1:]
                            or (mine[:2] == theirs[1::-1] and mine[2:] == theirs[2:]))


def _overrides_nothing(name: str, source: str) -> bool:
    """Returns whether a file with a base assigns a name that it does not use; a dump has no base."""
    has_base = re.search(r'^_base_ *=|^with read_base', source, re.MULTILINE)
    return bool(has_base) and len(re.findall(rf'\b{re.escape(name)}\b', source)) == 1


def _nearest(name: str, keys: list[str]) -> str:
    """Returns the outermost dotted key whose last part equals or resembles the name; '' if there is none."""
    last = {key.rpartition('.')[2] for key in keys}
    near = [name] if name in last else difflib.get_close_matches(name, sorted(last), 5, NEAR)
    return min((key for key in keys if key.rpartition('.')[2] in near), key=lambda key: key.count('.'), default='')


class RunConfig(Config):
    """mmengine's config, but its texts and its dict have no secrets, and no templates that a reader would replace."""

    def to_dict(self, keep_imported: bool = False) -> dict[str, Any]:
        return redact(super().to_dict(keep_imported))[0]

    def __repr__(self) -> str:
        return f'Config (path: {self.filename}): {self.to_dict()}'

    @property
    def pretty_text(self) -> str:
        return assignments(self.to_dict())

    def dump(self, file: str | Path | None = None) -> str | None:
        """Writes Python, JSON or YAML, by the suffix of the file; without a file, returns it for the config's own."""
        suffix = Path(file or self.filename or '.py').suffix
        if suffix == '.json':
            text = without_templates(json.dumps(self.to_dict(), default=str), r'\u007b')
        elif suffix in ('.yaml', '.yml'):
            text = without_templates(yaml.dump(self.to_dict(), Dumper=_Dumper, width=math.inf, sort_keys=False))
        else:
            text = self.pretty_text
        if file is None:
            return text
        write_text(Path(file), text)
        return None


class _Dumper(yaml.Dumper):
    """Writes YAML with quotes around what looks like a template, so that it can have escapes."""


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    'tag:yaml.org,2002:str', text, '"' if '{{' in text else None))


def of_run(cfg: Config) -> Config:
    run = RunConfig.__new__(RunConfig)
    run.__setstate__(cfg.__getstate__())
    redact(run.env_variables)  # finds secrets also if their keys in the config are no names of any
    secrets_of(run)
    return run


def secrets_of(cfg: Config) -> list[str]:
    return redact(Config.to_dict(cfg))[1]
