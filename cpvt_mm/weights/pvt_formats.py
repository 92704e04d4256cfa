"""Formats of PyramidCPVT as PVT, PVT v2 and MiT: of their authors, timm, transformers, mmdet and mmseg."""
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from openmmlab_runs.errors import UserError

from .renaming import POSITION_TABLE, Format, Names, below, split_table

BLOCK = 'stages.{i}.blocks.{j}.'
TABLE = 'stages.{i}.position_encoding.0.table'
CLS_TOKEN = 'stages.3.cls_token'
POINTWISE = re.compile(r'.*\.(mlp\.fc[12]|attn\.sr\.proj)\.weight')  # linear layers, which may be 1 x 1 convolutions
Q_KV = (BLOCK + 'attn.q.{p}', BLOCK + 'attn.kv.{p}')


@dataclass(frozen=True)
class PvtFormat(Format):
    """A pyramid whose tables of positions are `(1, E + side * side, C)`; E is 1 in the last stage with a class token.

    Loading adds the row of the class token to the token; when converting back, the token keeps the sum and its row is
    0.

    Attributes:
        kernel: Side of the first patch embedding's kernel: 4 in PVT, 7 in PVT v2 and MiT.
        convs: Endings of the names of our linear layers that are 1 x 1 convolutions there.
    """
    kernel: int = 7
    convs: tuple[str, ...] = ('attn.sr.proj.weight',)

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed = super().to_ours(weights)
        for name, tensor in renamed.items():
            if POINTWISE.fullmatch(name) and tensor.shape[2:] == (1, 1):
                renamed[name] = tensor.flatten(1)
            elif POSITION_TABLE.fullmatch(name):
                rows, renamed[name] = split_table(tensor, (0, 1))
                if len(rows) and CLS_TOKEN in renamed:
                    renamed[CLS_TOKEN] = renamed[CLS_TOKEN] + rows
        return renamed

    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        changed = dict(weights)
        for name, tensor in weights.items():
            if name.endswith(self.convs) and tensor.dim() == 2:
                changed[name] = tensor[..., None, None]
            elif POSITION_TABLE.fullmatch(name) and tensor.dim() == 3 and len(tensor) == tensor.shape[1]:
                extra = int(name.startswith('stages.3.') and CLS_TOKEN in weights)
                changed[name] = torch.cat([tensor.new_zeros(extra, tensor.shape[-1]), tensor.flatten(0, 1)])[None]
        converted = super().to_theirs(changed)
        odd = [name for name, tensor in weights.items() if name.startswith(('stages.', 'out_norms.')) and (
            not self.knows(name) or (name.endswith('.table') and tensor.shape[0] != tensor.shape[1]))]
        stem = weights['stages.0.patch_embed.proj.weight']
        if odd or stem.shape[-1] != self.kernel or not self.is_in(converted):
            what = odd[0] if odd else f'a first patch embedding of {stem.shape[-1]} pixels and no other names'
            parts = ('overlapping patches, a norm at the end of each stage, convolutions in the MLPs, and no position '
                     'encoding' if self.kernel > 4 else 'patches of 4 pixels and a LearnablePE on a square grid in '
                     'each stage')
            raise UserError(f'the weights have {what}, so they cannot be converted: the format {self} has {parts}.')
        return converted


# The names inside a block of the authors and timm.
AUTHORS: dict[Names, Names] = {
    'norm{k}.{p}': BLOCK + 'norm{k}.{p}',
    'attn.q.{p}': BLOCK + 'attn.q.{p}',
    'attn.kv.{p}': BLOCK + 'attn.kv.{p}',
    'attn.proj.{p}': BLOCK + 'attn.proj.{p}',
    'attn.sr.{p}': BLOCK + 'attn.sr.proj.{p}',
    'attn.norm.{p}': BLOCK + 'attn.sr.norm.{p}',
    'mlp.fc{k}.{p}': BLOCK + 'mlp.fc{k}.{p}',
}


def _authors(rest: dict[Names, Names]) -> dict[Names, Names]:
    return {
        'patch_embed{i1}.proj.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'patch_embed{i1}.norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **below('block{i1}.{j}.', AUTHORS),
        **rest,
    }


PVT = PvtFormat(
    ('pvt',), 'PyramidCPVT', ('patch_embed1.proj.weight', 'block1.0.attn.kv.weight', 'pos_embed1'),
    _authors({'pos_embed{i1}': TABLE, 'cls_token': CLS_TOKEN, 'norm.{p}': 'out_norms.3.{p}'}), norm_eps=1e-6, kernel=4)
PVTV2 = PvtFormat(
    ('pvtv2', 'mit'), 'PyramidCPVT', ('patch_embed1.proj.weight', 'block1.0.mlp.dwconv.dwconv.weight', 'norm1.weight'),
    _authors({'block{i1}.{j}.mlp.dwconv.dwconv.{p}': BLOCK + 'mlp.conv.{p}', 'norm{i1}.{p}': 'stages.{i}.norm.{p}'}),
    norm_eps=1e-6)

TIMM_PVTV2 = PvtFormat(
    ('timm-pvtv2',), 'PyramidCPVT', ('patch_embed.proj.weight', 'stages.0.blocks.0.mlp.dwconv.weight'),
    {
        'patch_embed.{q}.{p}': 'stages.0.patch_embed.{q}.{p}',
        'stages.{i}.downsample.{q}.{p}': 'stages.{i}.patch_embed.{q}.{p}',
        **below(BLOCK, {**AUTHORS, 'mlp.dwconv.{p}': BLOCK + 'mlp.conv.{p}'}),
        'stages.{i}.norm.{p}': 'stages.{i}.norm.{p}',
    }, norm_eps=1e-6)

