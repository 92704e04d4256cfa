"""The part that both backbones share: common arguments, how `init_cfg` is read, the layer of each parameter."""
import logging
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mmengine.logging import MMLogger, print_log
from mmengine.model import PretrainedInit

from cpvt_mm.checkpoints.loading import load_pretrained
from cpvt_mm.errors import UserError

from ..arguments import check_img_size, check_names, check_positive, check_rates, check_with_cp
from ..layers import WithCp
from ..position_encodings import PositionEncodings
from .exact_padding import ExactPadding
from .feature_info import FeatureInfo
from .hub import HubMixin

PRETRAINED_KEYS = ('type', 'checkpoint', 'prefix', 'map_location', 'allow_missing')

InitCfg: TypeAlias = dict[str, Any] | list[dict[str, Any]] | None


class Backbone(ExactPadding, HubMixin):
    """A backbone that `init_cfg=dict(type='Pretrained', ...)` fills whole, from a file of any known format.

    The arguments are those of the subclasses of the same name; they are checked here.
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
        """Blocks that are built, of all stages."""

    @abstractmethod
    def _block_of(self, name: str) -> int:
        """The block that a parameter belongs to, of all stages; -1: what is before them, `num_blocks`: after them."""

    @property
    def feature_info(self) -> FeatureInfo:
        """Channels, stride and name of each output, as timm's models tell them."""
        outputs = zip(self.out_channels, self.strides, self.out_indices, strict=True)
        return FeatureInfo(dict(num_chs=channels, reduction=stride, module=f'{self.parts}.{index}')
                           for channels, stride, index in outputs)

    def init_weights(self) -> None:
        """Initialises as mmengine does, except that `load_pretrained` reads checkpoints, last.

        What mmengine notes of each parameter goes to the log's file, where there is one, and nowhere else.

        Raises:
            UserError: If the checkpoint does not fill the backbone, or `init_cfg` has a key that `load_pretrained` does
                not take.
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
        """The parts of `init_cfg` that read a checkpoint, and the others."""
        cfgs = [self.init_cfg] if isinstance(self.init_cfg, dict) else self.init_cfg or []
        pretrained = [cfg for cfg in cfgs if _is_pretrained(cfg['type'])]
        return pretrained, [cfg for cfg in cfgs if cfg not in pretrained]

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


def block_of(position_encoding: PositionEncodings, name: str) -> int:
    """The block that a parameter of a stage, or of the plain backbone, belongs to; -1: it comes before the first.

    Args:
        position_encoding: The encodings of the stage.
        name: The name of the parameter in the stage.
    """
    part, _, rest = name.partition('.')
    if part == 'blocks':
        return int(rest.partition('.')[0])
    return position_encoding.block_of(rest) if part == 'position_encoding' else -1


def _is_pretrained(name: str | type) -> bool:
    """Whether it is mmengine's initialisation from a checkpoint: its class, or a name with or without a scope."""
    return name is PretrainedInit or str(name).rpartition('.')[2] in ('Pretrained', 'PretrainedInit')


def _warn_if_missing(checkpoint: object) -> None:
    """Warns of a path without a file. It is no error yet: a whole model's checkpoint may fill the backbone, too."""
    if isinstance(checkpoint, str | Path) and '://' not in str(checkpoint) and not Path(checkpoint).is_file():
        print_log(f'checkpoint {checkpoint} of init_cfg does not exist, so that init_weights() will fail: correct the '
                  'path, unless all weights come from elsewhere.', 'current', logging.WARNING)


@contextmanager
def _only_warnings() -> Iterator[None]:
    """Keeps mmengine's current logger from less. Where it has no file, mmengine logs four lines for each parameter."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)
