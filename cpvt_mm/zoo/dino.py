"""DINOv2 (arXiv 2304.07193), DINOv3 (arXiv 2508.10104), and ViTs of others with their parts."""
from typing import Any

from .deit import BLOCK, REGISTERS, STEM, TABLE, PlainFormat
from .family import Family, Member, PlainArch, timm_copy
from .renaming import below, block

ARCHS = {  # beside those of DeiT; with SwiGLU, the first is DINOv2's largest, the others are DINOv3's
    'giant': PlainArch(embed_dims=1536, depth=40, num_heads=24),
    'small-plus': PlainArch(embed_dims=384, depth=12, num_heads=6, mlp_ratio=6),
    'huge-plus': PlainArch(embed_dims=1280, depth=32, num_heads=20, mlp_ratio=6),
}
ROTARY = dict(type='RotaryPE', form='dinov3')
DINOV3_LICENCE = 'DINOv3 License, https://ai.meta.com/resources/models-and-libraries/dinov3-license/'
LINGBOT_LICENCE = ('Apache License 2.0 according to their authors and timm; the notice of lightly-train says that the '
                   f'{DINOV3_LICENCE}, applies as well')


def _mlp(arch: str) -> str:
    return 'swiglu' if arch == 'giant' or arch.endswith('plus') else 'linear'


def _v2(arch: str, registers: int, img_size: int = 518) -> tuple[dict[str, Any], dict[str, Any]]:
    # The models with registers resample the table in another way.
    table = dict(type='LearnablePE', antialias=True) if registers else dict(type='LearnablePE', offset=0.1)
    return dict(img_size=img_size, position_encoding=table), dict(
        patch_size=14, num_register_tokens=registers, layer_scale=1e-5, mlp_mode=_mlp(arch))


