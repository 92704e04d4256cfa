"""The table of backbones with names: their arch, other arguments, and released weights with their licences.

`cpvt_mm.archs` has the sizes and modes of the archs; a name here adds what is needed to use released weights.
"""
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cpvt_mm.archs import PLAIN_ARCHS, TWINS_ARCHS

APACHE = 'Apache-2.0'
# Mean and standard deviation of RGB values from 0 to 255.
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
SCHEME = 'cpvt_mm://'  # before the name of a member: the address of its weights

# PVT has a table for each stage, PVT v2 and MiT have convolutions in the MLPs, whose zero padding tells positions.
PVT: dict[str, Any] = dict(position_encoding=dict(type='LearnablePE', mode='bilinear'))
PVTV2: dict[str, Any] = dict(position_encoding=None)
LINEAR = dict(sr_mode='pool', mlp_mode='relu-conv')

AUTHORS = 'https://github.com/whai362/PVT/releases/download/v2'  # their files, as in mmdet's configs
MIT_LICENCE = ('NVIDIA Source Code License for SegFormer, https://github.com/NVlabs/SegFormer/blob/master/LICENSE, '
               'which allows research and evaluation, not commercial use')

ROTARY: dict[str, Any] = dict(type='RotaryPE', form='dinov3')
DINOV3_LICENCE = 'DINOv3 License, https://ai.meta.com/resources/models-and-libraries/dinov3-license/'
NANO_LICENCE = ('Apache License 2.0; the images that it learnt from have other licences, see '
                'cpvt_mm/zoo/weights/README.md')
LINGBOT_LICENCE = ('Apache License 2.0 according to their authors and timm; the notice of lightly-train says that the '
                   f'{DINOV3_LICENCE}, applies as well')


WEIGHTS = Path(__file__).with_name('weights')  # files of this package; README.md there has licence and recipe


class Member(NamedTuple):
    """A backbone with a name, and its released weights. This project trained the weights of nano, which are part of the
    package. The authors of each family released all other weights, which this project has not evaluated.
    """
    backbone: str  # 'PyramidCPVT' or 'CPVT'
    name: str  # of its arch, in `PYRAMID_ARCHS` or `PLAIN_ARCHS`
    options: Mapping[str, Any] = {}  # other arguments that differ from the defaults
    parts: Mapping[str, Any] = {}  # fields that differ from the arch with this name
    files: tuple[str, ...] = ()  # paths or addresses of the same weights, the preferred one first; empty: none
    licence: str = APACHE  # of the weights, according to the authors' repository and timm's model cards
    norm_eps: float = 1e-6  # in training. A file's format does not tell: mmseg's models use 1e-5, its Twins files 1e-6
    normalization: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET  # of the images in training
    images: Mapping[str, Any] = dict(crop_pct=.9)  # how they were prepared, as timm says of its copies
    lacks: str = ''  # regular expression: parameters that the files lack, so they stay as a new model has them


def timm_copy(model: str) -> str:
    """Returns the address of timm's copy. Nobody has read its revisions yet, so it names the branch `main`."""
    return f'hf://timm/{model}'


def _released(arch: str, file: str) -> Member:
    # The first URL is from mmseg 1.2.2's configs; the second is timm's copy of the authors' weights.
    return Member('PyramidCPVT', arch, files=(
        f'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/twins/{file}',
        timm_copy(f'twins_pcpvt_{arch}.in1k')))


def _deit(arch: str, file: str) -> Member:
    # The first URL is the authors'; the second is timm's copy of their weights.
    return Member('CPVT', arch, dict(position_encoding=dict(type='LearnablePE')), files=(
        f'https://dl.fbaipublicfiles.com/deit/deit_{arch}_patch16_224-{file}.pth',
        timm_copy(f'deit_{arch}_patch16_224.fb_in1k')))


def _pvtv2(size: str) -> Member:
    name = f'pvt_v2_{size.replace("-", "_")}'
    return Member('PyramidCPVT', f'pvtv2-{size.removesuffix("-li")}', PVTV2, LINEAR if size.endswith('-li') else {},
                  (f'{AUTHORS}/{name}.pth', timm_copy(f'{name}.in1k')))


def _mit(size: str, file: str) -> Member:
    # From mmseg 1.2.2's configs: the authors' weights under mmseg's names.
    url = f'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/segformer/mit_{size}_20220624-{file}.pth'
    return Member('PyramidCPVT', f'mit-{size}', PVTV2, {}, (url,), MIT_LICENCE)


def _mlp(arch: str) -> str:
    return 'swiglu' if arch == 'giant' or arch.endswith('plus') else 'linear'


def _like_dinov2(arch: str, registers: int, img_size: int = 518) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns `options` and `parts` of a ViT with the parts of DINOv2."""
    # The models with registers resample the table in another way.
    table = dict(type='LearnablePE', antialias=True) if registers else dict(type='LearnablePE', offset=0.1)
    return dict(img_size=img_size, position_encoding=table), dict(
        patch_size=14, num_register_tokens=registers, layer_scale=1e-5, mlp_mode=_mlp(arch))


def _like_dinov3(arch: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns `options` and `parts` of a ViT with the parts of DINOv3."""
    return dict(position_encoding=ROTARY), dict(num_register_tokens=4, layer_scale=1e-5, norm_eps=1e-5,
                                                mlp_mode=_mlp(arch))


