"""Batches of images of several sizes: the option `padding='exact'`."""
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor

from ..grid import grid_size, pad_or_crop, round_up
from ..tracing import is_traced
from ..valid_sizes import Size, by_padded_size, check_valid_sizes, valid_sizes_of

# An image that is alone is padded to multiples of this: the coarsest stride, and what mmdet's configs pad to.
PAD_SIZE_DIVISOR = 32

AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# A map, vectors or a sequence of tokens; or a pair of them, of class and distillation tokens.
Output: TypeAlias = Tensor | tuple[Tensor, Tensor]


class ExactPadding(BaseModule):
    """A backbone whose `encode` is for images that fill their batch; called, it takes batches of any images.

    Args:
        padding: 'exact' or None, see the subclasses.
        init_cfg: mmengine's initialisation config.
    """

    in_channels: int
    strides: tuple[int, ...]

    def __init__(self, padding: Literal['exact'] | None,
                 init_cfg: dict[str, Any] | list[dict[str, Any]] | None) -> None:
        super().__init__(init_cfg)
        if padding not in (None, 'exact'):
            raise ValueError(f"padding is {padding!r}, but must be None or 'exact'.")
        self.padding = padding
        self._has_warned = False

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None) -> tuple[Output, ...]:
        """Images -> outputs, in the shapes that `encode` tells.

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
        height, width = x.shape[2:]
        whole = (height, width)
        if sizes is None or all(size == whole for size in sizes):
            return self._encode_alone(x, whole)
        groups = by_padded_size(sizes, PAD_SIZE_DIVISOR)
        parts = []
        for padded, members in groups.items():
            images = [pad_or_crop(x[i:i + 1, :, :sizes[i][0], :sizes[i][1]], *padded) for i in members]
            parts.append(self._encode_alone(torch.cat(images), whole))
        order = [i for members in groups.values() for i in members]
        places = sorted(range(len(order)), key=order.__getitem__)
        return tuple(_join(outs, places) for outs in zip(*parts, strict=True))

    @abstractmethod
    def encode(self, x: Tensor) -> tuple[Output, ...]:
        """The outputs of images `(B, in_channels, H, W)` that fill the batch."""

    def pad_or_crop_output(self, out: Output, stride: int, padded: Size, size: Size) -> Output:
        """An output for images of `padded` pixels a side -> that for images of `size`: without a map's cells that are
        too many, with zeros for those that are missing. Vectors stay as they are.
        """
        return pad_or_crop(out, *grid_size(size, stride)) if isinstance(out, Tensor) and out.dim() == 4 else out

    def _encode_alone(self, x: Tensor, size: Size) -> tuple[Output, ...]:
        """Outputs of images that zeros complete, of the shapes that those of images of `size` have."""
        height, width = (round_up(side, PAD_SIZE_DIVISOR) for side in x.shape[2:])
        padded = (height, width)
        outs = self.encode(pad_or_crop(x, *padded))
        return tuple(self.pad_or_crop_output(out, stride, padded, size)
                     for out, stride in zip(outs, self.strides, strict=True))

    def _sizes(self, x: Tensor, valid_sizes: Sequence[Size] | None) -> list[Size] | None:
        """The sizes of the images without padding; None if nobody tells them."""
        sizes = valid_sizes_of(x) if valid_sizes is None else valid_sizes
        if sizes is not None:
            return check_valid_sizes(sizes, x)
        if not is_traced() and len(x) > 1 and not self._has_warned:
            self._has_warned = True
            print_log(f"padding='exact' of {type(self).__name__} has no effect on a batch that does not tell how large "
                      'its images are: use data_preprocessor.type cpvt_mm.DetDataPreprocessor or '
                      'cpvt_mm.SegDataPreProcessor, or pass valid_sizes.', 'current', logging.WARNING)
        return None

    def _check_images(self, x: Tensor) -> None:
        if x.dim() != 4 or x.shape[1] != self.in_channels or 0 in x.shape[2:]:
            raise ValueError(f'images have shape {tuple(x.shape)}, but must have (B, {self.in_channels}, H, W), H and '
                             'W at least 1.')
        wanted = next(self.parameters()).dtype
        if x.dtype != wanted and not (x.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(x.device.type)):
            raise ValueError(f'images are {x.dtype}, but the weights {wanted}: normalise and convert the images, or '
                             'convert the weights.')


def _join(parts: Sequence[Output], places: Sequence[int]) -> Output:
    """One output of all images; `places` says for each where it is among the parts."""
    if isinstance(parts[0], tuple):
        first, second = zip(*parts, strict=True)
        return _join_tensors(first, places), _join_tensors(second, places)
    return _join_tensors([part for part in parts if isinstance(part, Tensor)], places)


def _join_tensors(parts: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    images = [image for part in parts for image in part.split(1)]
    return torch.cat([images[place] for place in places])
