"""What both backbones do with `init_cfg`."""
from mmengine.model import BaseModule, PretrainedInit

from cpvt_mm.checkpoints.loading import load_pretrained
from cpvt_mm.errors import UserError

from ..arguments import check_names

PRETRAINED_KEYS = ('type', 'checkpoint', 'prefix', 'map_location', 'allow_missing')


class Backbone(BaseModule):
    """A backbone that `init_cfg=dict(type='Pretrained', ...)` fills whole, from a file of any known format."""

    def init_weights(self) -> None:
        """Initialises as mmengine does, except that `load_pretrained` reads checkpoints, last.

        Raises:
            UserError: As of `load_pretrained`, or if `init_cfg` has other keys than its arguments.
        """
        if self.is_init:
            super().init_weights()  # warns
            return
        init_cfg = self.init_cfg
        cfgs = [init_cfg] if isinstance(init_cfg, dict) else init_cfg or []
        pretrained = [cfg for cfg in cfgs if _is_pretrained(cfg['type'])]
        self.init_cfg = [cfg for cfg in cfgs if cfg not in pretrained]
        try:
            super().init_weights()
        finally:
            self.init_cfg = init_cfg
        for cfg in pretrained:
            check_names('a key of an init_cfg of type Pretrained', cfg, PRETRAINED_KEYS, UserError)
            if 'checkpoint' not in cfg:
                raise UserError(f'init_cfg is {cfg}, but must name a checkpoint: a path or a URL.')
            load_pretrained(self, **{key: value for key, value in cfg.items() if key != 'type'})

    def meet_norm_eps(self, norm_eps: float | None, form: str) -> None:
        """Is told the eps that the LayerNorms had when the loaded weights were trained, if known, and their format."""


def _is_pretrained(name: str | type) -> bool:
    """Whether it is mmengine's initialisation from a checkpoint: its class, or a name with or without a scope."""
    return name is PretrainedInit or str(name).rpartition('.')[2] in ('Pretrained', 'PretrainedInit')
