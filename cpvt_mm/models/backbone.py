"""The base class of both backbones: what is done with a batch, common arguments, weights, frozen parts."""
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from cpvt_mm.encodings import PositionEncoding
from cpvt_mm.hub import HubMixin
from cpvt_mm.tokens.batch_info import Output
from cpvt_mm.tokens.coordinates import grid_size, pad_or_crop
from cpvt_mm.tokens.grid import Size, pixels
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.tracing import is_exported, is_traced
from cpvt_mm.tokens.validation import check_choice, check_positive, check_rates, parse_pair
from cpvt_mm.zoo.load import translate

from .init import InitCfg, PretrainedInitMixin, init_parameters
from .interfaces import TimmFeatures
from .several_sizes import arrange, arrange_eagerly, check_sizes, image_of, padded_size, prepare
from .training import WithCp

AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Backbone(TimmFeatures, PretrainedInitMixin, HubMixin):
    """Base class of both backbones; see there for the arguments, which the constructor checks."""

    spans_frames: bool  # whether a position encoding mixes the frames of a clip
    patch_size: int  # of the first patch embedding, in pixels
    layer_decay_constructor = 'cpvt_mm.LayerDecayOptimWrapperConstructor'  # for `optim_wrapper.constructor`

    def __init__(self, in_channels: int, img_size: int | tuple[int, int], drop_rate: float, attn_drop_rate: float,
                 drop_path_rate: float, with_cp: WithCp, padding: Literal['exact'] | None, init_cfg: InitCfg) -> None:
        super().__init__(init_cfg)
        check_positive('in_channels', in_channels)
        check_rates(drop_rate=drop_rate, attn_drop_rate=attn_drop_rate, drop_path_rate=drop_path_rate)
        check_choice('with_cp', with_cp, (False, 'selective', True))
        check_choice('padding', padding, (None, 'exact'))
        self.in_channels = in_channels
        self.img_size = parse_pair('img_size', img_size)
        self.with_cp = with_cp
        self.padding = padding

    def finish(self) -> None:
        """Sets initial values, and what follows from the parts; constructors call it at their end."""
        self.apply(init_parameters)
        self.spans_frames = any(part.spans_frames for part in self.modules() if isinstance(part, PositionEncoding))
        self.freeze()
        self.register_load_state_dict_pre_hook(translate)  # checkpoints of models with the same backbone of a library

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None, num_frames: int | None = None
                ) -> tuple[Output, ...]:
        """Computes the outputs of images, or of the frames of clips, in the shapes that `to_output` gives.

        With `padding='exact'`, each image gets the same outputs as alone, zero-padded to multiples of 32 pixels. They
        are at the top left of the maps, which are zero elsewhere. A `PEG` with `ndim=3` mixes the frames of a clip;
        then each clip gets the same outputs as alone, with its frames zero-padded to a common size.

        Args:
            x: `(B, in_channels, H, W)`, in the dtype of the weights or under autocast. The frames of a clip are
                consecutive.
            valid_sizes: Height and width of each image without padding, in pixels, for `padding='exact'`. Pixels
                outside are ignored. Defaults to None: the sizes that the data preprocessor tells
                (`cpvt_mm.DetDataPreprocessor`, `cpvt_mm.SegDataPreProcessor`); a single image, and windows of sliding
                inference, fill the batch.
            num_frames: Frames of each clip, for encodings that span frames; the last clip may be shorter. Defaults to
                None: the number that the preprocessor of `projects/video` tells; 1 without it.

        Returns:
            One output for each of `out_indices`, in the dtype of the weights; under autocast in its dtype, or in that
            of the weights where class tokens, registers or tables join the tokens.

        Raises:
            ValueError: If the images do not fit the backbone, or the sizes do not fit the images.
            UserError: If `padding` is 'exact', and nothing tells the sizes of several images.
        """
        traced = is_traced(x)
        if not traced:
            self.check(x, valid_sizes)
        if self.padding or self.spans_frames:
            run = arrange if is_exported() else arrange_eagerly
            images, frames, packing = run(x, valid_sizes, num_frames, self.padding == 'exact', self.spans_frames,
                                          self.patch_size)
            if packing is not None and traced:
                prepare(self, packing)
            tokens, layout = self.stem(*pixels(images, frames))
            if packing is not None:
                tokens, layout = packing.from_batch(tokens), packing
            return self.fit_outputs(self.outputs(tokens, layout), (images.shape[2], images.shape[3]),
                                    (x.shape[2], x.shape[3]))
        return self.outputs(*self.stem(*pixels(x)))

    def check(self, x: Tensor, valid_sizes: Sequence[Size] | None = None) -> None:
        """Raises a ValueError unless images fit; `valid_sizes` need `padding='exact'`."""
        channels = self.in_channels
        if x.dim() != 4 or x.shape[1] != channels or 0 in x.shape[2:]:
            raise ValueError(f'images have shape {tuple(x.shape)}, but must have (B, {channels}, H, W), H and W at '
                             'least 1.')
        wanted = self.stem.proj.weight.dtype
        if x.dtype != wanted and not (x.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(x.device.type)):
            raise ValueError(f'images are {x.dtype}, but the weights are {wanted}: normalise and convert the images, '
                             'or convert the weights.')
        if valid_sizes is not None:
            if self.padding is None:
                raise ValueError("valid_sizes are given, but padding is None: build the backbone with padding='exact'.")
            check_sizes(valid_sizes, x)

    def forward_packed(self, images: Sequence[Tensor], num_frames: int | None = None) -> list[tuple[Output, ...]]:
        """Computes for each of several images, `(in_channels, H, W)`, what `forward` gives for it alone.

        It needs `padding='exact'`. Maps are `(1, C, ceil(H / stride), ceil(W / stride))`, without padding.
        """
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        whole = padded_size(sizes, 1)
        outs = self(torch.cat([pad_or_crop(image[None], *whole) for image in images]), sizes, num_frames)
        return [self.fit_outputs(tuple(image_of(out, i) for out in outs), whole, size) for i, size in enumerate(sizes)]

    def outputs(self, x: Tensor, grid: Layout) -> tuple[Output, ...]:
        """Computes one output for each of `out_indices` from what the `stem` computes, `(B, H * W, C)`."""
        kept = self.tokens_after(self.out_indices, x, grid)
        return tuple([self.to_output(tokens, of, part)
                      for part, (tokens, of) in zip(self.out_indices, kept, strict=True)])

    @abstractmethod
    def to_output(self, x: Tensor, grid: Layout, part: int) -> Output:
        """Returns the normed output of the tokens of a stage or block; that of packed images is zero outside them."""

    def fit_outputs(self, outs: tuple[Output, ...], size: Size, wanted: Size) -> tuple[Output, ...]:
        """Crops or zero-pads maps for images of one size, in pixels, to maps for another; vectors stay unchanged."""
        return tuple(pad_or_crop(out, *grid_size(wanted, stride)) if isinstance(out, Tensor) and out.dim() == 4 else out
                     for out, stride in zip(outs, self.strides, strict=True))

    @abstractmethod
    def frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        """Returns the parts that `frozen_stages` names."""

    def freeze(self) -> None:
        """Freezes the parts that `frozen_stages` names: no gradient, and eval mode."""
        for part in self.frozen_parts():
            part.requires_grad_(False)
            if isinstance(part, nn.Module):
                part.eval()

    def train(self, mode: bool = True) -> 'Backbone':
        """Sets the mode of all parts that are not frozen."""
        super().train(mode)
        self.freeze()
        return self
