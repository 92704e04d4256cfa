"""Reads `init_cfg`, which loads a checkpoint into a backbone, or initialises it as mmengine does."""
import logging
from typing import Any, TypeAlias

from mmengine.logging import MMLogger
from mmengine.model import BaseModule, PretrainedInit

from cpvt_mm.registry import FUNCTIONS
from cpvt_mm.tokens.validation import check_names
from openmmlab_tools.errors import UserError
from openmmlab_tools.libraries import logging_from

PRETRAINED_KEYS = ('type', 'checkpoint', 'prefix', 'map_location', 'allow_missing')

InitCfg: TypeAlias = dict[str, Any] | list[dict[str, Any]] | None


def split_init_cfg(init_cfg: InitCfg) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Splits `init_cfg` into configs that load a checkpoint and others; raises a TypeError if it is malformed."""
    cfgs = [] if init_cfg is None else [init_cfg] if isinstance(init_cfg, dict) else init_cfg
    if not isinstance(cfgs, (list, tuple)) or not all(isinstance(cfg, dict) and 'type' in cfg for cfg in cfgs):
        raise TypeError(f'init_cfg is {init_cfg!r}, but must be None, a dict with a type, such as '
                        "dict(type='Pretrained', checkpoint=...), or a list of such dicts.")
    # mmengine's class, or its registered name, also with a scope.
    pretrained = [cfg for cfg in cfgs if cfg['type'] is PretrainedInit
                  or str(cfg['type']).rpartition('.')[2] in ('Pretrained', 'PretrainedInit')]
    return pretrained, [cfg for cfg in cfgs if cfg not in pretrained]


class PretrainedInitMixin(BaseModule):
    """A module of mmengine whose `init_cfg` with type 'Pretrained' accepts the arguments of `load_pretrained`."""

    init_cfg: InitCfg

    def __init__(self, init_cfg: InitCfg = None) -> None:
        super().__init__(init_cfg)
        split_init_cfg(init_cfg)  # which checks it

    def init_weights(self) -> None:
        """Initialises as mmengine does, but loads checkpoints with `load_pretrained`, after all other initialisation.

        Raises a UserError if the checkpoint lacks weights of the backbone, or a key of `init_cfg` is unknown.
        """
        init_cfg, is_new = self.init_cfg, not self.is_init
        pretrained, self.init_cfg = split_init_cfg(init_cfg)
        try:
            with logging_from(logging.WARNING, MMLogger.get_current_instance()):  # INFO: four lines for each parameter
                super().init_weights()  # warns if it is not new
        finally:
            self.init_cfg = init_cfg
        load_pretrained: Any = FUNCTIONS.get('load_pretrained')  # of the zoo
        for cfg in pretrained if is_new else ():
            check_names('a key of an init_cfg of type Pretrained', cfg, PRETRAINED_KEYS, UserError)
            if 'checkpoint' not in cfg:
                raise UserError(f'init_cfg is {cfg}, but must name a checkpoint: a path or a URL.')
            load_pretrained(self, **{key: value for key, value in cfg.items() if key != 'type'})
