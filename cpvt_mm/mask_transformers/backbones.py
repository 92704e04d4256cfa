"""The backbones of plain mask transformers, which return queries with their masks."""
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpvt_mm.encodings.base import PositionEncodings, StageSpec, build_position_encodings
from cpvt_mm.models.cpvt import CPVT
from cpvt_mm.models.layers import Block, BlockSpec
from cpvt_mm.models.pvt_parts import LayerScale, prepend
from cpvt_mm.models.several_sizes import known_sizes
from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.batch_info import Output
from cpvt_mm.tokens.grid import Size
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.sizes import grid_size

from .masked_attention import MaskedEncodings, attention_mask
from .predicting import MaskPredictor, extend, in_batch


@MODELS.register_module()
class PlainMaskTransformer(CPVT):
    """A ViT with queries in its last blocks, each of which predicts a mask (EoMT, arXiv 2503.19108, section 3.2).

    `forward` returns pairs of the normed queries, `(B, num_queries, C)`, and the logits of their masks, `(B,
    num_queries, h, w)`. Masks have a stride of 4 pixels if patches have 16, and of 7 if patches have 14. In eval mode
    it returns one pair. In training, it also returns a pair before each block with queries, and `MaskAnnealingHook`
    masks the attention of these blocks. An `init_cfg` with weights of a ViT needs `allow_missing='decoder'`.

    Args:
        num_queries: Number of queries. Defaults to 100.
        num_query_blocks: Number of last blocks that have queries. Defaults to 4.
        backbone: Arguments of `CPVT`, except `out_indices`, `out_type` and `drop_path_rate`.

    Raises:
        ValueError: If an argument is one of these three, or a value does not fit.
    """

    fixed: tuple[str, ...] = ('out_indices', 'out_type', 'drop_path_rate')

    def __init__(self, num_queries: int = 100, num_query_blocks: int = 4, **backbone: Any) -> None:
        for name in {*self.fixed} & {*backbone}:
            raise ValueError(f'{name} is {backbone[name]!r}, but a {type(self).__name__} does not accept it: remove '
                             'it.')
        super().__init__(**backbone)
        if 'out_indices' in self.fixed and num_query_blocks not in range(1, self.num_blocks):
            raise ValueError(f'num_query_blocks is {num_query_blocks!r}, but must be from 1 to {self.num_blocks - 1}.')
        self.decoder = MaskPredictor(self.out_channels[0], self.patch_size, num_queries)
        self.mask_probs = [0.] * num_query_blocks  # of masked attention in training

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Returns the layer of a parameter, and the number of layers, as the authors of EoMT count them.

        A layer is a block. The first layer includes the patch embedding and tokens, and the last layer the norm, the
        queries and everything outside of the backbone. With `layer_decay_rate=0.8`, the last of 12 blocks has the full
        learning rate, and the first block has 0.8**11 times this rate.
        """
        layer, number = super().get_layer_depth(param_name, prefix)
        return min(max(layer - 1, 0), number - 3), number - 2

    def forward(self, x: Tensor, valid_sizes: Sequence[Size] | None = None, num_frames: int | None = None
                ) -> tuple[Output, ...]:
        """Returns the pairs that the class describes. `CPVT.forward` describes the arguments.

        If the sizes of images are known, the cells of a mask outside of its image repeat the cells at its border, so
        they do not depend on the padding of the batch.
        """
        outs = super().forward(x, valid_sizes, num_frames)
        sizes, whole = known_sizes(x, valid_sizes) if self.padding else None, (x.shape[2], x.shape[3])
        if sizes is None:
            return self.fit_outputs(outs, whole, whole)
        return tuple((queries, self.continued(masks, sizes)) for queries, masks in outs)

    def continued(self, masks: Tensor, sizes: Sequence[Size]) -> Tensor:
        """Replaces the cells of masks outside of images with given heights and widths by the nearest cells inside."""
        images = []
        for image, size in zip(masks.split(1), sizes, strict=True):
            rows, columns = self.cells_of(size)
            images.append(extend(image[:, :, :rows, :columns], masks.shape[2], masks.shape[3]))
        return torch.cat(images)

    def cells_of(self, size: Size) -> Size:
        """Returns rows and columns of the masks of an image with a height and width in pixels."""
        return grid_size((size[0] * self.decoder.scale, size[1] * self.decoder.scale), self.patch_size)

    def outputs(self, x: Tensor, grid: Layout) -> tuple[Output, ...]:
        first = self.num_blocks - len(self.mask_probs)
        (x, layout), = self.tokens_after([first - 1], x, grid)
        return self.predict(x, layout, self.blocks[first:], self.position_encoding, self.norm)

    def predict(self, x: Tensor, layout: Layout, blocks: Iterable[Any], encodings: PositionEncodings, norm: nn.Module
                ) -> tuple[Output, ...]:
        """Runs blocks with queries, from the tokens of a layout; returns the outputs of `forward`."""
        outs: tuple[Output, ...] = ()
        queries = self.decoder.queries
        x, layout = prepend([queries], layout.extra + queries.shape[1], x, layout)
        for block, prob in zip(blocks, self.mask_probs, strict=True):
            acting = encodings
            if self.training:
                predicted = self.decoder(norm(x), layout)
                outs += in_batch(predicted, layout),
                acting = MaskedEncodings(encodings, [
                    attention_mask(masks, grid, prob) for (_, masks), grid in zip(predicted, layout.grids, strict=True)
                ]) if prob else encodings
            x = self.run_block(block, x, layout, acting)
        return *outs, in_batch(self.decoder(norm(x), layout), layout)

    def fit_outputs(self, outs: tuple[Output, ...], size: Size, new_size: Size) -> tuple[Output, ...]:
        return tuple((out[0], extend(out[1], *self.cells_of(new_size))) for out in outs)


@MODELS.register_module()
class FrozenMaskTransformer(PlainMaskTransformer):
    """A frozen ViT, and a trained decoder of blocks with queries (PMT, arXiv 2603.25398).

    The decoder is as wide as the ViT and has rotary encodings. Its input is the sum of the tokens after several blocks
    of the ViT, each after a norm and an MLP. `forward` returns the same pairs as in `PlainMaskTransformer`.

    Args:
        num_queries: Number of queries. Defaults to 100.
        num_query_blocks: Number of blocks of the decoder. Defaults to 6.
        mlp_ratio: Hidden channels of the decoder's MLPs, as a multiple of the width. Defaults to 4.
        out_indices: Blocks of the ViT whose tokens the decoder reads. Defaults to (2, 5, 8, 11).
        backbone: Arguments of `CPVT`, except `out_type`, `drop_path_rate` and `frozen_stages`.

    Raises:
        ValueError: If an argument is one of these three, or a value does not fit.
    """

    fixed = ('out_type', 'drop_path_rate', 'frozen_stages')

    def __init__(self, num_queries: int = 100, num_query_blocks: int = 6, mlp_ratio: int = 4,
                 out_indices: Sequence[int] = (2, 5, 8, 11), **backbone: Any) -> None:
        super().__init__(num_queries, num_query_blocks, out_indices=out_indices, **backbone)
        first: Any = self.blocks[0]
        dims, heads, grid = self.out_channels[0], first.attn.num_heads, grid_size(self.img_size, self.patch_size)
        spec = BlockSpec(dims, heads, mlp_ratio, norm_eps=1e-5, make_scale=lambda: LayerScale(dims, 1.))
        self.decoder_norms = nn.ModuleList(nn.BatchNorm1d(dims) for _ in self.out_indices)
        self.decoder_mlps = nn.ModuleList(nn.Sequential(
            nn.Linear(dims, dims // 2), nn.GELU(), nn.Linear(dims // 2, dims)) for _ in self.out_indices)
        self.decoder_scales = nn.ModuleList(LayerScale(dims, 1.) for _ in self.out_indices)
        self.decoder_blocks = nn.ModuleList(Block(index, spec) for index in range(num_query_blocks))
        self.decoder_encoding = build_position_encodings(
            dict(type='RotaryPE', form='dinov3'), StageSpec(dims, heads, num_query_blocks, grid))
        self.decoder_norm = nn.LayerNorm(dims)
        self.frozen_stages = self.num_blocks
        self.freeze()

    def outputs(self, x: Tensor, grid: Layout) -> tuple[Output, ...]:
        after, laterals = self.tokens_after(self.out_indices, x, grid), []
        for (x, _), norm, mlp, scale in zip(after, self.decoder_norms, self.decoder_mlps, self.decoder_scales,
                                            strict=True):
            x = norm(self.norm(x).flatten(0, 1)).view_as(x)
            laterals.append(scale(x + mlp(x)))
        return self.predict(torch.stack(laterals).sum(0), after[0][1], self.decoder_blocks, self.decoder_encoding,
                            self.decoder_norm)
