"""Formats of CPVT: ViT and DeiT of timm and mmpretrain; DINOv2 and DINOv3 of their authors, timm and transformers."""
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from openmmlab_runs.config_text import to_source
from openmmlab_runs.errors import UserError

from .renaming import Format, Names, below, split_table

TOKENS = ('cls_token', 'dist_token')
TABLE = 'position_encoding.0.table'
REGISTERS = 'register_tokens'
MASK = '_mask'  # after the name of a bias: where it is 0, the bias counts as 0
# ViTs with these parameters differ from CPVT: norms before the blocks, of queries and keys, or of class tokens alone,
# and learnt frequencies. The layer scales of mmpretrain have no rules.
FOREIGN = re.compile(r'(^|\.)(norm_pre|pre_norm|q_norm|k_norm|cls_norm|gamma[12]|freqs)(\.|$)')


@dataclass(frozen=True)
class PlainFormat(Format):
    """The format of a ViT, with or without a position table.

    The table is `(1, E + side * side, C)`: E rows for class tokens, then the grid. Loading adds the row of a class
    token to the token; when converting back, the token keeps the sum and its row is 0.

    Attributes:
        encoding: The config of the rotary encoding that the models have instead of a table, or None. With one,
            files may leave out the biases of queries, keys and values if all are 0.
    """
    encoding: dict[str, str] | None = None

    @property
    def has_table(self) -> bool:
        """Whether the models have a position table, and no rotary encoding."""
        return self.encoding is None

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        foreign = [name for name in weights if FOREIGN.search(name)]
        if foreign:
            raise UserError(f'the checkpoint is of a ViT with {foreign[0]}, which CPVT does not have: use weights of a '
                            'plain ViT, such as DeiT.')
        masks = {name.removesuffix(MASK): weights[name] for name in weights if name.endswith(MASK)}
        weights = super().to_ours({name: torch.where(masks[name] == 0, 0, tensor) if name in masks else tensor
                                   for name, tensor in weights.items() if not name.endswith(MASK)})
        if not self.has_table and not any(name.endswith('.attn.q.bias') for name in weights):  # zeros are left out
            weights |= {name.replace('weight', 'bias'): weight.new_zeros(len(weight))
                        for name, weight in weights.items() if name.endswith(('.attn.q.weight', '.attn.kv.weight'))}
        if TABLE not in weights:
            return weights
        tokens = [name for name in TOKENS if name in weights]
        rows, cells = split_table(weights[TABLE], (len(tokens), 0))  # some tables of timm have no rows for class tokens
        added = {name: weights[name] + row for name, row in zip(tokens[:len(rows)], rows, strict=False)}
        return {**weights, **added, TABLE: cells}

    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        encodings = [name for name in weights if name.startswith('position_encoding.')]
        table = weights[TABLE] if encodings == [TABLE] else None
        if not self.has_table:
            if encodings:
                raise UserError(f'the format {self} supports only {to_source(self.encoding)}, so the weights '
                                f'cannot be converted: they have {", ".join(encodings[:3])}.')
        elif table is None or table.dim() != 3 or table.shape[0] != table.shape[1]:
            raise UserError(f'the format {self} supports only one LearnablePE on a square grid, so the weights cannot '
                            f'be converted: they have {", ".join(encodings[:3]) or "none"}.')
        else:
            # timm's models with registers have no rows for class tokens.
            tokens = [] if self is TIMM_VIT and REGISTERS in weights else [name for name in TOKENS if name in weights]
            rows = table.new_zeros(len(tokens), table.shape[-1])
            weights = {**weights, TABLE: torch.cat([rows, table.flatten(0, 1)])[None]}
        converted = super().to_theirs(weights)
        ours = () if 'blocks.0' in self.signature[1] else ('blocks.', REGISTERS)
        if unknown := [name for name in converted if name.startswith(ours)]:
            raise UserError(f'the format {self} has no name for {unknown[0]}, so the weights cannot be converted.')
        if not self.is_in(converted):
            raise UserError(f'the weights lack layer scale or registers, which the format {self} has, so they cannot '
                            'be converted.')
        return converted


DINOV3 = dict(type='RotaryPE', form='dinov3')
QKV = ('blocks.{i}.attn.q.{p}', 'blocks.{i}.attn.kv.{p}')
QKV_WEIGHT = ('blocks.{i}.attn.q.weight', 'blocks.{i}.attn.kv.weight')
QKV_BIAS = ('blocks.{i}.attn.q.bias', 'blocks.{i}.attn.kv.bias')

PLAIN_CPVT = Format(('cpvt_mm',), 'CPVT', ('patch_embed.proj.weight', 'blocks.0.attn.kv.weight'))

# Also the files of DINOv2's authors, who have other names in gated MLPs.
TIMM_VIT = PlainFormat(
    ('timm',), 'CPVT', ('patch_embed.proj.weight', 'blocks.0.attn.qkv.weight'),
    {
        'pos_embed': TABLE,
        'reg_token': REGISTERS,
        'blocks.{i}.attn.qkv.{p}': QKV,
    },
    gated={
        'blocks.{i}.mlp.fc1.{p}': 'blocks.{i}.mlp.fc1.{p}',
        'blocks.{i}.mlp.fc2.{p}': 'blocks.{i}.mlp.fc2.{p}',
        'blocks.{i}.mlp.w12.{p}': 'blocks.{i}.mlp.fc1.{p}',
        'blocks.{i}.mlp.w3.{p}': 'blocks.{i}.mlp.fc2.{p}',
    })

