"""The base class of both backbones: common arguments, batches, `init_cfg`, and what timm's models can tell."""
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from mmengine.model import BaseModule
from torch import Tensor

from cpvt_mm.encodings import PositionEncoding, PositionEncodings
from cpvt_mm.hub import HubMixin
from openmmlab_runs.errors import UserError

from .feature_info import FeatureInfo, last_of
from .grid import grid_size, is_exported, is_traced, pad_or_crop, to_tokens
from .initialization import PRETRAINED_KEYS, InitCfg, only_warnings, split_init_cfg, warn_if_missing
from .layers import WithCp
from .load import check_filled, fit_encodings, load_pretrained
from .padding import PAD_SIZE_DIVISOR, Output, Size, Told, check_sizes, encode_in_groups, told_about
from .validation import check_choice, check_names, check_positive, check_rates, parse_pair

AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Backbone(BaseModule, HubMixin):
    """Base class of both backbones: `encode` is for images that fill the batch, `forward` for all batches.

    The constructor checks the arguments that both backbones have; see there for their meaning. With
    `init_cfg=dict(type='Pretrained', ...)`, `init_weights` loads all weights from a checkpoint of any known format.
    """

    init_cfg: InitCfg
    out_channels: tuple[int, ...]
    out_indices: tuple[int, ...]
    strides: tuple[int, ...]
    parts: str  # the submodule whose children out_indices counts

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
        for cfg in split_init_cfg(init_cfg)[0]:
            warn_if_missing(cfg.get('checkpoint'))

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | Literal['told'] | None = 'told',
                num_frames: int | Literal['told'] = 'told') -> tuple[Output, ...]:
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
            valid_sizes: Height and width of each image without padding, in pixels, for `padding='exact'`. Pixels
                outside are ignored. None: the images fill the batch. Defaults to 'told': the sizes that the data
                preprocessors of this package tell (`cpvt_mm.DetDataPreprocessor`, `cpvt_mm.SegDataPreProcessor`,
                `cpvt_mm.TrackDataPreprocessor`). Windows of sliding inference fill the batch.
            num_frames: Frames of each clip; the last clip may be shorter. No effect if no position encoding spans
                frames. Defaults to 'told': the number that `cpvt_mm.TrackDataPreprocessor` tells. Without it, each
                image is a clip.

        Returns:
            One output for each of `out_indices`, in the dtype of the weights; under autocast in its dtype, or in
            that of the weights where class tokens, registers or tables join the tokens.

        Raises:
            ValueError: If the images do not fit the backbone, or the sizes do not fit the images.
            TypeError: If the images are no tensor.
            UserError: If `padding` is 'exact', and nothing tells the sizes of several images.
        """
        if not is_traced(x):
            self._check_images(x)
            if self.padding is None and valid_sizes is not None and not isinstance(valid_sizes, str):
                raise ValueError("valid_sizes are given, but padding is None: build the backbone with padding='exact'.")
        if self.padding is None and not self.spans_frames:
            return self.encode(x)
        told = Told() if is_exported() else told_about(x)
        sizes = self._sizes(x, valid_sizes, told)
        frames = self._frames(num_frames, told)
        # Traced code must not branch on the batch size, so it assumes that all clips are complete.
        if sizes is None and not is_traced(x) and len(x) % frames:
            sizes = [(x.shape[2], x.shape[3])] * len(x)
        return encode_in_groups(self.encode, self.fit_outputs, x, sizes, frames,
                                multiple=PAD_SIZE_DIVISOR if self.padding else 1)

    @property
    @abstractmethod
    def spans_frames(self) -> bool:
        """Whether a position encoding mixes the frames of a clip."""

    @abstractmethod
    def encode(self, x: Tensor, num_frames: int = 1) -> tuple[Output, ...]:
        """Returns the outputs of images `(B, in_channels, H, W)` that fill the batch, in clips of `num_frames` frames.
        """

    def fit_outputs(self, outs: tuple[Output, ...], size: Size, wanted: Size) -> tuple[Output, ...]:
        """Crops or zero-pads maps for images of one size, in pixels, to maps for another; vectors stay unchanged."""
        return tuple(pad_or_crop(out, *grid_size(wanted, stride)) if isinstance(out, Tensor) and out.dim() == 4 else out
                     for out, stride in zip(outs, self.strides, strict=True))

    def _check_images(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f'images are a {type(x).__name__}, but must be a tensor (B, {self.in_channels}, H, W): '
                            'normalise an array (H, W, C), and give torch.from_numpy(array).permute(2, 0, 1)[None].')
        if x.dim() != 4 or x.shape[1] != self.in_channels or 0 in x.shape[2:]:
            raise ValueError(f'images have shape {tuple(x.shape)}, but must have (B, {self.in_channels}, H, W), H and '
                             'W at least 1.')
        wanted = next(self.parameters()).dtype
        if x.dtype != wanted and not (x.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(x.device.type)):
            raise ValueError(f'images are {x.dtype}, but the weights are {wanted}: normalise and convert the images, '
                             'or convert the weights.')

    def _sizes(self, x: Tensor, valid_sizes: Sequence[Size] | Literal['told'] | None, told: Told
               ) -> Sequence[Size] | None:
        """Returns the sizes of images without padding; None if the images fill the batch, or `padding` is None."""
        if self.padding is None or valid_sizes is None:
            return None
        if not isinstance(valid_sizes, str):
            check_sizes(valid_sizes, x)
            sizes: Sequence[Size] | None = valid_sizes
        elif told.lost:
            raise UserError("padding='exact' needs the size of each image, but the batch does not carry it: use "
                            'data_preprocessor.type cpvt_mm.DetDataPreprocessor or cpvt_mm.SegDataPreProcessor, or '
                            'pass valid_sizes to the backbone (None if the images fill the batch).')
        else:
            sizes = told.sizes
        return None if sizes is None or all(tuple(size) == tuple(x.shape[2:]) for size in sizes) else sizes

    def _frames(self, num_frames: int | Literal['told'], told: Told) -> int:
        """Returns the number of frames of a clip; 1 if no position encoding spans frames."""
        if num_frames != 'told':
            check_positive('num_frames', num_frames)
            return num_frames if self.spans_frames else 1
        if self.spans_frames and told.lost:
            warnings.warn(f'PEG(ndim=3) of {type(self).__name__} treats each image as a clip of its own, because the '
                          'batch does not carry the number of frames per clip: use data_preprocessor.type '
                          'cpvt_mm.TrackDataPreprocessor, or pass num_frames.', stacklevel=1)
        return told.frames if self.spans_frames else 1

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Number of built blocks, over all stages."""

    @abstractmethod
    def block_of(self, name: str) -> int:
        """Returns a parameter's block, counted over all stages: -1 before the first, `num_blocks` after the last block.
        """

    def fuse(self) -> 'Backbone':
        """Folds parameters for inference, in place: the residual of each `PEG` goes into its kernel.

        Outputs are equal but for rounding: in float32 to 1e-6 of their size. A fused backbone must not be trained, and
        its state dict is not for other backbones. Fuse before you convert weights to float16 or bfloat16, and do not
        quantize the fused kernels to int8: the weight of the residual is far larger than those of the neighbours.

        Returns:
            The backbone.
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

    @property
    def feature_info(self) -> FeatureInfo:
        """Channels, stride and name of each output, in the form of timm's models."""
        outputs = zip(self.out_channels, self.strides, self.out_indices, strict=True)
        return FeatureInfo([dict(num_chs=channels, reduction=stride, module=f'{self.parts}.{index}', index=index)
                            for channels, stride, index in outputs])

    def forward_intermediates(self, x: Tensor, indices: int | Sequence[int] | None = None, norm: bool = False,
                              stop_early: bool = False, output_fmt: Literal['NCHW', 'NLC'] = 'NCHW',
                              intermediates_only: bool = False) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Returns the maps after stages or blocks, as the method of timm's models does.

        Args:
            x: Images that fill the batch, `(B, in_channels, H, W)`.
            indices: The built stages or blocks: a number of last ones, or indices. Negative ones count from the end.
                Defaults to None: all.
            norm: Whether the final norm, or the norms after stages, apply to the maps. Defaults to False.
            stop_early: Whether to leave out later stages or blocks, if there are `intermediates_only`. Defaults to
                False.
            output_fmt: 'NCHW', maps `(B, C, H, W)`; or 'NLC', tokens `(B, H * W, C)` without extra tokens. Defaults to
                'NCHW'.
            intermediates_only: Whether to return the maps only. Defaults to False.

        Returns:
            The tokens after the last stage or block and its norm, `(B, E + H * W, C)`, and a list of the maps.

        Raises:
            ValueError: If `output_fmt` is unknown, the images do not fit the backbone, or `padding` is 'exact'.
            IndexError: If there is no such stage or block.
        """
        check_choice('output_fmt', output_fmt, ('NCHW', 'NLC'))
        if self.padding:
            raise ValueError(f'padding is {self.padding!r}, but forward_intermediates takes images that fill the '
                             'batch: build the backbone with padding=None.')
        if not is_traced(x):
            self._check_images(x)
        count = len(list(self.get_submodule(self.parts).children()))
        last = last_of(count, indices) if isinstance(indices, int) else range(count) if indices is None else indices
        taken = [range(count)[index] for index in last]
        end = max(taken) + 1 if stop_early and intermediates_only else count
        final, maps = self.run_parts(x, end, norm)
        found = [maps[index] if output_fmt == 'NCHW' else to_tokens(maps[index]) for index in taken]
        return found if intermediates_only else (final, found)

    @abstractmethod
    def run_parts(self, x: Tensor, count: int, norm: bool) -> tuple[Tensor, list[Tensor]]:
        """Returns the final tokens `(B, E + H * W, C)`, and the maps `(B, C, H, W)` after the first `count` parts."""

    def check_weights(self, weights: dict[str, Tensor], what: str) -> None:
        """Raises a UserError, which begins with `what`, unless weights have all tensors of the backbone.

        Position encodings may have other sizes, which their `fit_weights` changes. Runs check `load_from` so.
        """
        wanted = self.state_dict()
        fitting = {name: weights[name] for name in wanted if name in weights}
        fit_encodings(self, fitting)
        check_filled(fitting, wanted, [name for name in wanted if name not in fitting], what, self)

    def no_weight_decay(self) -> set[str]:
        """Returns the names of parameters that get no weight decay in the papers: tokens and position encodings.

        It is for optimizers of timm. Configs of this package say the same in `paramwise_cfg`.
        """
        return {name for name, _ in self.named_parameters()
                if name in ('cls_token', 'dist_token', 'register_tokens') or 'position_encoding' in name.split('.')}

    def init_weights(self) -> None:
        """Initialises as mmengine does, but loads checkpoints with `load_pretrained`, after all other initialisation.

        mmengine writes its note about each parameter to the log file only. Without a log file, there are no notes.

        Raises:
            UserError: If the checkpoint lacks weights of the backbone, or `load_pretrained` does not know a key of
                `init_cfg`.
        """
        if self.is_init:
            with only_warnings():
                super().init_weights()  # warns
            return
        init_cfg = self.init_cfg
        pretrained, self.init_cfg = split_init_cfg(init_cfg)
        try:
            with only_warnings():
                super().init_weights()
        finally:
            self.init_cfg = init_cfg
        for cfg in pretrained:
            check_names('a key of an init_cfg of type Pretrained', cfg, PRETRAINED_KEYS, UserError)
            if 'checkpoint' not in cfg:
                raise UserError(f'init_cfg is {cfg}, but must name a checkpoint: a path or a URL.')
            load_pretrained(self, **{key: value for key, value in cfg.items() if key != 'type'})

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Returns the layer of a parameter, for layer-wise learning-rate decay.

        The name and signature are those of mmpretrain, whose `LearningRateDecayOptimWrapperConstructor` also calls it.

        - 0: class and distillation tokens, registers, the patch embedding of the image, and encodings before the first
          block (`LearnablePE`, a `PEG` at -1).
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
        block = self.block_of(param_name[len(prefix):]) if param_name.startswith(prefix) else self.num_blocks
        return block + 1, self.num_blocks + 2


def block_in_stage(position_encoding: PositionEncodings, name: str) -> int:
    """Returns the block of a parameter, by its name in a stage or the plain backbone; -1 if it precedes all blocks."""
    part, _, rest = name.partition('.')
    if part == 'blocks':
        return int(rest.partition('.')[0])
    return position_encoding.block_of(rest) if part == 'position_encoding' else -1
