"""Answers to other libraries: the maps and channels of a backbone, and the layer of a parameter."""
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn

from cpvt_mm.tokens.grid import pixels, to_output
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.tracing import is_traced
from cpvt_mm.tokens.validation import check_choice

from .layers import PatchEmbed

Intermediate: TypeAlias = Tensor | tuple[Tensor, Tensor]  # a map, or one with its extra tokens
# Where the name of a parameter, also of a position encoding, tells its block.
OF_BLOCK = re.compile(r'(?:position_encoding\.(?:.*?\.)?(?:convs|blocks|frequencies)|blocks)\.(-?\d+)')


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


class TimmFeatures(nn.Module):
    """The methods of timm's models that tell of their maps; a part is a stage of a pyramid, or a block."""

    depths: tuple[int, ...]  # number of built blocks of each stage
    parts: str  # the submodule whose children out_indices counts
    padding: str | None
    out_channels: tuple[int, ...]
    out_indices: tuple[int, ...]
    strides: tuple[int, ...]

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
            indices: A number of last stages or blocks, or indices; negative ones count from the end. Defaults to None:
                all.
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
        kept = self.tokens_after(range(end), *self.stem(*pixels(x)))
        found: list[Intermediate] = []
        for index in taken:
            tokens, of = kept[index]
            tokens, grid = of.unpack(tokens)
            tokens = self.norm_of(index)(tokens) if norm else tokens
            cells = tokens[:, grid.extra:]
            cells = to_output(cells, grid) if output_fmt == 'NCHW' else cells
            found.append((cells, tokens[:, :grid.extra]) if return_prefix_tokens else cells)
        return found if intermediates_only else (self.norm_of(end - 1)(kept[-1][0]), found)

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raises a ValueError unless images fit."""

    @property
    @abstractmethod
    def stem(self) -> PatchEmbed:
        """The embedding of the patches of an image."""

    @abstractmethod
    def tokens_after(self, parts: Sequence[int], x: Tensor, grid: Layout) -> list[tuple[Tensor, Layout]]:
        """Returns the tokens after some stages or blocks, and their layouts, from those of the `stem`."""

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

        `prefix` is that of the backbone's names in the model. Defaults to ''. mmpretrain calls it, too. Layers are

        - 0: the patch embedding of the image, extra tokens, and encodings before the first block (`LearnablePE`, a
          `PEG` at -1).
        - i + 1: block i, counted over all stages, and a `PEG` after it. A later stage's patch embedding, and tokens and
          encodings before its first block, belong to that block; what its blocks share (`RelativePE`), and the norm at
          its end, to its last.
        - `num_blocks + 1`, the last: norms of outputs, and what is outside of the backbone.
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
        if found := OF_BLOCK.match(name):
            block = int(found[1])
        return sum(self.depths[:stage]) + max(block, 0 if stage else -1) + 1, last + 1