# timm, and the files of DINOv3's authors. Keys have no bias, or one that is masked.
TIMM_DINOV3 = PlainFormat(
    ('timm-dinov3',), 'CPVT',
    ('patch_embed.proj.weight', 'blocks.0.attn.qkv.weight', 'storage_tokens|blocks.0.gamma_1'),
    {
        'reg_token': REGISTERS,
        'storage_tokens': REGISTERS,
        'blocks.{i}.gamma_{j}': 'blocks.{i}.ls{j}.gamma',
        ('blocks.{i}.attn.q_bias', None, 'blocks.{i}.attn.v_bias'): QKV_BIAS,
        'blocks.{i}.attn.qkv.{p}': QKV,
    },
    gated={
        ('blocks.{i}.mlp.fc1_g.{p}', 'blocks.{i}.mlp.fc1_x.{p}'): 'blocks.{i}.mlp.fc1.{p}',
        ('blocks.{i}.mlp.w1.{p}', 'blocks.{i}.mlp.w2.{p}'): 'blocks.{i}.mlp.fc1.{p}',
        'blocks.{i}.mlp.fc2.{p}': 'blocks.{i}.mlp.fc2.{p}',
        'blocks.{i}.mlp.w3.{p}': 'blocks.{i}.mlp.fc2.{p}',
    }, norm_eps=1e-5, encoding=DINOV3)

MMPRETRAIN_VIT = PlainFormat(
    ('mmpretrain',), 'CPVT', ('patch_embed.projection.weight', 'layers.0.attn.qkv.weight'),
    {
        'pos_embed': TABLE,
        'patch_embed.projection.{p}': 'patch_embed.proj.{p}',
        'layers.{i}.ln1.{p}': 'blocks.{i}.norm1.{p}',
        'layers.{i}.attn.qkv.{p}': QKV,
        'layers.{i}.attn.proj.{p}': 'blocks.{i}.attn.proj.{p}',
        'layers.{i}.ln2.{p}': 'blocks.{i}.norm2.{p}',
        'layers.{i}.ffn.layers.0.0.{p}': 'blocks.{i}.mlp.fc1.{p}',
        'layers.{i}.ffn.layers.1.{p}': 'blocks.{i}.mlp.fc2.{p}',
        'ln1.{p}': 'norm.{p}',
    })


# The names in a layer of transformers.
LAYER: dict[Names, Names] = {
    'norm1.{p}': 'blocks.{i}.norm1.{p}',
    'layer_scale{j}.lambda1': 'blocks.{i}.ls{j}.gamma',
    'norm2.{p}': 'blocks.{i}.norm2.{p}',
}
TRANSFORMERS_DINOV2 = PlainFormat(
    ('transformers-dinov2',), 'CPVT',
    ('embeddings.patch_embeddings.projection.weight', 'encoder.layer.0.layer_scale1.lambda1'),
    {
        'embeddings.cls_token': 'cls_token',
        'embeddings.register_tokens': REGISTERS,
        'embeddings.position_embeddings': TABLE,
        'embeddings.patch_embeddings.projection.{p}': 'patch_embed.proj.{p}',
        **below('encoder.layer.{i}.', {
            **LAYER,
            **below('attention.', {
                ('attention.query.{p}', 'attention.key.{p}', 'attention.value.{p}'): QKV,
                'output.dense.{p}': 'blocks.{i}.attn.proj.{p}',
                # from transformers 5 on
                ('q_proj.{p}', 'k_proj.{p}', 'v_proj.{p}'): QKV,
                'o_proj.{p}': 'blocks.{i}.attn.proj.{p}',
            }),
            'mlp.fc{j}.{p}': 'blocks.{i}.mlp.fc{j}.{p}',
        }),
        'layernorm.{p}': 'norm.{p}',
    },
    gated=below('encoder.layer.{i}.mlp.', {
        'weights_in.{p}': 'blocks.{i}.mlp.fc1.{p}',
        'weights_out.{p}': 'blocks.{i}.mlp.fc2.{p}',
        ('gate_proj.{p}', 'up_proj.{p}'): 'blocks.{i}.mlp.fc1.{p}',
        'down_proj.{p}': 'blocks.{i}.mlp.fc2.{p}',
    }))

LAYERS = ('layer.{i}.', 'model.layer.{i}.')  # the latter from transformers 5 on
TRANSFORMERS_DINOV3 = PlainFormat(
    ('transformers-dinov3',), 'CPVT', ('embeddings.patch_embeddings.weight', 'embeddings.register_tokens'),
    {
        'embeddings.cls_token': 'cls_token',
        'embeddings.register_tokens': REGISTERS,
        'embeddings.patch_embeddings.{p}': 'patch_embed.proj.{p}',
        **{theirs: ours for layer in LAYERS for theirs, ours in below(layer, {
            **LAYER,
            **below('attention.', {
                ('q_proj.weight', 'k_proj.weight', 'v_proj.weight'): QKV_WEIGHT,
                ('q_proj.bias', None, 'v_proj.bias'): QKV_BIAS,
                'o_proj.{p}': 'blocks.{i}.attn.proj.{p}',
            }),
            'mlp.up_proj.{p}': 'blocks.{i}.mlp.fc1.{p}',
            'mlp.down_proj.{p}': 'blocks.{i}.mlp.fc2.{p}',
        }).items()},
    },
    gated={
        (f'{layer}mlp.gate_proj.{{p}}', f'{layer}mlp.up_proj.{{p}}'): 'blocks.{i}.mlp.fc1.{p}' for layer in LAYERS
    }, norm_eps=1e-5, encoding=DINOV3)

PLAIN_FORMATS: tuple[Format, ...] = (PLAIN_CPVT, TIMM_VIT, TIMM_DINOV3, MMPRETRAIN_VIT, TRANSFORMERS_DINOV2,
                                     TRANSFORMERS_DINOV3)
