"""The base class of both backbones: what is done with a batch, common arguments, weights, frozen parts, layers."""
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from cpvt_mm.encodings import PositionEncoding
from cpvt_mm.hub import HubMixin

from .grid import grid_size, pad_or_crop
from .interfaces import TimmFeatures, layer_of
from .layers import WithCp
from .load import InitCfg, PretrainedInitMixin, check_weights, init_parameters
from .padding import Output, Size, check_images, in_groups, sizes_and_frames
from .validation import check_choice, check_positive, check_rates, parse_pair


class Backbone(TimmFeatures, PretrainedInitMixin, HubMixin):
    """Base class of both backbones; see there for the arguments, which the constructor checks."""

    depths: tuple[int, ...]  # number of built blocks of each stage
    spans_frames: bool  # whether a position encoding mixes the frames of a clip

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

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None, num_frames: int | None = None
                ) -> tuple[Output, ...]:
        """Computes the outputs of images, or of the frames of clips, in the shapes that `forward_images` gives.

        With `padding='exact'`, each image gets the same outputs as alone, zero-padded to multiples of 32 pixels. They
        are at the top left of the maps, which are zero elsewhere. A `PEG` with `ndim=3` mixes the frames of a clip;
        then each clip gets the same outputs as alone, with its frames zero-padded to a common size.

        Args:
            x: `(B, in_channels, H, W)`, in the dtype of the weights or under autocast. The frames of a clip are
                consecutive.
            valid_sizes: Height and width of each image without padding, in pixels, for `padding='exact'`. Pixels
                outside are ignored. Defaults to None: the sizes that the data preprocessor tells
                (`cpvt_mm.DetDataPreprocessor`, `cpvt_mm.SegDataPreProcessor`, `cpvt_mm.TrackDataPreprocessor`); a
                single image, and windows of sliding inference, fill the batch.
            num_frames: Frames of each clip, for encodings that span frames; the last clip may be shorter. Defaults to
                None: the number that `cpvt_mm.TrackDataPreprocessor` tells; 1 without it.

        Returns:
            One output for each of `out_indices`, in the dtype of the weights; under autocast in its dtype, or in that
            of the weights where class tokens, registers or tables join the tokens.

        Raises:
            ValueError: If the images do not fit the backbone, or the sizes do not fit the images.
            TypeError: If the images are no tensor.
            UserError: If `padding` is 'exact', and nothing tells the sizes of several images.
        """
        check_images(self, x, valid_sizes)
        if self.padding is None and not self.spans_frames:
            return self.forward_images(x)
        sizes, frames = sizes_and_frames(self, x, valid_sizes, num_frames)
        return in_groups(self, x, sizes, frames)

    @abstractmethod
    def forward_images(self, x: Tensor, num_frames: int = 1) -> tuple[Output, ...]:
        """Returns the outputs of images `(B, in_channels, H, W)` that fill the batch, in clips of `num_frames`."""

    def fit_outputs(self, outs: tuple[Output, ...], size: Size, wanted: Size) -> tuple[Output, ...]:
        """Crops or zero-pads maps for images of one size, in pixels, to maps for another; vectors stay unchanged."""
        return tuple(pad_or_crop(out, *grid_size(wanted, stride)) if isinstance(out, Tensor) and out.dim() == 4 else out
                     for out, stride in zip(outs, self.strides, strict=True))

    @property
    def num_blocks(self) -> int:
        """Number of built blocks, over all stages."""
        return sum(self.depths)

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Returns the layer of a parameter, counted from 0 (see `layer_of`), and the number of layers.

        This is `num_blocks + 2`. `prefix` is that of the backbone's names in the model. Defaults to ''. mmpretrain
        calls it, too.
        """
        number = self.num_blocks + 2
        inside = param_name.startswith(prefix)
        return layer_of(param_name.removeprefix(prefix), self.depths) if inside else number - 1, number

    def check_weights(self, weights: dict[str, Tensor], what: str) -> None:
        """Raises a UserError unless weights fit, see `load.check_weights`; `what` begins its message."""
        check_weights(self, weights, what)

    def fuse(self) -> 'Backbone':
        """Folds the residual of each `PEG` into its kernel for inference, in place; returns the backbone.

        Float32 outputs are equal to 1e-6 of their size. A fused backbone must not be trained, and its state dict is not
        for others. Fuse before converting weights to float16 or bfloat16, and do not quantize fused kernels to int8:
        the weight of the residual is far larger than the others.
        """
        for module in self.modules():
            if isinstance(module, PositionEncoding):
                module.fuse()
        return self

    @abstractmethod
    def freeze(self) -> None:
        """Freezes the parts that `frozen_stages` names."""

    def train(self, mode: bool = True) -> 'Backbone':
        """Sets the mode of all parts that are not frozen."""
        super().train(mode)
        self.freeze()
        return self
