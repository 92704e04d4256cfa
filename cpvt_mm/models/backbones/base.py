"""What both backbones share: how `init_cfg` is read, and which layer a parameter belongs to."""
from abc import abstractmethod

from mmengine.model import PretrainedInit
from torch import nn

from cpvt_mm.checkpoints.loading import load_pretrained
from cpvt_mm.errors import UserError

from ..arguments import check_names
from .exact_padding import ExactPadding

PRETRAINED_KEYS = ('type', 'checkpoint', 'prefix', 'map_location', 'allow_missing')


class Backbone(ExactPadding):
    """A backbone that `init_cfg=dict(type='Pretrained', ...)` fills whole, from a file of any known format.

    Args:
        padding: 'exact' or None, as of the subclasses.
        in_channels: Channels of the images.
        init_cfg: mmengine's initialisation config.
    """

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Blocks that are built, of all stages."""

    @abstractmethod
    def _block_of(self, name: str) -> int:
        """The block that a parameter belongs to, of all stages; -1: what is before them, `num_blocks`: after them."""

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

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """The layer of a parameter, for learning rates that differ by layer.

        The name and signature are mmpretrain's, whose `LearningRateDecayOptimWrapperConstructor` calls it, too.

        - 0: tokens, and the patch embedding of the image with what is added to it (`LearnablePE`).
        - i + 1: block i, counted over all stages. With it a `PEG` that follows it, or encodes its queries and keys; and
          the patch embedding of a later stage with the stage's first block. Tables that all blocks of a stage share
          (`RelativePE`) belong to the last of them.
        - The last one: norms of outputs, and what is not the backbone's.

        Args:
            param_name: Name of the parameter in this backbone, or in a model that has it.
            prefix: What the names of the backbone's parameters begin with there. Defaults to ''.

        Returns:
            The layer, counted from 0, and the number of layers, `num_blocks + 2`.
        """
        block = self._block_of(param_name[len(prefix):]) if param_name.startswith(prefix) else self.num_blocks
        return block + 1, self.num_blocks + 2

    def meet_norm_eps(self, norm_eps: float | None, fmt: str) -> None:
        """Is told the eps that the LayerNorms had when the loaded weights were trained, if known, and their format."""


def block_of(stage: nn.Module, name: str) -> int:
    """The block that a parameter belongs to; -1: what is before the first.

    Args:
        stage: What has `blocks` and a `position_encoding`: a stage of the pyramid, or the plain backbone.
        name: Of the parameter in it.
    """
    part, _, rest = name.partition('.')
    if part == 'blocks':
        return int(rest.partition('.')[0])
    return stage.position_encoding.block_of(rest) if part == 'position_encoding' else -1


def _is_pretrained(name: str | type) -> bool:
    """Whether it is mmengine's initialisation from a checkpoint: its class, or a name with or without a scope."""
    return name is PretrainedInit or str(name).rpartition('.')[2] in ('Pretrained', 'PretrainedInit')
