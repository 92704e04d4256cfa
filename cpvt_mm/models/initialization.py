"""Initial values: random ones, and what mmengine's `init_cfg` asks for."""
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from mmengine.logging import MMLogger, print_log
from mmengine.model import PretrainedInit
from torch import nn

from cpvt_mm.encodings import PositionEncoding

PRETRAINED_KEYS = ('type', 'checkpoint', 'prefix', 'map_location', 'allow_missing')

InitCfg: TypeAlias = dict[str, Any] | list[dict[str, Any]] | None


def init_parameters(module: nn.Module) -> None:
    """Initialises one layer like the original code of Twins-PCPVT, except for the biases of convolutions.

    A position encoding then sets initial values of its own.

    Pass it to `Module.apply`. Linear layers get weights from a normal distribution of std 0.02, truncated at two
    standard deviations, and a zero bias. Convolutions get weights of variance 2 / fan-out and a bias of std 0.02.

    The original has zero biases in convolutions. With them, tokens of zero-padded pixels are zero in every channel. The
    derivative of LayerNorm at such a token is 1 / sqrt(eps), which is 10^3, and the factors of several norms multiply.
    The first gradients of a padded batch would be 10^6 times too large.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, PositionEncoding):
        module.init_parameters()
    elif isinstance(module, nn.Conv2d | nn.Conv3d):
        fan_out = prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=(2 / fan_out)**0.5)
        if module.bias is not None:
            nn.init.normal_(module.bias, std=0.02)


def split_init_cfg(init_cfg: InitCfg) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Splits mmengine's initialisation config into the configs that load a checkpoint and the others.

    Raises:
        TypeError: If it is not None, a dict with a type, or a list of such dicts.
    """
    cfgs = [] if init_cfg is None else [init_cfg] if isinstance(init_cfg, dict) else init_cfg
    if not isinstance(cfgs, (list, tuple)) or not all(isinstance(cfg, dict) and 'type' in cfg for cfg in cfgs):
        raise TypeError(f'init_cfg is {init_cfg!r}, but must be None, a dict with a type, such as '
                        "dict(type='Pretrained', checkpoint=...), or a list of such dicts.")
    pretrained = [cfg for cfg in cfgs if _is_pretrained(cfg['type'])]
    return pretrained, [cfg for cfg in cfgs if cfg not in pretrained]


def _is_pretrained(name: str | type) -> bool:
    """Returns whether `name` is mmengine's `PretrainedInit`: the class, or its registered name, also with a scope."""
    return name is PretrainedInit or str(name).rpartition('.')[2] in ('Pretrained', 'PretrainedInit')


def warn_if_missing(checkpoint: object) -> None:
    """Warns if `checkpoint` is a path without a file. It is not an error: a checkpoint of the whole model may follow.
    """
    if isinstance(checkpoint, str | Path) and '://' not in str(checkpoint) and not Path(checkpoint).is_file():
        print_log(f'checkpoint {checkpoint} of init_cfg does not exist, so init_weights() will fail: correct the path, '
                  'unless you load all weights from another file.', 'current', logging.WARNING)


@contextmanager
def only_warnings() -> Iterator[None]:
    """Sets the level of mmengine's current logger to WARNING in the `with` block.

    Without a log file, mmengine would print four lines for each parameter.
    """
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)
