"""The base class of both backbones: common arguments, `init_cfg`, and the layer of each parameter."""
import logging
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mmengine.logging import MMLogger, print_log
from mmengine.model import PretrainedInit

from cpvt_mm.errors import UserError
from cpvt_mm.weights.loading import load_pretrained

from ..arguments import check_img_size, check_names, check_positive, check_rates, check_with_cp
from ..layers import WithCp
from ..position_encodings import PositionEncodings
from .exact_padding import ExactPadding
from .feature_info import FeatureInfo
from .hub import HubMixin

PRETRAINED_KEYS = ('type', 'checkpoint', 'prefix', 'map_location', 'allow_missing')

InitCfg: TypeAlias = dict[str, Any] | list[dict[str, Any]] | None


class Backbone(ExactPadding, HubMixin):
    """Base class of both backbones.

    The constructor checks the arguments that both backbones have; see there for their meaning. With
    `init_cfg=dict(type='Pretrained', ...)`, `init_weights` loads all weights from a checkpoint of any known format.
    """

    init_cfg: InitCfg
    out_channels: tuple[int, ...]
    out_indices: tuple[int, ...]
    parts: str  # the submodule whose children out_indices counts

    def __init__(self, in_channels: int, img_size: int | tuple[int, int], drop_rate: float, attn_drop_rate: float,
                 drop_path_rate: float, with_cp: WithCp, padding: Literal['exact'] | None, init_cfg: InitCfg) -> None:
        super().__init__(padding, init_cfg)
        check_positive('in_channels', in_channels)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate, drop_path_rate=drop_path_rate)
        check_with_cp(with_cp)
        self.in_channels = in_channels
        self.img_size = check_img_size(img_size)
        self.with_cp = with_cp
        for cfg in self._split_init_cfg()[0]:
            _warn_if_missing(cfg.get('checkpoint'))

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Number of built blocks, over all stages."""

    @abstractmethod
    def _block_of(self, name: str) -> int:
        """Returns a parameter's block, counted over all stages: -1 before the first, `num_blocks` after the last block.
        """

    @property
    def feature_info(self) -> FeatureInfo:
        """Channels, stride and name of each output, in the form of timm's models."""
        outputs = zip(self.out_channels, self.strides, self.out_indices, strict=True)
        return FeatureInfo(dict(num_chs=channels, reduction=stride, module=f'{self.parts}.{index}')
                           for channels, stride, index in outputs)

    def init_weights(self) -> None:
        """Initialises as mmengine does, but loads checkpoints with `load_pretrained`, after all other initialisation.

        mmengine writes its note about each parameter to the log file only. Without a log file, there are no notes.

        Raises:
            UserError: If the checkpoint lacks weights of the backbone, or `load_pretrained` does not know a key of
                `init_cfg`.
        """
        if self.is_init:
            with _only_warnings():
                super().init_weights()  # warns
            return
        init_cfg = self.init_cfg
        pretrained, self.init_cfg = self._split_init_cfg()
        try:
            with _only_warnings():
                super().init_weights()
        finally:
            self.init_cfg = init_cfg
        for cfg in pretrained:
            check_names('a key of an init_cfg of type Pretrained', cfg, PRETRAINED_KEYS, UserError)
            if 'checkpoint' not in cfg:
                raise UserError(f'init_cfg is {cfg}, but must name a checkpoint: a path or a URL.')
            load_pretrained(self, **{key: value for key, value in cfg.items() if key != 'type'})

    def _split_init_cfg(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Splits `init_cfg` into the configs that load a checkpoint and the others."""
        cfgs = [self.init_cfg] if isinstance(self.init_cfg, dict) else self.init_cfg or []
        pretrained = [cfg for cfg in cfgs if _is_pretrained(cfg['type'])]
        return pretrained, [cfg for cfg in cfgs if cfg not in pretrained]

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Returns the layer of a parameter, for layer-wise learning-rate decay.

        The name and signature are those of mmpretrain, whose `LearningRateDecayOptimWrapperConstructor` also calls it.

        - 0: class and distillation tokens, the patch embedding of the image, and encodings before the first block
          (`LearnablePE`, a `PEG` at -1).
        - i + 1: block i, counted over all stages. A `PEG` belongs to the block that it follows, or whose queries and
          keys it encodes. The patch embedding of a later stage, and encodings before its first block, belong to that
          block. Tables that all blocks of a stage share (`RelativePE`) belong to its last block.
        - The last layer: norms of outputs, and parameters outside the backbone.

        Args:
            param_name: Name of the parameter in this backbone, or in a model that contains it.
            prefix: Prefix of the backbone's parameter names in that model. Defaults to ''.

        Returns:
            The layer, counted from 0, and the number of layers, `num_blocks + 2`.
        """
        block = self._block_of(param_name[len(prefix):]) if param_name.startswith(prefix) else self.num_blocks
        return block + 1, self.num_blocks + 2


def block_of(position_encoding: PositionEncodings, name: str) -> int:
    """Returns the block of a parameter of a stage, or of the plain backbone; -1 if it precedes all blocks.

    Args:
        position_encoding: The encodings of the stage.
        name: The name of the parameter in the stage.
    """
    part, _, rest = name.partition('.')
    if part == 'blocks':
        return int(rest.partition('.')[0])
    return position_encoding.block_of(rest) if part == 'position_encoding' else -1


def _is_pretrained(name: str | type) -> bool:
    """Returns whether `name` is mmengine's `PretrainedInit`: the class, or its registered name, also with a scope."""
    return name is PretrainedInit or str(name).rpartition('.')[2] in ('Pretrained', 'PretrainedInit')


def _warn_if_missing(checkpoint: object) -> None:
    """Warns if `checkpoint` is a path without a file. It is not an error: a checkpoint of the whole model may follow.
    """
    if isinstance(checkpoint, str | Path) and '://' not in str(checkpoint) and not Path(checkpoint).is_file():
        print_log(f'checkpoint {checkpoint} of init_cfg does not exist, so init_weights() will fail: correct the path, '
                  'unless you load all weights from another file.', 'current', logging.WARNING)


@contextmanager
def _only_warnings() -> Iterator[None]:
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