def _dinov2(arch: str, suffix: str) -> Member:
    # The first URL is the authors'; the second is timm's copy of their weights.
    name = f'dinov2_vit{arch[0]}14'
    return Member('CPVT', arch, *_like_dinov2(arch, 4 if suffix else 0), (
        f'https://dl.fbaipublicfiles.com/dinov2/{name}/{name}{suffix}_pretrain.pth',
        timm_copy(f'vit_{arch}_patch14{suffix}_dinov2.lvd142m')),
        images=dict(input_size=(3, 518, 518), crop_pct=1.))


def _dinov3(arch: str) -> Member:
    # timm's copy. The authors' files need a request, see docs/guides/pretrained_weights.md.
    model = f'vit_{arch.replace("-", "_")}_patch16_dinov3_qkvb.lvd1689m'
    return Member('CPVT', arch, *_like_dinov3(arch), (timm_copy(model),), DINOV3_LICENCE, norm_eps=1e-5,
                  images=dict(input_size=(3, 256, 256), crop_pct=1.))


def _lingbot(arch: str) -> Member:
    # arXiv 2607.05247, and the copy that timm names. It has the same parts as a DINOv3.
    file = f'hf://belfner/vit_{arch}_patch16_lingbot.robbyant'
    return Member('CPVT', arch, *_like_dinov3(arch), (file,), LINGBOT_LICENCE, norm_eps=1e-5, images=dict(
        input_size=(3, 512, 512), crop_pct=1., crop_mode='squash', interpolation='bilinear'))


def _tipsv2(arch: str) -> Member:
    # arXiv 2604.12012, which timm names.
    return Member('CPVT', arch, *_like_dinov2(arch, 1, img_size=448),
                  (timm_copy(f'vit_{arch}_patch14_reg1_tipsv2.webli'),),
                  normalization=((0.,) * 3, (255.,) * 3), images=dict(input_size=(3, 448, 448), crop_pct=1.))


def _rope_vit(arch: str, kind: str) -> Member:
    # timm's copy of the authors' weights. Axial models have no name for this in timm.
    model = f'vit_{arch}_patch16_rope_{kind.replace("-", "_")}_224.naver_in1k'.replace('_axial', '')
    table = [dict(type='LearnablePE')] if kind.endswith('-ape') else []
    rotary = dict(type='RotaryPE' if kind.startswith('axial') else 'MixedRotaryPE')
    return Member('CPVT', arch, dict(position_encoding=[*table, rotary]), dict(layer_scale=1e-5),
                  (timm_copy(model),))


MEMBERS: dict[str, Member] = {
    'pyramid-cpvt-nano': Member('PyramidCPVT', 'nano', files=(str(WEIGHTS / 'pyramid-cpvt-nano.safetensors'),),
                                licence=NANO_LICENCE, lacks='out_norms'),
    'pyramid-cpvt-tiny': Member('PyramidCPVT', 'tiny'),
    'pyramid-cpvt-small': _released('small', 'pcpvt_small_20220308-e638c41c.pth'),
    'pyramid-cpvt-base': _released('base', 'pcpvt_base_20220308-0621964c.pth'),
    'pyramid-cpvt-large': _released('large', 'pcpvt_large_20220308-37579dc6.pth'),
    **{name: Member('PyramidCPVT', name, PVT, dict(cls_token=True), (f'{AUTHORS}/{name.replace("-", "_")}.pth',))
       for name in ('pvt-tiny', 'pvt-small', 'pvt-medium', 'pvt-large')},
    **{f'pvtv2-{size}': _pvtv2(size) for size in ('b0', 'b1', 'b2', 'b2-li', 'b3', 'b4', 'b5')},
    **{f'mit-{size}': _mit(size, file) for size, file in (
        ('b0', '7e0fe6dd'), ('b1', '02e5a6a1'), ('b2', '66e8bf70'), ('b3', '13b1141c'), ('b4', 'd588d980'),
        ('b5', '658746d9'))},
    **{f'cpvt-{arch}': Member('CPVT', arch) for arch in ('tiny', 'small', 'base')},
    'deit-tiny': _deit('tiny', 'a1311bcf'),
    'deit-small': _deit('small', 'cd65a155'),
    'deit-base': _deit('base', 'b5f2ef4d'),
    **{f'dinov2-{arch}{suffix.replace("_", "-")}': _dinov2(arch, suffix)
       for arch in ('small', 'base', 'large', 'giant') for suffix in ('', '_reg4')},
    **{f'dinov3-{arch}': _dinov3(arch) for arch in ('small', 'small-plus', 'base', 'large', 'huge-plus')},
    **{f'lingbot-{arch}': _lingbot(arch) for arch in ('small', 'base', 'large', 'giant')},
    **{f'tipsv2-{arch}': _tipsv2(arch) for arch in ('base', 'large', 'giant')},
    **{f'rope-vit-{arch}-{kind}': _rope_vit(arch, kind)
       for kind in ('axial', 'mixed', 'axial-ape', 'mixed-ape')  # the latter have a table of positions as well
       for arch in ('small', 'base', 'large')},
}
RELEASED = {name: member for name, member in MEMBERS.items() if member.files}
PYRAMIDS = tuple(name for name, member in MEMBERS.items() if member.backbone == 'PyramidCPVT')

# Backbones that `swap` puts into a config, and the names of their archs. SAME keeps a backbone that this project
# implements.
SAME = 'same'
SWAPPED_IN = {'PyramidCPVT': tuple(TWINS_ARCHS), 'CPVT': tuple(PLAIN_ARCHS),
              **{name: (member.name,) for name, member in RELEASED.items()}}
