"""The base class of both backbones: the forward pass, frozen parts, and methods that other libraries call."""
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from cpvt_mm.encodings.base import PositionEncoding
from cpvt_mm.registry import FUNCTIONS
from cpvt_mm.tokens.batch_info import Output
from cpvt_mm.tokens.grid import Size, pixels, to_output
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.sizes import grid_size, pad_or_crop
from cpvt_mm.tokens.tracing import is_exported, is_traced
from cpvt_mm.tokens.validation import check_choice, check_positive, check_rates, parse_pair
from openmmlab_tools.hub import HubMixin

from .init import init_parameters
from .init_cfg import InitCfg, PretrainedInitMixin
from .layers import PatchEmbed, WithCp
from .several_sizes import arrange, arrange_eagerly, check_sizes, image_of, padded_size, prepare

AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


Intermediate: TypeAlias = Tensor | tuple[Tensor, Tensor]  # a map, or a map and extra tokens
# Finds the number of the block in the name of a parameter. Parameters of position encodings may also have a block.
OF_BLOCK = re.compile(r'(?:position_encoding\.(?:.*?\.)?(?:convs|blocks|frequencies)|blocks)\.(-?\d+)')


def translate(backbone: nn.Module, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
    """Renames weights of other libraries before a state dict is loaded: a hook of torch, which calls the zoo."""
    in_zoo: Any = FUNCTIONS.get('translate')
    in_zoo(backbone, state_dict, prefix)


class FeatureInfo(list[dict[str, Any]]):
    """A list of timm's dicts for outputs: `num_chs`, `reduction` (stride in pixels), `module` (name), `index`."""

    def channels(self) -> list[int]:
        """Returns the channels of each output."""
        return [info['num_chs'] for info in self]

    def reduction(self) -> list[int]:
        """Returns the stride of each output in pixels."""
        return [info['reduction'] for info in self]

    def module_name(self) -> list[str]:
        """Returns the name of the stage or block of each output."""
        return [info['module'] for info in self]


def last_of(count: int, number: int) -> range:
    """Returns the indices of the last `number` of `count` outputs; raises an IndexError if there are none or fewer."""
    if not 1 <= number <= count:
        raise IndexError(f'the number of last maps is {number}, but must be from 1 to {count}.')
    return range(count - number, count)


class Backbone(PretrainedInitMixin, HubMixin, library_name='cpvt_mm',
               paper_url='https://arxiv.org/abs/2102.10882'):
    """Base class of `PyramidCPVT` and `CPVT`, which describe the arguments; the constructor checks them."""

    depths: tuple[int, ...]  # number of built blocks of each stage
    parts: str  # the submodule whose children out_indices counts
    out_channels: tuple[int, ...]
    out_indices: tuple[int, ...]
    strides: tuple[int, ...]
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
        """Initialises the weights, freezes parts, and lets `load_state_dict` translate checkpoints of other libraries.

        Subclasses call it at the end of their constructors.
        """
        self.apply(init_parameters)
        self.spans_frames = any(part.spans_frames for part in self.modules() if isinstance(part, PositionEncoding))
        self.freeze()
        self.register_load_state_dict_pre_hook(translate)  # checkpoints of models with the same backbone of a library

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None, num_frames: int | None = None
                ) -> tuple[Output, ...]:
        """Returns the outputs of images, or of the frames of clips; `to_output` describes their shapes.

        With `padding='exact'`, each image gets the same outputs as alone, zero-padded to multiples of 32 pixels. They
        are at the top left of the maps, which are zero elsewhere. A `PEG` with `ndim=3` mixes the frames of a clip;
        then each clip gets the same outputs as alone, with its frames zero-padded to a common size.

        Args:
            x: `(B, in_channels, H, W)`, in the dtype of the weights or under autocast. The frames of a clip are
                consecutive.
            valid_sizes: Height and width of each image without padding, in pixels, for `padding='exact'`. Pixels
                outside are ignored. Defaults to None: the sizes that the data preprocessor passes on
                (`cpvt_mm.DetDataPreprocessor`, `cpvt_mm.SegDataPreProcessor`). A single image, and windows of sliding
                inference, fill the batch.
            num_frames: Frames of each clip, for encodings that span frames; the last clip may be shorter. Defaults to
                None: the number that the preprocessor of `projects/video` passes on; 1 without it.

        Returns:
            One output for each of `out_indices`, in the dtype of the weights; under autocast in its dtype, or in the
            dtype of the weights where class tokens, registers or tables join the tokens.

        Raises:
            ValueError: If the images do not fit the backbone, or the sizes do not fit the images.
            UserError: If `padding` is 'exact', and the sizes of several images are unknown.
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
        dtype = self.stem.proj.weight.dtype
        if x.dtype != dtype and not (x.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(x.device.type)):
            raise ValueError(f'images are {x.dtype}, but the weights are {dtype}: normalise and convert the images, '
                             'or convert the weights.')
        if valid_sizes is not None:
            if self.padding is None:
                raise ValueError("valid_sizes are given, but padding is None: build the backbone with padding='exact'.")
            check_sizes(valid_sizes, x)

    def forward_packed(self, images: Sequence[Tensor], num_frames: int | None = None) -> list[tuple[Output, ...]]:
        """Runs several images `(in_channels, H, W)` in one pass; returns for each image the outputs of `forward` for it
        alone.

        It requires `padding='exact'`. Maps are `(1, C, ceil(H / stride), ceil(W / stride))`, without padding.
        """
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        whole = padded_size(sizes, 1)
        outs = self(torch.cat([pad_or_crop(image[None], *whole) for image in images]), sizes, num_frames)
        return [self.fit_outputs(tuple(image_of(out, i) for out in outs), whole, size) for i, size in enumerate(sizes)]

    def outputs(self, x: Tensor, grid: Layout) -> tuple[Output, ...]:
        """Computes one output for each of `out_indices` from what the `stem` computes, `(B, H * W, C)`."""
        after = self.tokens_after(self.out_indices, x, grid)
        return tuple([self.to_output(tokens, layout, part)
                      for part, (tokens, layout) in zip(self.out_indices, after, strict=True)])

    @abstractmethod
    def to_output(self, x: Tensor, grid: Layout, part: int) -> Output:
        """Returns the normed map of a stage or block. For packed images, it is zero outside each image."""

    def fit_outputs(self, outs: tuple[Output, ...], size: Size, new_size: Size) -> tuple[Output, ...]:
        """Crops or zero-pads maps for images of `size`, in pixels, to maps for `new_size`; vectors stay unchanged."""
        return tuple(
            pad_or_crop(out, *grid_size(new_size, stride)) if isinstance(out, Tensor) and out.dim() == 4 else out
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

    @property
    def feature_info(self) -> FeatureInfo:
        """Channels, stride and name of each output, in the form of timm's models."""
        outputs = zip(self.out_channels, self.strides, self.out_indices, strict=True)
        return FeatureInfo([dict(num_chs=channels, reduction=stride, module=f'{self.parts}.{index}', index=index)
                            for channels, stride, index in outputs])

    def forward_intermediates(self, x: Tensor, indices: int | Sequence[int] | None = None, norm: bool = False,
                              stop_early: bool = False, output_fmt: Literal['NCHW', 'NLC'] = 'NCHW',
                              intermediates_only: bool = False, return_prefix_tokens: bool = False
                              ) -> list[Intermediate] | tuple[Tensor, list[Intermediate]]:
        """Returns the maps after stages or blocks, as the method of timm's models does.

        Args:
            x: Images that fill the batch, `(B, in_channels, H, W)`.
            indices: A number of last stages or blocks, or indices; negative indices count from the end. Defaults to
                None: all.
            norm: Whether the final norm, or the norms after stages, apply to the maps. Defaults to False.
            stop_early: With `intermediates_only`, whether to leave out later stages or blocks. Defaults to False.
            output_fmt: 'NCHW', maps; or 'NLC', tokens `(B, H * W, C)` without extra tokens. Defaults to 'NCHW'.
            intermediates_only: Whether to return the maps only. Defaults to False.
            return_prefix_tokens: Whether each map is in a pair with its extra tokens, `(B, E, C)`. Defaults to False.

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
            self.check(x)
        count = len(list(self.get_submodule(self.parts).children()))
        last = last_of(count, indices) if isinstance(indices, int) else range(count) if indices is None else indices
        taken = [range(count)[index] for index in last]
        end = max(taken) + 1 if stop_early and intermediates_only else count
        after = self.tokens_after(range(end), *self.stem(*pixels(x)))
        maps: list[Intermediate] = []
        for index in taken:
            tokens, layout = after[index]
            tokens, grid = layout.unpack(tokens)
            tokens = self.norm_of(index)(tokens) if norm else tokens
            cells = tokens[:, grid.extra:]
            cells = to_output(cells, grid) if output_fmt == 'NCHW' else cells
            maps.append((cells, tokens[:, :grid.extra]) if return_prefix_tokens else cells)
        return maps if intermediates_only else (self.norm_of(end - 1)(after[-1][0]), maps)

    @property
    @abstractmethod
    def stem(self) -> PatchEmbed:
        """The embedding of the patches of an image."""

    @abstractmethod
    def tokens_after(self, parts: Sequence[int], x: Tensor, grid: Layout) -> list[tuple[Tensor, Layout]]:
        """Returns the tokens after some stages or blocks, and their layouts. `tokens` and `layout` come from the
        `stem`.
        """

    @abstractmethod
    def norm_of(self, part: int) -> nn.Module:
        """Returns the norm that may follow a stage or block."""

    @property
    def num_blocks(self) -> int:
        """Number of built blocks, over all stages."""
        return sum(self.depths)

    def no_weight_decay(self) -> set[str]:
        """Returns the names of tokens and position encodings, which get no weight decay in the papers."""
        return {name for name, _ in self.named_parameters()
                if name.endswith(('cls_token', 'dist_token', 'register_tokens'))
                or 'position_encoding' in name.split('.')}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Returns the layer of a parameter for layer-wise learning-rate decay, and the number of layers.

        mmpretrain's optimizer constructor also calls this method. The layers are:

        - 0: the patch embedding of the image, extra tokens, and encodings before the first block (`LearnablePE`, a
          `PEG` at -1).
        - i + 1: block i, counted over all stages, and a `PEG` after it. In a later stage, the patch embedding, and
          tokens and encodings before its first block, belong to its first block. Weights that all blocks of a stage
          share (`RelativePE`), and the norm at its end, belong to its last block.
        - `num_blocks + 1`, the last: norms of outputs, and parameters outside of the backbone.

        Args:
            param_name: The name of the parameter in the model.
            prefix: The prefix of the backbone's names in the model. Defaults to ''.
        """
        name, last = param_name.removeprefix(prefix), self.num_blocks + 1
        if not param_name.startswith(prefix) or name.startswith(('norm.', 'out_norms.', 'decoder')):
            return last, last + 1
        in_stage = re.match(r'stages\.(\d+)\.', name)
        stage = int(in_stage[1]) if in_stage else 0
        name = name[in_stage.end():] if in_stage else name
        block = -1
        if name.startswith('norm.') or (name.startswith('position_encoding.') and not name.endswith('.table')):
            block = self.depths[stage] - 1
        if in_block := OF_BLOCK.match(name):
            block = int(in_block[1])
        return sum(self.depths[:stage]) + max(block, 0 if stage else -1) + 1, last + 1
