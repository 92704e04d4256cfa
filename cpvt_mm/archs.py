"""The archs of both backbones: their fields, and the sizes and modes of each name."""
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, TypeVar

from cpvt_mm.tokens.validation import check_above, check_choice, check_names, check_positive

Arch = TypeVar('Arch')
STRIDES = (4, 8, 16, 32)  # of the stages of a pyramid, in pixels


@dataclass(frozen=True)
class PyramidArch:
    """The size and the parts of a pyramid. Each tuple contains one number for each of the four stages."""
    embed_dims: Sequence[int]  # channels of a token
    depths: Sequence[int]  # numbers of blocks
    num_heads: Sequence[int]  # each divides the stage's `embed_dims`
    mlp_ratios: Sequence[int]  # hidden channels of an MLP, as a multiple of `embed_dims`
    sr_ratios: Sequence[int]  # by which spatial reduction shrinks each side of the key grid
    # Spatial reduction of keys and values. 'conv': a convolution shrinks the key grid by `sr_ratios`, so the cost of
    # attention grows with the square of the number of pixels. 'pool': average pooling to 7 x 7 cells (PVT v2, arXiv
    # 2106.13797, section 3.2), so the cost grows linearly.
    sr_mode: Literal['conv', 'pool'] = 'conv'
    # 'linear': two linear layers. 'conv': also a zero-padded depthwise 3 x 3 convolution before GELU (PVT v2, section
    # 3.2). 'relu-conv': also a ReLU before this convolution, as in PVT v2-b2-li.
    mlp_mode: Literal['linear', 'conv', 'relu-conv'] = 'linear'
    # 'disjoint': patches of 4 x 4 pixels in the first stage, and of 2 x 2 cells in later ones. 'overlap': convolutions
    # of 7 x 7 with stride 4, and of 3 x 3 with stride 2 (PVT v2, section 3.2).
    patch_mode: Literal['disjoint', 'overlap'] = 'disjoint'
    # Whether each stage ends with a LayerNorm, as in PVT v2 and SegFormer. Its result is returned, and is the input of
    # the next stage.
    stage_norm: bool = False
    # Whether the cells of the last stage also attend to a class token, as in the classifiers of PVT (arXiv 2102.12122,
    # section 3.5). The token is not returned.
    cls_token: bool = False
    # The eps of the LayerNorms in patch embeddings and spatial reduction. In mmdet, mmseg, and PVT and PVT v2 of
    # transformers it is 1e-6; in the originals 1e-5.
    embed_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ('embed_dims', 'depths', 'num_heads', 'mlp_ratios', 'sr_ratios'):
            values = getattr(self, name)
            if not isinstance(values, Sequence) or len(values) != len(STRIDES):
                raise ValueError(f'arch: {name} is {values!r}, but must be {len(STRIDES)} ints, one for each stage.')
            for value in values:
                check_positive(f'arch: {name}', value)
        for width, heads in zip(self.embed_dims, self.num_heads, strict=True):
            if width % heads:
                raise ValueError(f'arch: num_heads has {heads}, but must divide the embed_dims of its stage, {width}.')
        _check_modes(self, sr_mode=('conv', 'pool'), mlp_mode=('linear', 'conv', 'relu-conv'),
                     patch_mode=('disjoint', 'overlap'), stage_norm=(False, True), cls_token=(False, True))
        check_above('arch: embed_norm_eps', self.embed_norm_eps, 0)
        if self.cls_token and (self.mlp_mode != 'linear' or self.sr_mode == 'pool' or self.sr_ratios[-1] > 1):
            raise ValueError('arch: cls_token is True, but the last stage has convolutions or spatial reduction, which '
                             'support only cells: set cls_token to False, as PVT v2 does.')


@dataclass(frozen=True)
class PlainArch:
    """Width, depth and parts of a plain backbone."""
    embed_dims: int  # channels of a token
    depth: int  # number of blocks
    num_heads: int  # divides `embed_dims`
    mlp_ratio: int = 4  # hidden channels of an MLP, as a multiple of `embed_dims`
    patch_size: int = 16  # side of a patch in pixels
    dist_token: bool = False  # whether a distillation token follows the class token (DeiT, section 4)
    # Learnt tokens after the class tokens (registers, arXiv 2309.16588); only the `out_type` 'raw' returns them.
    num_register_tokens: int = 0
    mlp_mode: Literal['linear', 'swiglu'] = 'linear'  # 'swiglu': MLPs with a gate, see `SwiGLU`
    layer_scale: float | None = None  # initial value of `LayerScale` at the end of each branch; None: there is none
    norm_eps: float = 1e-6  # of the LayerNorms; DINOv3 needs 1e-5

    def __post_init__(self) -> None:
        for name in ('embed_dims', 'depth', 'num_heads', 'mlp_ratio', 'patch_size'):
            check_positive(f'arch: {name}', getattr(self, name))
        if self.embed_dims % self.num_heads:
            raise ValueError(f'arch: num_heads is {self.num_heads}, but must divide embed_dims, {self.embed_dims}.')
        _check_modes(self, dist_token=(False, True), mlp_mode=('linear', 'swiglu'))
        if type(self.num_register_tokens) is not int or self.num_register_tokens < 0:
            raise ValueError(f'arch: num_register_tokens is {self.num_register_tokens!r}, but must be an int of at '
                             'least 0.')
        if self.layer_scale is not None:
            check_above('arch: layer_scale', self.layer_scale, 0)
        check_above('arch: norm_eps', self.norm_eps, 0)


