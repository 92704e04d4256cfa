"""Weights that the authors of the architectures have released; their address is `cpvt_mm://<name>`."""
from pathlib import Path
from typing import NamedTuple

from cpvt_mm.registry import FUNCTIONS
from openmmlab_runs.checkpoints.fetching import Source
from openmmlab_runs.errors import UserError, did_you_mean

SCHEME = 'cpvt_mm://'
APACHE = 'Apache-2.0'

TWINS = 'arXiv 2104.13840, table of ImageNet-1k results: Twins-PCPVT'
PVT = 'arXiv 2102.12122, README of whai362/PVT'
PVTV2 = 'arXiv 2106.13797; the accuracy is what timm reports'
MIT = 'arXiv 2105.15203, whose repository states no ImageNet-1k accuracy'
MIT_LICENCE = ('NVIDIA Source Code License for SegFormer, https://github.com/NVlabs/SegFormer/blob/master/LICENSE, '
               'which allows research and evaluation, not commercial use')
DEIT = 'arXiv 2012.12877, table of ImageNet-1k results: DeiT without distillation'
DINOV2 = 'arXiv 2304.07193, README of facebookresearch/dinov2: linear classifier on frozen features'
DINOV3 = 'arXiv 2508.10104, which reports no ImageNet-1k accuracy of these'
DINOV3_LICENCE = 'DINOv3 License, https://ai.meta.com/resources/models-and-libraries/dinov3-license/'
LINGBOT = 'arXiv 2607.05247, which timm names; no ImageNet-1k accuracy is known here'
LINGBOT_LICENCE = ('Apache License 2.0 according to their authors and timm; the notice of lightly-train says that the '
                   f'{DINOV3_LICENCE}, applies as well')
TIPSV2 = 'arXiv 2604.12012, which timm names; no ImageNet-1k accuracy is known here'
ROPE_VIT = 'arXiv 2403.13298, README of naver-ai/rope-vit: DeiT-III, 400 epochs, 224 x 224'
# Mean and standard deviation of RGB values from 0 to 255.
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


class Released(NamedTuple):
    """Released weights. This project has not evaluated them."""
    backbone: str  # 'PyramidCPVT' or 'CPVT'
    arch: str  # `arch` of this class
    files: dict[str, str]  # address -> format; all contain the same weights, the preferred address is the first
    top1: float | None  # the authors' ImageNet-1k accuracy at 224 x 224 in percent; None: not reported
    source: str  # where the authors report it
    licence: str = APACHE  # of the weights, according to the authors' repository and timm's model cards
    norm_eps: float = 1e-6  # in training. A file's format does not tell: mmseg's models use 1e-5, its Twins files 1e-6
    normalization: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET  # of the images in training


def _hub(model: str) -> str:
    """Returns the address of timm's copy. Nobody has read its revisions yet, so it names the branch `main`."""
    return f'hf://timm/{model}'


def _twins(arch: str, file: str, top1: float) -> Released:
    # The first URL is from mmseg 1.2.2's configs; the second is timm's copy of the authors' weights.
    return Released('PyramidCPVT', arch, {
        f'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/twins/{file}': 'mmseg',
        _hub(f'twins_pcpvt_{arch}.in1k'): 'timm'}, top1, TWINS)


def _pvt(arch: str, top1: float) -> Released:
    # The authors' file, as in mmdet's configs.
    file = f'https://github.com/whai362/PVT/releases/download/v2/pvt_{arch}.pth'
    return Released('PyramidCPVT', f'pvt-{arch}', {file: 'pvt'}, top1, PVT)


def _pvtv2(size: str, top1: float) -> Released:
    # The first is the authors' file, as in mmdet's configs; the second is timm's copy.
    name = f'pvt_v2_{size.replace("-", "_")}'
    return Released('PyramidCPVT', f'pvtv2-{size.removesuffix("-li")}', {
        f'https://github.com/whai362/PVT/releases/download/v2/{name}.pth': 'pvtv2',
        _hub(f'{name}.in1k'): 'timm-pvtv2'}, top1, PVTV2)


def _mit(size: str, file: str) -> Released:
    # From mmseg 1.2.2's configs: the authors' weights under mmseg's names.
    url = f'https://download.openmmlab.com/mmsegmentation/v0.5/pretrain/segformer/{file}'
    return Released('PyramidCPVT', f'mit-{size}', {url: 'mmseg-mit'}, None, MIT, MIT_LICENCE)


def _deit(arch: str, file: str, top1: float) -> Released:
    # The first URL is the authors'; the second is timm's copy of their weights.
    return Released('CPVT', arch, {
        f'https://dl.fbaipublicfiles.com/deit/{file}': 'timm',
        _hub(f'deit_{arch}_patch16_224.fb_in1k'): 'timm'}, top1, DEIT)


def _dinov2(arch: str, registers: bool, top1: float) -> Released:
    # The first URL is the authors'; the second is timm's copy of their weights.
    name, suffix = f'dinov2_vit{arch[0]}14', '_reg4' if registers else ''
    return Released('CPVT', arch, {
        f'https://dl.fbaipublicfiles.com/dinov2/{name}/{name}{suffix}_pretrain.pth': 'timm',
        _hub(f'vit_{arch}_patch14{suffix}_dinov2.lvd142m'): 'timm'}, top1, DINOV2)


def _dinov3(arch: str) -> Released:
    # timm's copy. The authors' files need a request, see docs/guides/pretrained_weights.md.
    model = f'vit_{arch.replace("-", "_")}_patch16_dinov3_qkvb.lvd1689m'
    return Released('CPVT', arch, {_hub(model): 'timm-dinov3'}, None, DINOV3, DINOV3_LICENCE, norm_eps=1e-5)


