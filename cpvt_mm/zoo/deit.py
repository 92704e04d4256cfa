"""Weight formats of DeiT (arXiv 2012.12877) in timm and mmpretrain. DeiT has the same sizes as CPVT."""
from .plain import BLOCK, REGISTERS, STEM, TABLE, PlainFormat
from .renaming import block

# Also the files of DINOv2's authors, who have other names in gated MLPs.
TIMM = PlainFormat(
    'timm', 'CPVT', (STEM, 'blocks.0.attn.qkv.weight'),
    {
        **block(BLOCK, BLOCK, 'attn.qkv.{p}', scale='ls{k}.gamma'),
        'pos_embed': TABLE,
        'reg_token': REGISTERS,
        'blocks.{i}.mlp.w12.{p}': 'blocks.{i}.mlp.fc1.{p}',
        'blocks.{i}.mlp.w3.{p}': 'blocks.{i}.mlp.fc2.{p}',
    })

MMPRETRAIN = PlainFormat(
    'mmpretrain', 'CPVT', ('patch_embed.projection.weight', 'layers.0.attn.qkv.weight'),
    {
        'pos_embed': TABLE,
        'patch_embed.projection.{p}': 'patch_embed.proj.{p}',
        **block('layers.{i}.', BLOCK, 'attn.qkv.{p}', norm='ln{k}', fc=('ffn.layers.0.0', 'ffn.layers.1')),
        'ln1.{p}': 'norm.{p}',
    })

FORMATS = (TIMM, MMPRETRAIN)