# transformers' names inside a block, which are the same in its three models but for those of attention.
INSIDE: dict[Names, Names] = {
    'layer_norm_{k}.{p}': BLOCK + 'norm{k}.{p}',
    'mlp.dense{k}.{p}': BLOCK + 'mlp.fc{k}.{p}',
}
CONV: dict[Names, Names] = {'mlp.dwconv.dwconv.{p}': BLOCK + 'mlp.conv.{p}'}


def _attention(reduction: str) -> dict[Names, Names]:
    return {
        ('query.{p}', 'key.{p}', 'value.{p}'): Q_KV,
        f'{reduction}.{{p}}': BLOCK + 'attn.sr.proj.{p}',
        'layer_norm.{p}': BLOCK + 'attn.sr.norm.{p}',
    }


def _segformer(projection: str, reduction: str) -> dict[Names, Names]:
    return {
        f'encoder.patch_embeddings.{{i}}.{projection}.{{p}}': 'stages.{i}.patch_embed.proj.{p}',
        'encoder.patch_embeddings.{i}.layer_norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **below('encoder.block.{i}.{j}.', {
            **INSIDE,
            **below('attention.self.', _attention(reduction)),
            'attention.output.dense.{p}': BLOCK + 'attn.proj.{p}',
        }),
    }


TRANSFORMERS_PVT = PvtFormat(
    ('transformers-pvt',), 'PyramidCPVT',
    ('encoder.patch_embeddings.0.projection.weight', 'encoder.patch_embeddings.0.position_embeddings'),
    {
        **_segformer('projection', 'sequence_reduction'),
        'encoder.patch_embeddings.{i}.position_embeddings': TABLE,
        'encoder.patch_embeddings.3.cls_token': CLS_TOKEN,
        'encoder.layer_norm.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6, kernel=4)
TRANSFORMERS_PVTV2 = PvtFormat(
    ('transformers-pvtv2',), 'PyramidCPVT',
    ('encoder.layers.0.patch_embedding.proj.weight', 'encoder.layers.0.blocks.0.mlp.dwconv.dwconv.weight'),
    {
        'encoder.layers.{i}.patch_embedding.proj.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'encoder.layers.{i}.patch_embedding.layer_norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **below('encoder.layers.{i}.blocks.{j}.', {
            **INSIDE, **CONV,
            **below('attention.', _attention('spatial_reduction')),
            'attention.proj.{p}': BLOCK + 'attn.proj.{p}',
        }),
        'encoder.layers.{i}.layer_norm.{p}': 'stages.{i}.norm.{p}',
    }, norm_eps=1e-6)
TRANSFORMERS_SEGFORMER = PvtFormat(
    ('transformers-segformer',), 'PyramidCPVT',
    ('encoder.patch_embeddings.0.proj.weight', 'encoder.block.0.0.mlp.dwconv.dwconv.weight'),
    {**_segformer('proj', 'sr'), **below('encoder.block.{i}.{j}.', CONV),
     'encoder.layer_norm.{i}.{p}': 'stages.{i}.norm.{p}'}, norm_eps=1e-5)


def _openmmlab(block: str, second: int) -> dict[Names, Names]:
    """Returns the names of mmdet and mmseg, where `second` is the place of the MLP's second layer."""
    return {
        'layers.{i}.0.projection.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'layers.{i}.0.norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **below(f'layers.{{i}}.1.{block}.', {
            'norm{k}.{p}': BLOCK + 'norm{k}.{p}',
            'attn.attn.in_proj_{p}': Q_KV,
            'attn.attn.out_proj.{p}': BLOCK + 'attn.proj.{p}',
            'attn.sr.{p}': BLOCK + 'attn.sr.proj.{p}',
            'attn.norm.{p}': BLOCK + 'attn.sr.norm.{p}',
            'ffn.layers.0.{p}': BLOCK + 'mlp.fc1.{p}',
            f'ffn.layers.{second}.{{p}}': BLOCK + 'mlp.fc2.{p}',
        }),
    }


CONVS = ('mlp.fc1.weight', 'mlp.fc2.weight')
MMDET_PVT = PvtFormat(
    ('mmdet-pvt',), 'PyramidCPVT', ('layers.0.0.projection.weight', 'layers.0.1.0.pos_embed'),
    {**_openmmlab('{j1}', 3), 'layers.{i}.1.0.pos_embed': TABLE}, norm_eps=1e-6, kernel=4, convs=CONVS)
MMDET_PVTV2 = PvtFormat(
    ('mmdet-pvtv2', 'mmseg-mit'), 'PyramidCPVT',
    ('layers.0.0.projection.weight', 'layers.0.1.0.ffn.layers.4.weight'),
    {
        **_openmmlab('{j}', 4),
        'layers.{i}.1.{j}.ffn.layers.1.{p}': BLOCK + 'mlp.conv.{p}',
        'layers.{i}.2.{p}': 'stages.{i}.norm.{p}',
    }, norm_eps=1e-6, convs=CONVS)

PVT_FORMATS: tuple[Format, ...] = (PVT, PVTV2, TIMM_PVTV2, TRANSFORMERS_PVT, TRANSFORMERS_PVTV2,
                                   TRANSFORMERS_SEGFORMER, MMDET_PVT, MMDET_PVTV2)
