"""Twins-PCPVT (arXiv 2104.13840), the pyramid of CPVT, and a smaller one for trials on a CPU."""
from .family import Family, Member, PyramidArch, timm_copy
from .renaming import Format, Names, block

BLOCK = 'stages.{i}.blocks.{j}.'  # of a pyramid, here
SR = ('attn.sr', 'attn.norm')  # spatial reduction
PEG = 'stages.{i}.position_encoding.0.convs.0.0.{p}'
FOREIGN = r'^(norm_list\.\d|norm_after_stage[012]\.)'  # norms between stages, which are not those of `out_norm`


def sizes(*depths: int) -> PyramidArch:
    """Returns the widths of Twins-PCPVT, with other depths."""
    return PyramidArch(embed_dims=(64, 128, 320, 512), depths=depths, num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4),
                       sr_ratios=(8, 4, 2, 1))


ARCHS = {
    'nano': PyramidArch(embed_dims=(32, 64, 128, 192), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 6),
                        mlp_ratios=(4, 4, 4, 4), sr_ratios=(8, 4, 2, 1)),
    'tiny': sizes(2, 2, 2, 2),
    'small': sizes(3, 4, 6, 3),
    'base': sizes(3, 4, 18, 3),
    'large': sizes(3, 8, 27, 3),
}


def _released(arch: str, file: str) -> Member:
    # The first URL is from mmseg 1.2.2's configs; the second is timm's copy of the authors' weights.
    return Member('PyramidCPVT', arch, files={
        f'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/twins/{file}': 'mmseg',
        timm_copy(f'twins_pcpvt_{arch}.in1k'): 'timm'})


MEMBERS = {
    **{f'pyramid-cpvt-{arch}': Member('PyramidCPVT', arch) for arch in ('nano', 'tiny')},
    'pyramid-cpvt-small': _released('small', 'pcpvt_small_20220308-e638c41c.pth'),
    'pyramid-cpvt-base': _released('base', 'pcpvt_base_20220308-0621964c.pth'),
    'pyramid-cpvt-large': _released('large', 'pcpvt_large_20220308-37579dc6.pth'),
}

# The names here.
OURS = Format(('cpvt_mm',), 'PyramidCPVT', ('stages.0.patch_embed.proj.weight', 'stages.0.blocks.0.attn.kv.weight'))

TWINS = Format(
    ('twins', 'timm'), 'PyramidCPVT', ('patch_embeds.0.proj.weight', 'blocks.0.0.attn.kv.weight'),
    {
        'patch_embeds.{i}.{q}.{p}': 'stages.{i}.patch_embed.{q}.{p}',
        **block('blocks.{i}.{j}.', BLOCK, sr=SR),
        'pos_block.{i}.proj.0.{p}': PEG,
        'norm.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6, needed=('pos_block.0.proj.0.weight', 'pos_block.0.proj.0.bias'))


def _openmmlab(blocks: dict[Names, Names]) -> dict[Names, Names]:
    return {
        'patch_embeds.{i}.projection.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'patch_embeds.{i}.norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        **blocks,
        'position_encodings.{i}.proj.{p}': PEG,
    }


FFN = ('ffn.layers.0.0', 'ffn.layers.1')
NEEDED = ('position_encodings.0.proj.weight', 'position_encodings.0.proj.bias')
MMSEG = Format(
    ('mmseg',), 'PyramidCPVT', ('patch_embeds.0.projection.weight', 'layers.0.0.attn.attn.in_proj_weight'),
    {
        **_openmmlab(block('layers.{i}.{j}.', BLOCK, 'attn.attn.in_proj_{p}', 'attn.attn.out_proj', fc=FFN, sr=SR)),
        'norm.{p}': 'out_norms.3.{p}',  # mmseg's models have no such norm, but its files of Twins' weights do
    }, norm_eps=1e-5, needed=NEEDED, foreign=FOREIGN)
MMPRETRAIN = Format(
    ('mmpretrain',), 'PyramidCPVT', ('patch_embeds.0.projection.weight', 'stages.0.0.attn.kv.weight'),
    {
        **_openmmlab(block('stages.{i}.{j}.', BLOCK, fc=FFN, sr=SR)),
        'norm_after_stage3.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6,  # 1e-5 is the default of mmpretrain's class, but the configs of its weights set 1e-6
    needed=NEEDED, foreign=FOREIGN)

FAMILY = Family(MEMBERS, (OURS, TWINS, MMSEG, MMPRETRAIN), {'PCPVT': ('', {})})