def _lingbot(arch: str) -> Released:
    # The copy that timm names. It has the same parts as a DINOv3.
    file = f'hf://belfner/vit_{arch}_patch16_lingbot.robbyant'
    return Released('CPVT', arch, {file: 'timm-dinov3'}, None, LINGBOT, LINGBOT_LICENCE, norm_eps=1e-5)


def _tipsv2(arch: str) -> Released:
    return Released('CPVT', arch, {_hub(f'vit_{arch}_patch14_reg1_tipsv2.webli'): 'timm'}, None, TIPSV2,
                    normalization=((0.,) * 3, (255.,) * 3))


def _rope_vit(arch: str, kind: str, top1: float) -> Released:
    # timm's copy of the authors' weights. Axial models have no name for this in timm.
    model = f'vit_{arch}_patch16_rope_{kind.replace("-", "_")}_224.naver_in1k'.replace('_axial', '')
    return Released('CPVT', arch, {_hub(model): f'timm-rope-{kind.removesuffix("-ape")}'}, top1, ROPE_VIT)


ROPE_TOP1 = {  # of small, base and large
    'axial': (80.9, 83.6, 84.7), 'mixed': (80.9, 83.8, 84.8),
    'axial-ape': (80.7, 83.7, 84.7), 'mixed-ape': (80.9, 83.8, 84.9)}  # with a table of positions as well
RELEASED = {
    'pyramid-cpvt-small': _twins('small', 'pcpvt_small_20220308-e638c41c.pth', 81.2),
    'pyramid-cpvt-base': _twins('base', 'pcpvt_base_20220308-0621964c.pth', 82.7),
    'pyramid-cpvt-large': _twins('large', 'pcpvt_large_20220308-37579dc6.pth', 83.1),
    **{f'pvt-{arch}': _pvt(arch, top1) for arch, top1 in (
        ('tiny', 75.1), ('small', 79.8), ('medium', 81.2), ('large', 81.7))},
    **{f'pvtv2-{size}': _pvtv2(size, top1) for size, top1 in (
        ('b0', 70.7), ('b1', 78.7), ('b2', 82.1), ('b2-li', 82.2), ('b3', 83.1), ('b4', 83.7), ('b5', 83.8))},
    # Their licence is not Apache-2.0: it forbids commercial use.
    'mit-b0': _mit('b0', 'mit_b0_20220624-7e0fe6dd.pth'),
    'mit-b1': _mit('b1', 'mit_b1_20220624-02e5a6a1.pth'),
    'mit-b2': _mit('b2', 'mit_b2_20220624-66e8bf70.pth'),
    'mit-b3': _mit('b3', 'mit_b3_20220624-13b1141c.pth'),
    'mit-b4': _mit('b4', 'mit_b4_20220624-d588d980.pth'),
    'mit-b5': _mit('b5', 'mit_b5_20220624-658746d9.pth'),
    # For CPVT with a LearnablePE. With another encoding, the position table is dropped.
    'deit-tiny': _deit('tiny', 'deit_tiny_patch16_224-a1311bcf.pth', 72.2),
    'deit-small': _deit('small', 'deit_small_patch16_224-cd65a155.pth', 79.8),
    'deit-base': _deit('base', 'deit_base_patch16_224-b5f2ef4d.pth', 81.8),
    'dinov2-small': _dinov2('small', False, 81.1),
    'dinov2-small-reg4': _dinov2('small', True, 80.9),
    'dinov2-base': _dinov2('base', False, 84.5),
    'dinov2-base-reg4': _dinov2('base', True, 84.6),
    'dinov2-large': _dinov2('large', False, 86.3),
    'dinov2-large-reg4': _dinov2('large', True, 86.7),
    'dinov2-giant': _dinov2('giant', False, 86.5),
    'dinov2-giant-reg4': _dinov2('giant', True, 87.1),
    # Their licence is not Apache-2.0: it restricts use, and asks to pass it on with the weights.
    'dinov3-small': _dinov3('small'),
    'dinov3-small-plus': _dinov3('small-plus'),
    'dinov3-base': _dinov3('base'),
    'dinov3-large': _dinov3('large'),
    'dinov3-huge-plus': _dinov3('huge-plus'),
    **{f'lingbot-{arch}': _lingbot(arch) for arch in ('small', 'base', 'large', 'giant')},
    **{f'tipsv2-{arch}': _tipsv2(arch) for arch in ('base', 'large', 'giant')},
    **{f'rope-vit-{arch}-{kind}': _rope_vit(arch, kind, top1) for kind, values in ROPE_TOP1.items()
       for arch, top1 in zip(('small', 'base', 'large'), values, strict=True)},
}


def find_released(checkpoint: str | Path) -> Released | None:
    """Returns the weights for `cpvt_mm://<name>` (a UserError if it is unknown) or one of their addresses; or None."""
    address = str(checkpoint)
    if not address.startswith(SCHEME):
        return next((released for released in RELEASED.values() if address in released.files), None)
    name = address.removeprefix(SCHEME)
    if name not in RELEASED:
        raise UserError(f'checkpoint {address} is not among the released weights{did_you_mean(name, RELEASED)}; there '
                        f'are {", ".join(SCHEME + known for known in RELEASED)}.')
    return RELEASED[name]


@FUNCTIONS.register_module()
def source_of_weights(address: str) -> Source | None:
    """Tells `openmmlab_runs` where weights lie, and under which terms."""
    released = find_released(address)
    return released and Source(tuple(released.files), None if released.licence == APACHE else released.licence)
