"""Runs backbones on batches of images of several sizes (`padding='exact'`), and on batches of clips (`num_frames`)."""
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor

from ..arguments import check_positive
from ..clips import num_frames_of
from ..grid import grid_size, pad_or_crop, round_up
from ..tracing import is_traced
from ..valid_sizes import Size, alike, check_valid_sizes, valid_sizes_of

# padding='exact' pads each image to multiples of this: the coarsest stride, and `pad_size_divisor` in mmdet's configs.
PAD_SIZE_DIVISOR = 32

AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# A map, vectors or a sequence of tokens; or a pair: pooled features and distillation token.
Output: TypeAlias = Tensor | tuple[Tensor, Tensor]


class ExactPadding(BaseModule):
    """Base class of backbones: `encode` is for images that fill the batch, `forward` also for images of several sizes.

    Args:
        padding: 'exact' or None; the subclasses describe it.
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
        self._warnings: set[str] = set()

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None, num_frames: int | None = None
                ) -> tuple[Output, ...]:
        """Computes the outputs of images, or of the frames of clips, in the shapes that `encode` gives.

        With `padding='exact'`, each image gets the same outputs as alone; alone, it is zero-padded to multiples of 32
        pixels. The outputs are at the top left of the maps, which are zero elsewhere. This holds for every position
        encoding. Images are grouped by padded size, and each group runs separately. So the padding of the batch is not
        computed. If all images fill the batch, they run together.

        A `PEG` with `ndim=3` mixes the frames of a clip. Then each clip gets the same outputs as alone. Its frames are
        zero-padded to a common size, in multiples of 32 pixels.

        Args:
            x: `(B, in_channels, H, W)`, in the dtype of the weights or under autocast. The frames of a clip are
                consecutive.
            valid_sizes: Height and width of each image without padding, in pixels. Pixels outside are ignored.
                Defaults to None: the sizes that the data preprocessors of this package attach
                (`cpvt_mm.DetDataPreprocessor`, `cpvt_mm.SegDataPreProcessor`, `cpvt_mm.TrackDataPreprocessor`).
                Without attached sizes, the images count as filling the batch; if there are several, a warning says so
                once.
            num_frames: Frames of each clip; the last clip may be shorter. No effect if no position encoding spans
                frames. Defaults to None: the number that `cpvt_mm.TrackDataPreprocessor` attaches. Without it, each
                image is a clip; if there are several, a warning says so once.

        Returns:
            One output for each of `out_indices`, in the dtype of the weights; under autocast, in its dtype.

        Raises:
            ValueError: If the images do not fit the backbone, or the sizes do not fit the images.
        """
        if not is_traced():
            self._check_images(x)
        num_frames = self._num_frames(x, num_frames)
        sizes = self._sizes(x, valid_sizes)
        height, width = x.shape[2:]
        whole = (height, width)
        if sizes is None:
            # Traced code must not branch on the batch size, so it assumes that all clips are complete.
            if is_traced() or len(x) % num_frames == 0:
                return self._encode_alone(x, whole, num_frames)
            sizes = [whole] * len(x)
        parts, order = [], []
        multiple = PAD_SIZE_DIVISOR if self.padding else 1
        for (padded, length), clips in alike(sizes, num_frames, multiple).items():
            members = [i for frames in clips for i in frames]
            images = [pad_or_crop(x[i:i + 1, :, :sizes[i][0], :sizes[i][1]], *padded) for i in members]
            parts.append(self._encode_alone(torch.cat(images), whole, length))
            order += members
        places = sorted(range(len(order)), key=order.__getitem__)
        return tuple(_join(outs, places) for outs in zip(*parts, strict=True))

    @property
    @abstractmethod
    def spans_frames(self) -> bool:
        """Whether a position encoding mixes the frames of a clip."""

    @abstractmethod
    def encode(self, x: Tensor, num_frames: int = 1) -> tuple[Output, ...]:
        """Returns the outputs of images `(B, in_channels, H, W)` that fill the batch, in clips of `num_frames` frames.
        """

    def pad_or_crop_output(self, out: Output, stride: int, padded: Size, size: Size) -> Output:
        """Crops or zero-pads the map for images of size `padded` to the map for images of `size`, in pixels.

        Vectors stay unchanged.
        """
        return pad_or_crop(out, *grid_size(size, stride)) if isinstance(out, Tensor) and out.dim() == 4 else out

    def _encode_alone(self, x: Tensor, size: Size, num_frames: int) -> tuple[Output, ...]:
        """Returns the outputs of images that fill the batch, in the shapes of outputs for images of `size`."""
        if self.padding is None:
            return self.encode(x, num_frames)
        height, width = (round_up(side, PAD_SIZE_DIVISOR) for side in x.shape[2:])
        padded = (height, width)
        outs = self.encode(pad_or_crop(x, *padded), num_frames)
        return tuple(self.pad_or_crop_output(out, stride, padded, size)
                     for out, stride in zip(outs, self.strides, strict=True))

    def _sizes(self, x: Tensor, valid_sizes: Sequence[Size] | None) -> list[Size] | None:
        """Returns the image sizes without padding; None if the images fill the batch, or `padding` is None."""
        if self.padding is None:
            if valid_sizes is not None:
                raise ValueError("valid_sizes are given, but padding is None: build the backbone with padding='exact'.")
            return None
        sizes = valid_sizes_of(x) if valid_sizes is None else valid_sizes
        if sizes is not None:
            sizes = check_valid_sizes(sizes, x)
            return None if all(size == x.shape[2:] for size in sizes) else sizes
        if not is_traced() and len(x) > 1:
            self._warn(f"padding='exact' of {type(self).__name__} has no effect, because the batch carries no image "
                       'sizes: use data_preprocessor.type cpvt_mm.DetDataPreprocessor or cpvt_mm.SegDataPreProcessor, '
                       'or pass valid_sizes.')
        return None

    def _num_frames(self, x: Tensor, num_frames: int | None) -> int:
        """Returns the number of frames of a clip; 1 if no position encoding spans frames."""
        if num_frames is not None and not is_traced():
            check_positive('num_frames', num_frames)
        if not self.spans_frames:
            return 1
        if num_frames is None:
            num_frames = num_frames_of(x)
        if num_frames is not None:
            return num_frames
        if not is_traced() and len(x) > 1:
            self._warn(f'PEG(ndim=3) of {type(self).__name__} treats each image as a clip of its own, because the '
                       'batch does not carry the number of frames per clip: use data_preprocessor.type '
                       'cpvt_mm.TrackDataPreprocessor, or pass num_frames.')
        return 1

    def _warn(self, text: str) -> None:
        """Warns, once for each text."""
        if text not in self._warnings:
            self._warnings.add(text)
            print_log(text, 'current', logging.WARNING)

    def _check_images(self, x: Tensor) -> None:
        if x.dim() != 4 or x.shape[1] != self.in_channels or 0 in x.shape[2:]:
            raise ValueError(f'images have shape {tuple(x.shape)}, but must have (B, {self.in_channels}, H, W), H and '
                             'W at least 1.')
        wanted = next(self.parameters()).dtype
        if x.dtype != wanted and not (x.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(x.device.type)):
            raise ValueError(f'images are {x.dtype}, but the weights are {wanted}: normalise and convert the images, '
                             'or convert the weights.')


def _join(parts: Sequence[Output], places: Sequence[int]) -> Output:
    """Joins parts into one output; `places` gives the index of each image in the concatenated parts."""
    if isinstance(parts[0], tuple):
        first, second = zip(*parts, strict=True)
        return _join_tensors(first, places), _join_tensors(second, places)
    return _join_tensors([part for part in parts if isinstance(part, Tensor)], places)


def _join_tensors(parts: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    images = [image for part in parts for image in part.split(1)]
    return torch.cat([images[place] for place in places])
