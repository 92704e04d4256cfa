"""The plain CPVT: DeiT with a conditional position encoding instead of a table; also DINOv2 and DINOv3."""
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal

import torch
from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import Tensor, nn

from cpvt_mm.archs import PLAIN_ARCHS, PlainArch, parse_arch
from cpvt_mm.encodings.base import PositionEncodings, StageSpec, build_position_encodings
from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.batch_info import Output
from cpvt_mm.tokens.grid import Grid, Size, to_map, to_output, to_tokens
from cpvt_mm.tokens.packing import Layout
from cpvt_mm.tokens.sizes import grid_size, pad_or_crop
from cpvt_mm.tokens.validation import check_choice, check_frozen_stages, parse_indices

from .backbone import Backbone
from .init_cfg import InitCfg
from .layers import Block, BlockSpec, PatchEmbed, WithCp, recomputed
from .pvt_parts import MLPS, LayerScale, make_tokens, prepend

OUT_TYPES = ('featmap', 'cls_token', 'gap', 'raw')


# Also registered in mmengine's root: every OpenMMLab library finds the plain name once this package is imported.
@MMENGINE_MODELS.register_module(force=True)
@MODELS.register_module()
class CPVT(Backbone):
    """Plain vision transformer with conditional position encodings (CPVT, arXiv 2102.10882).

    It has a patch embedding, blocks of constant width, and a LayerNorm after the last block. With the position encoding
    `dict(type='LearnablePE')` it is DeiT (arXiv 2012.12877); for DINOv2 and DINOv3 see `create_backbone`. Images may
    have any size: sides are zero-padded on the right and at the bottom to a multiple of the patch size.
    `PyramidCPVT` describes the attributes, the errors, and the arguments that are not listed here.

    Args:
        arch: 'tiny', 'small', 'base', 'large', 'giant', 'small-plus', 'huge-plus', or a dict of the fields of
            `PlainArch`: all sizes, or a `name` and what differs from it, as `dict(name='small', patch_size=14)`.
            Defaults to 'tiny'.
        cls_token: Whether to put a class token before the patches. Position encodings skip it. Defaults to True.
        out_indices: Blocks whose output is returned, in increasing order; negative indices count from the end. Later
            blocks are not built. Defaults to (-1,).
        out_type: 'featmap' (patches), 'cls_token', 'gap' (mean of the patches) or 'raw' (all tokens); see
            `to_output`. Defaults to 'featmap'.
        position_encoding: None, a config, or a list of configs that are combined. An encoding after the last block
            changes patches only: with 'cls_token' it has no effect. Defaults to `dict(type='PEG')`.
        drop_rate: Dropout of the encoded tokens before the first block, and after projections. Defaults to 0.
        frozen_stages: -1 freezes nothing, 0 the patch embedding, the tokens, and the position encoding, which all
            blocks share; n >= 1 also the first n blocks, and with the last block the final norm. Frozen parts get no
            gradient and stay in eval mode. Defaults to -1.
    """

    parts = 'blocks'
    arch_fields = tuple(field.name for field in fields(PlainArch))

    def __init__(self, arch: str | dict[str, Any] = 'tiny', img_size: int | tuple[int, int] = 224,
                 in_channels: int = 3, cls_token: bool = True, out_indices: Sequence[int] = (-1,),
                 out_type: Literal['featmap', 'cls_token', 'gap', 'raw'] = 'featmap',
                 position_encoding: dict[str, Any] | Sequence[dict[str, Any]] | None = dict(type='PEG'),
                 drop_rate: float = 0., attn_drop_rate: float = 0., drop_path_rate: float = 0.,
                 frozen_stages: int = -1, with_cp: WithCp = False, padding: Literal['exact'] | None = None,
                 init_cfg: InitCfg = None) -> None:
        super().__init__(in_channels, img_size, drop_rate, attn_drop_rate, drop_path_rate, with_cp, padding, init_cfg)
        spec = parse_arch(arch, PlainArch, PLAIN_ARCHS)
        check_choice('cls_token', cls_token, (False, True))
        check_choice('out_type', out_type, OUT_TYPES)
        if out_type == 'cls_token' and not cls_token:
            raise ValueError("out_type is 'cls_token', but cls_token is False: set it to True, or out_type to 'gap'.")
        indices = parse_indices(out_indices, spec.depth, 'blocks')
        depth = indices[-1] + 1
        check_frozen_stages(frozen_stages, depth, 'blocks')

        self.out_indices = indices
        self.out_type = out_type
        self.patch_size = spec.patch_size
        self.norm_eps = spec.norm_eps
        self.frozen_stages = frozen_stages
        self.depths = (depth,)
        self.out_channels = (spec.embed_dims,) * len(indices)
        self.strides = (spec.patch_size,) * len(indices)

        self.patch_embed = PatchEmbed(in_channels, spec.embed_dims, spec.patch_size, norm_eps=None)
        self.num_extra_tokens = cls_token + spec.dist_token + spec.num_register_tokens
        self.cls_token, self.dist_token, self.register_tokens = (
            make_tokens(count, spec.embed_dims) if count else None
            for count in (cls_token, spec.dist_token, spec.num_register_tokens))
        self.drop = nn.Dropout(drop_rate)
        self.position_encoding = build_position_encodings(position_encoding, StageSpec(
            spec.embed_dims, spec.num_heads, depth, grid=grid_size(self.img_size, spec.patch_size)))
        blocks = BlockSpec(spec.embed_dims, spec.num_heads, spec.mlp_ratio, norm_eps=spec.norm_eps,
                           drop_rate=drop_rate, attn_drop_rate=attn_drop_rate, with_cp=with_cp,
                           make_mlp=MLPS[spec.mlp_mode],
                           make_scale=partial(LayerScale, spec.embed_dims, spec.layer_scale) if spec.layer_scale
                           else None)
        # The rates depend on the whole depth, even if out_indices omits blocks.
        self.blocks = nn.ModuleList(
            Block(i, blocks, drop_path_rate * i / max(spec.depth - 1, 1)) for i in range(depth))
        self.norm = nn.LayerNorm(spec.embed_dims, eps=spec.norm_eps) if depth == spec.depth else nn.Identity()
        self.finish()

    @property
    def stem(self) -> PatchEmbed:
        return self.patch_embed

    def tokens_after(self, parts: Sequence[int], x: Tensor, grid: Layout) -> list[tuple[Tensor, Layout]]:
        encodings = self.position_encoding
        x = encodings.tokens(x, -1, grid)
        x, layout = prepend(self.extra_tokens, self.num_extra_tokens, x, grid)
        x = self.drop(x)
        after = []
        for index, block in zip(range(max(parts) + 1), self.blocks, strict=False):
            x = self.run_block(block, x, layout, encodings)
            if index in parts:
                after.append((x, layout))
        return after

    def run_block(self, block: Any, x: Tensor, layout: Layout, encodings: PositionEncodings) -> Tensor:
        """Applies a `Block` to tokens, and the encodings that follow it."""
        x = recomputed(block, x, layout, encodings) if self.with_cp is True else block(x, layout, encodings)
        return encodings.tokens(x, block.index, layout) if block.index in encodings.positions else x  # such as a PEG

    @property
    def extra_tokens(self) -> list[nn.Parameter]:
        """The learnt tokens before the patches: class token, distillation token, registers, as far as there are."""
        return [tokens for tokens in (self.cls_token, self.dist_token, self.register_tokens) if tokens is not None]

    def norm_of(self, part: int) -> nn.Module:
        return self.norm

    def to_output(self, x: Tensor, grid: Layout, part: int) -> Output:
        """Returns the output of the tokens of block `part`, `(B, E + h * w, C)` or packed; it depends on `out_type`.

        With h = ceil(H / patch_size), w = ceil(W / patch_size) and E extra tokens (class token, distillation token,
        registers, in this order):

        - 'featmap': `(B, C, h, w)`.
        - 'cls_token' and 'gap': `(B, C)`; with `dist_token` a pair of this and the distillation token, `(B, C)`.
        - 'raw': `(B, E + h * w, C)`.
        """
        x, whole = grid.unpack(self.norm(x) if part == self.num_blocks - 1 else x)
        patches = x[:, whole.extra:]
        if self.out_type == 'raw':
            return x
        if self.out_type == 'featmap':
            return to_output(patches, whole)
        pooled = x[:, 0] if self.out_type == 'cls_token' else grid.mean(patches)
        return pooled if self.dist_token is None else (pooled, x[:, int(self.cls_token is not None)])

    def fit_outputs(self, outs: tuple[Output, ...], size: Size, new_size: Size) -> tuple[Output, ...]:
        if self.out_type != 'raw':
            return super().fit_outputs(outs, size, new_size)
        grid, extra = Grid(*grid_size(size, self.patch_size)), self.num_extra_tokens
        sequences = [out for out in outs if isinstance(out, Tensor)]
        maps = [pad_or_crop(to_map(x[:, extra:], grid), *grid_size(new_size, self.patch_size)) for x in sequences]
        return tuple(torch.cat([x[:, :extra], to_tokens(m)], dim=1) for x, m in zip(sequences, maps, strict=True))

    def frozen_parts(self) -> list[nn.Module | nn.Parameter]:
        if self.frozen_stages < 0:
            return []
        norm = [self.norm] if self.frozen_stages == len(self.blocks) else []
        return [*self.extra_tokens, self.patch_embed, self.position_encoding, self.drop,
                *self.blocks[:self.frozen_stages], *norm]
