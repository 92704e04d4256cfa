"""Warns of unused keys in a config, which are usually misspelt."""
import difflib
import inspect
import logging
import re
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner

# Keys that are read: arguments of mmengine's runner, other keys that it reads from the config, and keys that the tools
# of the libraries read.
READ = {*inspect.signature(Runner.__init__).parameters, 'runner_type', 'custom_imports', 'compile', 'optimizer',
        'activation_checkpointing', 'efficient_conv_bn_eval', 'find_unused_parameters', 'model_wrapper_cfg',
        'tta_model', 'tta_pipeline'}
# Similarity of names that may be misspelt, such as `lrr` for `lr`, or `modle` for `model`.
NEAR = 0.75


def warn_of_unread_keys(cfg: Config, options: dict[str, Any]) -> None:
    """Warns of unused top-level keys, and suggests the most similar key that is read.

    It warns of all options with an unused key. These include options that override a variable of the config file,
    because the file has used its variables already. It warns of a variable of the file only if the file does not use it
    and its name is similar to a key.

    Args:
        cfg: The config, with the options.
        options: The options, with dotted keys.
    """
    keys = list(_dotted(cfg.to_dict()))
    for name in dict.fromkeys(option.split('.')[0] for option in options):
        if name not in READ:
            _warn(f'--cfg-options {name}', _nearest(name, keys))
    given = {option.split('.')[0] for option in options}
    for name in set(cfg) - READ - given:
        nearest = _nearest(name, keys)
        if nearest and len(re.findall(rf'\b{re.escape(name)}\b', cfg.text)) == 1:
            _warn(f'{name} of config {cfg.filename}', nearest)


def _dotted(value: Any, name: str = '') -> Iterator[str]:
    for key, one in value.items() if isinstance(value, dict) else ():
        if isinstance(key, str) and (name or key in READ):
            yield f'{name}{key}'
            yield from _dotted(one, f'{name}{key}.')


def _nearest(name: str, keys: list[str]) -> str:
    """Returns the outermost dotted key whose last part equals the name, or else is similar to it; '' if there is none.
    """
    last = {key.rpartition('.')[2] for key in keys}
    near = [name] if name in last else difflib.get_close_matches(name, sorted(last), 5, NEAR)
    return min((key for key in keys if key.rpartition('.')[2] in near), key=lambda key: key.count('.'), default='')


def _warn(what: str, nearest: str) -> None:
    print_log(f'{what} is not used{f": did you mean {nearest}" if nearest else ""}.', 'current', logging.WARNING)
