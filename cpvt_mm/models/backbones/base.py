"""What both backbones do with images of several sizes, and with `init_cfg`."""
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule, PretrainedInit
from torch import Tensor, nn

from cpvt_mm.checkpoints.loading import load_pretrained
from cpvt_mm.errors import UserError

from ..arguments import check_names, check_positive
from ..grid import fit, is_traced, num_cells, round_up
from ..valid_sizes import Size, by_padded_size, check_valid_sizes, valid_sizes_of

PRETRAINED_KEYS = ('type', 'checkpoint', 'prefix', 'map_location', 'allow_missing')
# An image that is alone is padded to multiples of this: the coarsest stride, and what mmdet's configs pad to.
PAD_SIZE_DIVISOR = 32

AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# A map, vectors or a sequence of tokens; or a pair of them, of class and distillation tokens.
Output: TypeAlias = Tensor | tuple[Tensor, Tensor]


class Backbone(BaseModule):
    """A backbone for batches of images of several sizes.

    `init_cfg=dict(type='Pretrained', ...)` fills it whole, from a file of any known format.

    Args:
        padding: 'exact' or None, as of the subclasses.
        in_channels: Channels of the images.
        init_cfg: mmengine's initialisation config.
    """

    strides: tuple[int, ...]

    def __init__(self, padding: Literal['exact'] | None, in_channels: int,
                 init_cfg: dict[str, Any] | list[dict[str, Any]] | None) -> None:
        super().__init__(init_cfg)
        check_names('a padding', [padding], (None, 'exact'))
        check_positive('in_channels', in_channels)
        self.padding = padding
        self.in_channels = in_channels
        self._has_warned = False

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None) -> tuple[Output, ...]:
        """Images -> outputs, as of `encode`.

        With `padding='exact'` the outputs of an image are those it has alone, at the top left, and zeros elsewhere;
        alone means that zeros complete it to the next multiples of 32 pixels. This holds for every position encoding.
        Images of each padded size run for themselves, so padding is not computed; a batch whose images fill it runs
        as a whole, as it does without the option.

        Args:
            x: `(B, in_channels, H, W)`, in the dtype of the weights or under autocast.
            valid_sizes: Height and width of each image, in pixels, without its padding, which is not read. Defaults
                to None: what the data preprocessors of this package (`cpvt_mm.DetDataPreprocessor`,
                `cpvt_mm.SegDataPreProcessor`) tell; if nobody does, the images fill the batch, and where there are
                several a warning says so, once.

        Raises:
            ValueError: If the images do not fit the backbone, or the sizes the images.
        """
        if not is_traced():
            self._check_images(x)
        if self.padding is None:
            if valid_sizes is not None:
                raise ValueError("valid_sizes are given, but padding is None: build the backbone with padding='exact'.")
            return self.encode(x)
        sizes = self._sizes(x, valid_sizes)
        whole = tuple(x.shape[2:])
        if all(size == whole for size in sizes):
            return self._encode_alone(x, whole)
        groups = by_padded_size(sizes, PAD_SIZE_DIVISOR)
        parts = []
        for padded, members in groups.items():
            images = [fit(x[i:i + 1, :, :sizes[i][0], :sizes[i][1]], *padded) for i in members]
            parts.append(self._encode_alone(torch.cat(images), whole))
        places = torch.tensor([i for members in groups.values() for i in members], device=x.device).argsort()
        return tuple(_join(outs, places) for outs in zip(*parts, strict=True))

    def encode(self, x: Tensor) -> tuple[Output, ...]:
        """The outputs of images `(B, in_channels, H, W)` that fill the batch."""
        raise NotImplementedError

    def fit_output(self, out: Output, stride: int, padded: Size, size: Size) -> Output:
        """An output for images of `padded` pixels a side -> that for images of `size`: without a map's cells that are
        too many, with zeros for those that are missing.
        """
        return fit(out, *num_cells(size, stride))

    def _encode_alone(self, x: Tensor, size: Size) -> tuple[Output, ...]:
        """Outputs of images that zeros complete, of the shapes that those of images of `size` have."""
        padded = tuple(round_up(side, PAD_SIZE_DIVISOR) for side in x.shape[2:])
        outs = self.encode(fit(x, *padded))
        return tuple(self.fit_output(out, stride, padded, size)
                     for out, stride in zip(outs, self.strides, strict=True))

    def _sizes(self, x: Tensor, valid_sizes: Sequence[Size] | None) -> list[Size]:
        sizes = valid_sizes_of(x) if valid_sizes is None else valid_sizes
        if sizes is not None:
            return check_valid_sizes(sizes, x)
        if not is_traced() and len(x) > 1 and not self._has_warned:
            self._has_warned = True
            print_log(f"padding='exact' of {type(self).__name__} has no effect on a batch that does not tell how large "
                      'its images are: use data_preprocessor.type cpvt_mm.DetDataPreprocessor or '
                      'cpvt_mm.SegDataPreProcessor, or pass valid_sizes.', 'current', logging.WARNING)
        return [tuple(x.shape[2:])] * len(x)

    def _check_images(self, x: Tensor) -> None:
        if x.dim() != 4 or x.shape[1] != self.in_channels or 0 in x.shape[2:]:
            raise ValueError(f'images have shape {tuple(x.shape)}, but must have (B, {self.in_channels}, H, W), H and '
                             'W at least 1.')
        wanted = next(self.parameters()).dtype
        under_autocast = torch.is_autocast_enabled(x.device.type) and x.dtype in AUTOCAST_DTYPES
        if x.dtype != wanted and not under_autocast:
            raise ValueError(f'images are {x.dtype}, but the weights {wanted}: normalise and convert the images, or '
                             'convert the weights.')

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

    def meet_norm_eps(self, norm_eps: float | None, form: str) -> None:
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


def _join(parts: Sequence[Output], places: Tensor) -> Output:
    """One output of all images; `places` says for each where it is among the parts."""
    if isinstance(parts[0], tuple):
        return tuple(_join(part, places) for part in zip(*parts, strict=True))
    return torch.cat(parts)[places]
