"""Names of CPVT's parameters in other libraries: ViT and DeiT of timm and mmpretrain."""
import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from cpvt_mm.errors import UserError

from .formats import Format, rules

TOKENS = ('cls_token', 'dist_token')
TABLE = 'position_encoding.0.table'
# ViTs with these parameters differ from CPVT: register tokens, norms before the blocks or of queries and keys, and
# layer scales.
FOREIGN = re.compile(r'(^|\.)(reg_token|register_tokens|norm_pre|pre_norm|q_norm|k_norm|ls[12]|gamma[12]?)(\.|$)')


@dataclass(frozen=True)
class PlainFormat(Format):
    """The format of a ViT with a position table `(1, E + side * side, C)`: E rows for class tokens, then the grid.

    The row of a class token does not depend on the image, so loading adds it to the token. When converting back, the
    token keeps the sum and its row is 0.
    """

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        foreign = [name for name in weights if FOREIGN.search(name)]
        if foreign:
            raise UserError(f'the checkpoint is of a ViT with {foreign[0]}, which CPVT does not have: use weights of a '
                            'plain ViT, such as DeiT.')
        weights = super().to_ours(weights)
        if TABLE not in weights:
            return weights
        if weights[TABLE].dim() != 3:
            raise UserError(f"the checkpoint's position table has shape {tuple(weights[TABLE].shape)}, but must have "
                            'three dimensions, (1, rows, channels), as in a ViT.')
        table, tokens = weights[TABLE][0], [name for name in TOKENS if name in weights]
        # Some tables of timm have no rows for class tokens. No two squares differ by 1 or 2, so the number of rows
        # shows whether there are any.
        extra = next((count for count in (len(tokens), 0) if math.isqrt(len(table) - count)**2 == len(table) - count),
                     None)
        if extra is None:
            raise UserError(f"the checkpoint's position table has {len(table)} rows, {len(tokens)} for class tokens, "
                            'and the others do not form a square: use a checkpoint that was trained on square images.')
        added = {name: weights[name] + row for name, row in zip(tokens[:extra], table, strict=False)}
        side = math.isqrt(len(table) - extra)
        return {**weights, **added, TABLE: table[extra:].unflatten(0, (side, side))}

    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        encodings = [name for name in weights if name.startswith('position_encoding.')]
        table = weights[TABLE] if encodings == [TABLE] else None
        if table is None or table.dim() != 3 or table.shape[0] != table.shape[1]:
            raise UserError(f'the format {self} supports only one LearnablePE on a square grid, so the weights cannot '
                            f'be converted: they have {", ".join(encodings[:3]) or "none"}.')
        rows = [table.new_zeros(1, table.shape[-1]) for name in TOKENS if name in weights]
        return super().to_theirs({**weights, TABLE: torch.cat([*rows, table.flatten(0, 1)])[None]})


CPVT_MM = Format(('cpvt_mm',), 'CPVT', ('patch_embed.proj.weight', 'blocks.0.attn.kv.weight'))

TIMM = PlainFormat(('timm',), 'CPVT', ('patch_embed.proj.weight', 'blocks.0.attn.qkv.weight'), rules({
    'pos_embed': TABLE,
    'blocks.{i}.attn.qkv.{p}': ('blocks.{i}.attn.q.{p}', 'blocks.{i}.attn.kv.{p}'),
}))

MMPRETRAIN = PlainFormat(('mmpretrain',), 'CPVT', ('patch_embed.projection.weight', 'layers.0.attn.qkv.weight'), rules({
    'pos_embed': TABLE,
    'patch_embed.projection.{p}': 'patch_embed.proj.{p}',
    'layers.{i}.ln1.{p}': 'blocks.{i}.norm1.{p}',
    'layers.{i}.attn.qkv.{p}': ('blocks.{i}.attn.q.{p}', 'blocks.{i}.attn.kv.{p}'),
    'layers.{i}.attn.proj.{p}': 'blocks.{i}.attn.proj.{p}',
    'layers.{i}.ln2.{p}': 'blocks.{i}.norm2.{p}',
    'layers.{i}.ffn.layers.0.0.{p}': 'blocks.{i}.mlp.fc1.{p}',
    'layers.{i}.ffn.layers.1.{p}': 'blocks.{i}.mlp.fc2.{p}',
    'ln1.{p}': 'norm.{p}',
}))

PLAIN_FORMATS = (CPVT_MM, TIMM, MMPRETRAIN)
