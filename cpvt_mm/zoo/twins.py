"""Formats of Twins-PCPVT (arXiv 2104.13840), the pyramid of CPVT."""
from .pyramid import BLOCK, SR
from .renaming import Format, Names, block

PEG = 'stages.{i}.position_encoding.0.convs.0.0.{p}'
FOREIGN = r'^(norm_list\.\d|norm_after_stage[012]\.)'  # norms between stages; `out_norm` is something else

TWINS = Format(
    'twins or timm', 'PyramidCPVT', ('patch_embeds.0.proj.weight', 'blocks.0.0.attn.kv.weight'),
    {
        'patch_embeds.{i}.{q}.{p}': 'stages.{i}.patch_embed.{q}.{p}',
        **block('blocks.{i}.{j}.', BLOCK, sr=SR),
        'pos_block.{i}.proj.0.{p}': PEG,
        'norm.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6)


def _openmmlab(blocks: dict[Names, Names]) -> dict[Names, Names]:
    return {
        'patch_embeds.{i}.projection.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'patch_embeds.{i}.norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **blocks,
        'position_encodings.{i}.proj.{p}': PEG,
    }


FFN = ('ffn.layers.0.0', 'ffn.layers.1')
MMSEG = Format(
    'mmseg', 'PyramidCPVT', ('patch_embeds.0.projection.weight', 'layers.0.0.attn.attn.in_proj_weight'),
    {
        **_openmmlab(block('layers.{i}.{j}.', BLOCK, 'attn.attn.in_proj_{p}', 'attn.attn.out_proj', fc=FFN, sr=SR)),
        'norm.{p}': 'out_norms.3.{p}',  # mmseg's models have no such norm, but its files of Twins' weights do
    }, norm_eps=1e-5, foreign=FOREIGN)
MMPRETRAIN = Format(
    'mmpretrain', 'PyramidCPVT', ('patch_embeds.0.projection.weight', 'stages.0.0.attn.kv.weight'),
    {
        **_openmmlab(block('stages.{i}.{j}.', BLOCK, fc=FFN, sr=SR)),
        'norm_after_stage3.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6,  # 1e-5 is the default of mmpretrain's class, but the configs of its weights set 1e-6
    foreign=FOREIGN)

FORMATS = (TWINS, MMSEG, MMPRETRAIN)