def _check_modes(arch: object, **allowed: Sequence[object]) -> None:
    for name, values in allowed.items():
        check_choice(f'arch: {name}', getattr(arch, name), values)


def parse_arch(arch: str | Mapping[str, Any], cls: type[Arch], named: Mapping[str, Arch]) -> Arch:
    """Returns `named[arch]`, or builds the dataclass `cls` from a dict, which may change fields of a `name`.

    Raises a ValueError if `arch` does not fit.
    """
    allowed = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # cls is a dataclass
    given = dict(arch) if isinstance(arch, Mapping) else dict(name=arch)
    base = given.pop('name', None)
    check_names('a key of arch', given, ['name', *allowed])
    if base is None:
        required = [field.name for field in fields(cls) if field.default is MISSING]  # type: ignore[arg-type]
        if not set(required) <= set(given):
            raise ValueError(f'arch has only {", ".join(given)}, but must have {", ".join(required)}, or a name.')
        return cls(**given)
    if base not in list(named):
        raise ValueError(f'{base!r} is not an arch; allowed are {", ".join(named)}, or a dict of {", ".join(allowed)}.')
    return replace(named[base], **given)  # type: ignore[type-var]  # it is a dataclass


def _twins(*depths: int) -> PyramidArch:
    """Returns the widths of Twins-PCPVT and PVT, with these depths."""
    return PyramidArch(embed_dims=(64, 128, 320, 512), depths=depths, num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4),
                       sr_ratios=(8, 4, 2, 1))


def _v2(size: str, *mlp_ratios: int) -> PyramidArch:
    """Returns an arch of PVT v2 or MiT."""
    arch = replace(_twins(*V2_DEPTHS[size]), mlp_ratios=mlp_ratios, patch_mode='overlap', mlp_mode='conv',
                   stage_norm=True)
    return replace(arch, embed_dims=(32, 64, 160, 256)) if size == 'b0' else arch


V2_DEPTHS = {
    'b0': (2, 2, 2, 2), 'b1': (2, 2, 2, 2), 'b2': (3, 4, 6, 3), 'b3': (3, 4, 18, 3), 'b4': (3, 8, 27, 3),
    'b5': (3, 6, 40, 3)}
# Twins-PCPVT (arXiv 2104.13840), and a smaller pyramid for trials on a CPU.
TWINS_ARCHS = {
    'nano': PyramidArch(embed_dims=(32, 64, 128, 192), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 6),
                        mlp_ratios=(4, 4, 4, 4), sr_ratios=(8, 4, 2, 1)),
    'tiny': _twins(2, 2, 2, 2),
    'small': _twins(3, 4, 6, 3),
    'base': _twins(3, 4, 18, 3),
    'large': _twins(3, 8, 27, 3),
}
PYRAMID_ARCHS: Mapping[str, PyramidArch] = {
    **TWINS_ARCHS,
    # PVT (arXiv 2102.12122, table 1) has the sizes of Twins.
    'pvt-tiny': _twins(2, 2, 2, 2),
    'pvt-small': _twins(3, 4, 6, 3),
    'pvt-medium': _twins(3, 4, 18, 3),
    'pvt-large': _twins(3, 8, 27, 3),
    # PVT v2 (arXiv 2106.13797, table 1) and the MiT of SegFormer (arXiv 2105.15203, table 6)
    **{f'pvtv2-{size}': _v2(size, 8, 8, 4, 4) for size in ('b0', 'b1', 'b2', 'b3', 'b4')},
    'pvtv2-b5': _v2('b5', 4, 4, 4, 4),
    **{f'mit-{size}': _v2(size, 4, 4, 4, 4) for size in V2_DEPTHS},
}
PLAIN_ARCHS: Mapping[str, PlainArch] = {
    # DeiT (arXiv 2012.12877), and the large ViT
    'tiny': PlainArch(embed_dims=192, depth=12, num_heads=3),
    'small': PlainArch(embed_dims=384, depth=12, num_heads=6),
    'base': PlainArch(embed_dims=768, depth=12, num_heads=12),
    'large': PlainArch(embed_dims=1024, depth=24, num_heads=16),
    # With SwiGLU, the first is DINOv2's largest, and the others are DINOv3's.
    'giant': PlainArch(embed_dims=1536, depth=40, num_heads=24),
    'small-plus': PlainArch(embed_dims=384, depth=12, num_heads=6, mlp_ratio=6),
    'huge-plus': PlainArch(embed_dims=1280, depth=32, num_heads=20, mlp_ratio=6),
}