def _v3(arch: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(position_encoding=ROTARY), dict(num_register_tokens=4, layer_scale=1e-5, norm_eps=1e-5,
                                                mlp_mode=_mlp(arch))


def _dinov2(arch: str, suffix: str) -> Member:
    # The first URL is the authors'; the second is timm's copy of their weights.
    name = f'dinov2_vit{arch[0]}14'
    return Member('CPVT', arch, *_v2(arch, 4 if suffix else 0), {
        f'https://dl.fbaipublicfiles.com/dinov2/{name}/{name}{suffix}_pretrain.pth': 'timm',
        timm_copy(f'vit_{arch}_patch14{suffix}_dinov2.lvd142m'): 'timm'},
        images=dict(input_size=(3, 518, 518), crop_pct=1.))


def _dinov3(arch: str) -> Member:
    # timm's copy. The authors' files need a request, see docs/guides/pretrained_weights.md.
    model = f'vit_{arch.replace("-", "_")}_patch16_dinov3_qkvb.lvd1689m'
    return Member('CPVT', arch, *_v3(arch), {timm_copy(model): 'timm-dinov3'}, DINOV3_LICENCE, norm_eps=1e-5,
                  images=dict(input_size=(3, 256, 256), crop_pct=1.))


def _lingbot(arch: str) -> Member:
    # arXiv 2607.05247, and the copy that timm names. It has the same parts as a DINOv3.
    file = f'hf://belfner/vit_{arch}_patch16_lingbot.robbyant'
    return Member('CPVT', arch, *_v3(arch), {file: 'timm-dinov3'}, LINGBOT_LICENCE, norm_eps=1e-5, images=dict(
        input_size=(3, 512, 512), crop_pct=1., crop_mode='squash', interpolation='bilinear'))


def _tipsv2(arch: str) -> Member:
    # arXiv 2604.12012, which timm names.
    return Member('CPVT', arch, *_v2(arch, 1, img_size=448),
                  {timm_copy(f'vit_{arch}_patch14_reg1_tipsv2.webli'): 'timm'},
                  normalization=((0.,) * 3, (255.,) * 3), images=dict(input_size=(3, 448, 448), crop_pct=1.))


MEMBERS = {
    **{f'dinov2-{arch}{suffix.replace("_", "-")}': _dinov2(arch, suffix)
       for arch in ('small', 'base', 'large', 'giant') for suffix in ('', '_reg4')},
    **{f'dinov3-{arch}': _dinov3(arch) for arch in ('small', 'small-plus', 'base', 'large', 'huge-plus')},
    **{f'lingbot-{arch}': _lingbot(arch) for arch in ('small', 'base', 'large', 'giant')},
    **{f'tipsv2-{arch}': _tipsv2(arch) for arch in ('base', 'large', 'giant')},
}

Q_KV_BIAS = (BLOCK + 'attn.q.bias', BLOCK + 'attn.kv.bias')

# timm, and the files of DINOv3's authors. Keys have no bias, or one that is masked.
TIMM_DINOV3 = PlainFormat(
    ('timm-dinov3',), 'CPVT', (STEM, 'blocks.0.attn.qkv.weight', 'storage_tokens|blocks.0.gamma_1'),
    {
        ('blocks.{i}.attn.q_bias', None, 'blocks.{i}.attn.v_bias'): Q_KV_BIAS,
        **block(BLOCK, BLOCK, 'attn.qkv.{p}', scale='gamma_{k}'),
        'reg_token': REGISTERS,
        'storage_tokens': REGISTERS,
        'blocks.{i}.ls{k}.gamma': 'blocks.{i}.ls{k}.gamma',
        ('blocks.{i}.mlp.w1.{p}', 'blocks.{i}.mlp.w2.{p}'): 'blocks.{i}.mlp.fc1.{p}',
        'blocks.{i}.mlp.w3.{p}': 'blocks.{i}.mlp.fc2.{p}',
    },
    gated={('blocks.{i}.mlp.fc1_g.{p}', 'blocks.{i}.mlp.fc1_x.{p}'): 'blocks.{i}.mlp.fc1.{p}'}, norm_eps=1e-5,
    encoding=ROTARY)

SCALE = 'layer_scale{k}.lambda1'
QKV = ('attention.q_proj.{p}', 'attention.k_proj.{p}', 'attention.v_proj.{p}')
TRANSFORMERS_DINOV2 = PlainFormat(
    ('transformers-dinov2',), 'CPVT',
    ('embeddings.patch_embeddings.projection.weight', 'encoder.layer.0.layer_scale1.lambda1'),
    {
        **below('embeddings.', {
            'cls_token': 'cls_token',
            'register_tokens': REGISTERS,
            'position_embeddings': TABLE,
            'patch_embeddings.projection.{p}': 'patch_embed.proj.{p}',
        }),
        **block('encoder.layer.{i}.', BLOCK, tuple(f'attention.attention.{part}.{{p}}' for part in (
            'query', 'key', 'value')), 'attention.output.dense', scale=SCALE),
        **block('encoder.layer.{i}.', BLOCK, QKV, 'attention.o_proj', scale=SCALE),  # from transformers 5 on
        'layernorm.{p}': 'norm.{p}',
    },
    gated=below('encoder.layer.{i}.mlp.', {
        'weights_in.{p}': 'blocks.{i}.mlp.fc1.{p}',
        'weights_out.{p}': 'blocks.{i}.mlp.fc2.{p}',
        ('gate_proj.{p}', 'up_proj.{p}'): 'blocks.{i}.mlp.fc1.{p}',
        'down_proj.{p}': 'blocks.{i}.mlp.fc2.{p}',
    }), needed=('embeddings.position_embeddings',))

LAYERS = ('layer.{i}.', 'model.layer.{i}.')  # the latter from transformers 5 on
TRANSFORMERS_DINOV3 = PlainFormat(
    ('transformers-dinov3',), 'CPVT', ('embeddings.patch_embeddings.weight', 'embeddings.register_tokens'),
    {
        **below('embeddings.', {
            'cls_token': 'cls_token',
            'register_tokens': REGISTERS,
            'patch_embeddings.{p}': 'patch_embed.proj.{p}',
        }),
        **{theirs: ours for layer in LAYERS for theirs, ours in {
            (f'{layer}attention.q_proj.bias', None, f'{layer}attention.v_proj.bias'): Q_KV_BIAS,
            **block(layer, BLOCK, QKV, 'attention.o_proj', fc=('mlp.up_proj', 'mlp.down_proj'), scale=SCALE),
        }.items()},
    },
    gated={
        (f'{layer}mlp.gate_proj.{{p}}', f'{layer}mlp.up_proj.{{p}}'): 'blocks.{i}.mlp.fc1.{p}' for layer in LAYERS
    }, norm_eps=1e-5, encoding=ROTARY)

FAMILY = Family(MEMBERS, (TIMM_DINOV3, TRANSFORMERS_DINOV2, TRANSFORMERS_DINOV3))
