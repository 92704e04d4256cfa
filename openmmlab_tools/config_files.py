"""Reads a config by path or name, and writes a changed config that inherits from it."""
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mmengine.config import Config

from .checkpoints.fitting import check_load_from
from .checkpoints.loading import build_model
from .checkpoints.reading import open_checkpoint
from .config_text import assignments, to_text_style
from .config_walk import leaves
from .engine.config import cannot_be_read
from .engine.steps import LIBRARIES, check_config
from .errors import UserError
from .files import check_free, write_text
from .libraries import require, without_pkg_resources_warning


def read_config(name: str) -> Config:
    """Reads a config by path, or by a name such as 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'.

    In the pure Python style, types are classes. Such a config is converted to the style in which types are names.

    Raises:
        UserError: If the config does not exist or cannot be read.
        ImportError: If its library cannot be imported.
    """
    if '::' not in name and not Path(name).is_file():
        raise UserError(f'config {name} is a folder: name a file.' if Path(name).is_dir() else
                        f'config {name} does not exist: check the path.')
    try:
        cfg = to_text_style(_read(name), LIBRARIES)
    except Exception as error:  # a config is a program and can raise any error
        raise cannot_be_read(name, error, 'correct its name, or name the path of its file') from error
    check_config(cfg)
    kind = (cfg.get('model') or {}).get('type', '')
    is_plain = isinstance(kind, str) and kind and '.' not in kind  # the name of a class of any library
    if not isinstance(kind, str) or kind.count('.') > 1 or (is_plain and cfg.get('default_scope') is None):
        raise UserError(f'config {name} has the model {kind}, but no default_scope: set it to '
                        f'{" or ".join(LIBRARIES)}.')
    if cfg.get('default_scope') == 'mmpretrain' or 'mmpretrain.' in str(cfg.get('model')):
        with suppress(ImportError):  # the parts of mmpretrain are not always built
            require('mmpretrain')
    if cfg.get('default_scope') in ('mmdet', 'mmseg'):
        require(cfg.default_scope)
    return cfg


@without_pkg_resources_warning()
def _read(name: str) -> Config:
    read = _inherited if '::' in name else Config.fromfile
    try:
        return read(name)
    except ImportError as error:
        if 'mmpretrain' not in str(error):
            raise
        require('mmpretrain')  # a custom import may need mmpretrain to be imported completely
        return read(name)


def _inherited(name: str) -> Config:
    """Reads a config of a library as a base, so that each of its parts names its scope."""
    cfg = Config.fromstring(assignments(dict(_base_=name)), '.py')
    return Config(cfg.to_dict(), cfg.text, name, cfg.env_variables)  # its filename would be a temporary file


@contextmanager
def base_for(name: str, out: Path) -> Iterator[str]:
    """Yields the value of `_base_` with which a config at `out` inherits from config `name`.

    A config whose types are names cannot inherit from the pure Python style. For such a base, this writes a copy with
    names to `<name of out>_base.py` in the folder of `out`, which must not exist, and yields the copy. If the `with`
    block fails, the copy is removed.
    """
    cfg = _read(name)
    text = to_text_style(cfg, LIBRARIES)
    if text is cfg:
        yield name if '::' in name else os.path.relpath(Path(name).resolve(), out.resolve().parent)
        return
    base = out.with_name(f'{out.stem}_base.py')
    check_new(base)
    write_text(base, assignments(text.to_dict()))
    try:
        yield base.name
    except BaseException:
        base.unlink()
        raise


def to_delta(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the dict that changes `old` to `new` by mmengine's inheritance: differences, or all with `_delete_`."""
    gone = [key for key in old if key not in new]
    if gone or ('type' in old and old['type'] != new['type']):
        return {'_delete_': True, **new}
    return {
        key: to_delta(old[key], value) if isinstance(value, dict) and isinstance(old.get(key), dict) else value
        for key, value in new.items() if key not in old or old[key] != value or type(old[key]) is not type(value)
    }


def check_model_of(cfg: Config, load_from: str | None = None) -> None:
    """Raises a UserError if the model of a config cannot be built, or its parts or a checkpoint do not fit.

    A model that needs what this machine lacks is not checked.
    """
    try:
        model = build_model(cfg)
    except (OSError, ImportError):
        return
    if load_from:
        check_load_from(model, open_checkpoint(load_from))


def check_new(out: Path) -> None:
    """Raises a UserError unless a config can be written there: the suffix is .py, and the file does not exist."""
    if out.suffix != '.py':
        raise UserError(f'{out} is not a name for a config: use the suffix .py.')
    check_free(out)


def write_config(old: Config, new: Config, name: str, out: Path) -> None:
    """Writes a config that inherits from another config and contains only the differences.

    Args:
        old: The config to inherit from.
        new: The config to write.
        name: The path or name of `old`, as for `read_config`.
        out: The `.py` file to write. It must not exist.

    Raises:
        UserError: If `out` exists, cannot be written, or cannot inherit from `old`.
    """
    check_new(out)
    delta = to_delta(_unscoped(old.to_dict()), _unscoped(new.to_dict()))
    delta = {key: delta[key] for key in sorted(delta, key=lambda key: key != 'model')}  # the model first
    temporary = out.with_name(f'{out.stem}_{os.getpid()}.py')
    try:
        with base_for(name, out) as base:
            write_text(temporary, assignments(dict(_base_=base, **delta)))
            if not _reads_as(temporary, new):
                raise UserError(f'{out} cannot inherit from config {name}, because mmengine does not find it from '
                                'there, or reads another content: copy the config to that folder, and swap the copy.')
            temporary.replace(out)
    except OSError as error:
        raise UserError(f'{out} cannot be written ({error.strerror}): choose another folder.') from error
    finally:
        temporary.unlink(missing_ok=True)


@without_pkg_resources_warning()
def _reads_as(path: Path, cfg: Config) -> bool:
    try:
        written = Config.fromfile(path)
    except Exception:  # mmengine raises several types of errors for a base that it does not find
        return False
    return _unscoped(written.to_dict()) == _unscoped(cfg.to_dict())


def _unscoped(value: Any) -> Any:
    """Removes the scope that mmengine adds to parts that a config inherits from another package."""
    if isinstance(value, dict):
        return {key: _unscoped(item) for key, item in value.items() if key != '_scope_'}
    if isinstance(value, (list, tuple)):
        return type(value)(_unscoped(item) for item in value)
    return value


def changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of a diff: `- key = value` and `+ key = value`, with dotted keys."""
    was, becomes = dict(leaves(old)), dict(leaves(new))
    parents = list(dict.fromkeys(key.rpartition('.')[0] for key in (*was, *becomes)))
    for key in sorted({**was, **becomes}, key=lambda key: parents.index(key.rpartition('.')[0])):
        if was.get(key, ...) != becomes.get(key, ...):
            yield from (f'{sign} {key} = {side[key]!r}' for sign, side in (('-', was), ('+', becomes)) if key in side)
