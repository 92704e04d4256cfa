"""Formats of PVT (arXiv 2102.12122), PVT v2 (arXiv 2106.13797) and the MiT of SegFormer (arXiv 2105.15203)."""
import re
from dataclasses import dataclass

from torch import Tensor

from .pyramid import BLOCK, SR
from .renaming import POSITION_TABLE, Format, Names, below, block, split_table

TABLE = 'stages.{i}.position_encoding.0.table'
CLS_TOKEN = 'stages.3.cls_token'
POINTWISE = re.compile(r'.*\.(mlp\.fc[12]|attn\.sr\.proj)\.weight')  # linear layers, which may be 1 x 1 convolutions


@dataclass(frozen=True)
class PvtFormat(Format):
    """A pyramid whose tables of positions are `(1, E + side * side, C)`; E is 1 in the last stage with a class token.

    The row of the class token is added to the token. Linear layers may be convolutions of 1 x 1.
    """

    def translate(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed = super().translate(weights)
        for name, tensor in renamed.items():
            if POINTWISE.fullmatch(name) and tensor.shape[2:] == (1, 1):
                renamed[name] = tensor.flatten(1)
            elif POSITION_TABLE.fullmatch(name):
                rows, renamed[name] = split_table(tensor, (0, 1))
                if len(rows) and CLS_TOKEN in renamed:
                    renamed[CLS_TOKEN] = renamed[CLS_TOKEN] + rows
        return renamed


def _authors(rest: dict[Names, Names], conv: str | None = None) -> dict[Names, Names]:
    return {'patch_embed{i1}.{q}.{p}': 'stages.{i}.patch_embed.{q}.{p}',
            **block('block{i1}.{j}.', BLOCK, sr=SR, conv=conv), **rest}


OF_PVT = PvtFormat(
    'pvt', 'PyramidCPVT', ('patch_embed1.proj.weight', 'block1.0.attn.kv.weight', 'pos_embed1'),
    _authors({'pos_embed{i1}': TABLE, 'cls_token': CLS_TOKEN, 'norm.{p}': 'out_norms.3.{p}'}), norm_eps=1e-6)
OF_PVTV2 = PvtFormat(
    'pvtv2 or mit', 'PyramidCPVT', ('patch_embed1.proj.weight', 'block1.0.mlp.dwconv.dwconv.weight', 'norm1.weight'),
    _authors({'norm{i1}.{p}': 'stages.{i}.norm.{p}'}, 'mlp.dwconv.dwconv'), norm_eps=1e-6)


def _timm(stage: str) -> dict[Names, Names]:
    return {
        'patch_embed.{q}.{p}': 'stages.0.patch_embed.{q}.{p}',
        **below(stage + '.', {
            'downsample.{q}.{p}': 'stages.{i}.patch_embed.{q}.{p}',
            **block('blocks.{j}.', BLOCK, sr=SR, conv='mlp.dwconv'),
            'norm.{p}': 'stages.{i}.norm.{p}',
        }),
    }


TIMM_STAGES = ('stages.{i}', 'stages_{i}')  # the latter with features_only=True, and in segmentation_models_pytorch
TIMM = PvtFormat(
    'timm-pvtv2', 'PyramidCPVT',
    ('patch_embed.proj.weight', '|'.join(f'{stage.format(i=0)}.blocks.0.mlp.dwconv.weight' for stage in TIMM_STAGES)),
    {names: names_here for stage in TIMM_STAGES for names, names_here in _timm(stage).items()}, norm_eps=1e-6)


def _transformers(prefix: str, attention: str, proj: str, reduction: str, conv: str | None = None
                  ) -> dict[Names, Names]:
    qkv = tuple(f'{attention}.{part}.{{p}}' for part in ('query', 'key', 'value'))
    return block(prefix, BLOCK, qkv, proj, 'layer_norm_{k}', ('mlp.dense1', 'mlp.dense2'),
                 (f'{attention}.{reduction}', f'{attention}.layer_norm'), conv)


def _segformer(projection: str, reduction: str, conv: str | None = None) -> dict[Names, Names]:
    return {
        f'encoder.patch_embeddings.{{i}}.{projection}.{{p}}': 'stages.{i}.patch_embed.proj.{p}',
        'encoder.patch_embeddings.{i}.layer_norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **_transformers('encoder.block.{i}.{j}.', 'attention.self', 'attention.output.dense', reduction, conv),
    }


TRANSFORMERS_PVT = PvtFormat(
    'transformers-pvt', 'PyramidCPVT',
    ('encoder.patch_embeddings.0.projection.weight', 'encoder.patch_embeddings.0.position_embeddings'),
    {
        **_segformer('projection', 'sequence_reduction'),
        'encoder.patch_embeddings.{i}.position_embeddings': TABLE,
        'encoder.patch_embeddings.3.cls_token': CLS_TOKEN,
        'encoder.layer_norm.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6)
TRANSFORMERS_PVTV2 = PvtFormat(
    'transformers-pvtv2', 'PyramidCPVT',
    ('encoder.layers.0.patch_embedding.proj.weight', 'encoder.layers.0.blocks.0.mlp.dwconv.dwconv.weight'),
    below('encoder.layers.{i}.', {
        'patch_embedding.proj.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'patch_embedding.layer_norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **_transformers('blocks.{j}.', 'attention', 'attention.proj', 'spatial_reduction', 'mlp.dwconv.dwconv'),
        'layer_norm.{p}': 'stages.{i}.norm.{p}',
    }), norm_eps=1e-6)
TRANSFORMERS_SEGFORMER = PvtFormat(
    'transformers-segformer', 'PyramidCPVT',
    ('encoder.patch_embeddings.0.proj.weight', 'encoder.block.0.0.mlp.dwconv.dwconv.weight'),
    {**_segformer('proj', 'sr', 'mlp.dwconv.dwconv'), 'encoder.layer_norm.{i}.{p}': 'stages.{i}.norm.{p}'},
    norm_eps=1e-5)


def _openmmlab(prefix: str, second: int, conv: str | None = None) -> dict[Names, Names]:
    """Returns the names of mmdet and mmseg, where `second` is the place of the MLP's second layer."""
    return {
        'layers.{i}.0.projection.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'layers.{i}.0.norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **block(prefix, BLOCK, 'attn.attn.in_proj_{p}', 'attn.attn.out_proj',
                fc=('ffn.layers.0', f'ffn.layers.{second}'), sr=SR, conv=conv),
    }


MMDET_PVT = PvtFormat(
    'mmdet-pvt', 'PyramidCPVT', ('layers.0.0.projection.weight', 'layers.0.1.0.pos_embed'),
    {**_openmmlab('layers.{i}.1.{j1}.', 3), 'layers.{i}.1.0.pos_embed': TABLE}, norm_eps=1e-6)
MMDET_PVTV2 = PvtFormat(
    'mmdet-pvtv2 or mmseg-mit', 'PyramidCPVT',
    ('layers.0.0.projection.weight', 'layers.0.1.0.ffn.layers.4.weight'),
    {**_openmmlab('layers.{i}.1.{j}.', 4, 'ffn.layers.1'), 'layers.{i}.2.{p}': 'stages.{i}.norm.{p}'}, norm_eps=1e-6)

FORMATS = (OF_PVT, OF_PVTV2, TIMM, TRANSFORMERS_PVT, TRANSFORMERS_PVTV2, TRANSFORMERS_SEGFORMER, MMDET_PVT, MMDET_PVTV2)
