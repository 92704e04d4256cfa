"""DeiT (arXiv 2012.12877), the plain ViT whose sizes are those of CPVT; and what the formats of all ViTs share."""
from dataclasses import dataclass

import torch
from torch import Tensor

from .family import Family, Member, PlainArch, timm_copy
from .renaming import Format, block, join_table, split_table

ARCHS = {
    'tiny': PlainArch(embed_dims=192, depth=12, num_heads=3),
    'small': PlainArch(embed_dims=384, depth=12, num_heads=6),
    'base': PlainArch(embed_dims=768, depth=12, num_heads=12),
    'large': PlainArch(embed_dims=1024, depth=24, num_heads=16),
}


def _deit(arch: str, file: str) -> Member:
    # The first URL is the authors'; the second is timm's copy of their weights.
    return Member('CPVT', arch, dict(position_encoding=dict(type='LearnablePE')), files={
        f'https://dl.fbaipublicfiles.com/deit/deit_{arch}_patch16_224-{file}.pth': 'timm',
        timm_copy(f'deit_{arch}_patch16_224.fb_in1k'): 'timm'})


MEMBERS = {
    **{f'cpvt-{arch}': Member('CPVT', arch) for arch in ('tiny', 'small', 'base')},
    'deit-tiny': _deit('tiny', 'a1311bcf'),
    'deit-small': _deit('small', 'cd65a155'),
    'deit-base': _deit('base', 'b5f2ef4d'),
}

TOKENS = ('cls_token', 'dist_token')
TABLE = 'position_encoding.0.table'
REGISTERS = 'register_tokens'
MASK = '_mask'  # after the name of a bias: where it is 0, the bias counts as 0
BLOCK = 'blocks.{i}.'  # here
STEM = 'patch_embed.proj.weight'
# ViTs with these parameters differ from CPVT: norms before the blocks, of queries and keys, or of class tokens alone.
# The layer scales of mmpretrain have no rules.
FOREIGN = r'(^|\.)(norm_pre|pre_norm|q_norm|k_norm|cls_norm|gamma[12])(\.|$)'


@dataclass(frozen=True)
class PlainFormat(Format):
    """The format of a ViT, with or without a position table.

    The table is `(1, E + side * side, C)`: E rows for class tokens, then the grid. Loading adds the row of a class
    token to the token; when converting back, the token keeps the sum and its row is 0.
    """
    encoding: dict[str, str] | None = None  # a rotary one; with it, files may leave out biases of attention that are 0
    bare_with: str | None = None  # one of our names: in models with it, tables have no rows for class tokens
    foreign: str = FOREIGN + r'|(^|\.)freqs(\.|$)'

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        masks = {name.removesuffix(MASK): weights[name] for name in weights if name.endswith(MASK)}
        weights = super().to_ours({name: torch.where(masks[name] == 0, 0, tensor) if name in masks else tensor
                                   for name, tensor in weights.items() if not name.endswith(MASK)})
        if self.encoding and not any(name.endswith('.attn.q.bias') for name in weights):  # zeros are left out
            weights |= {name.replace('weight', 'bias'): weight.new_zeros(len(weight))
                        for name, weight in weights.items() if name.endswith(('.attn.q.weight', '.attn.kv.weight'))}
        if TABLE not in weights:
            return weights
        tokens = [name for name in TOKENS if name in weights]
        rows, cells = split_table(weights[TABLE], (len(tokens), 0))  # some tables of timm have no rows for class tokens
        added = {name: weights[name] + row for name, row in zip(tokens[:len(rows)], rows, strict=False)}
        return {**weights, **added, TABLE: cells}

    def renamed(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if TABLE not in weights:
            return super().renamed(weights)
        tokens = [] if self.bare_with in weights else [name for name in TOKENS if name in weights]
        return super().renamed({**weights, TABLE: join_table(weights[TABLE], len(tokens))})


# The names here.
PLAIN = Format(('cpvt_mm',), 'CPVT', (STEM, 'blocks.0.attn.kv.weight'))

# Also the files of DINOv2's authors, who have other names in gated MLPs.
TIMM = PlainFormat(
    ('timm',), 'CPVT', (STEM, 'blocks.0.attn.qkv.weight'),
    {
        **block(BLOCK, BLOCK, 'attn.qkv.{p}', scale='ls{k}.gamma'),
        'pos_embed': TABLE,
        'reg_token': REGISTERS,
        'blocks.{i}.mlp.w12.{p}': 'blocks.{i}.mlp.fc1.{p}',
        'blocks.{i}.mlp.w3.{p}': 'blocks.{i}.mlp.fc2.{p}',
    }, needed=('pos_embed',), bare_with=REGISTERS)

MMPRETRAIN = PlainFormat(
    ('mmpretrain',), 'CPVT', ('patch_embed.projection.weight', 'layers.0.attn.qkv.weight'),
    {
        'pos_embed': TABLE,
        'patch_embed.projection.{p}': 'patch_embed.proj.{p}',
        **block('layers.{i}.', BLOCK, 'attn.qkv.{p}', norm='ln{k}', fc=('ffn.layers.0.0', 'ffn.layers.1')),
        'ln1.{p}': 'norm.{p}',
    }, needed=('pos_embed',))

FAMILY = Family(MEMBERS, (PLAIN, TIMM, MMPRETRAIN))
