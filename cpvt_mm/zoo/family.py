"""The parts of a family of backbones: sizes, backbones with names and weights, and formats of checkpoints."""
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, NamedTuple, TypeVar

from cpvt_mm.tokens.validation import check_above, check_choice, check_names, check_positive

from .renaming import Format

Arch = TypeVar('Arch')
STRIDES = (4, 8, 16, 32)  # of the stages of a pyramid, in pixels
APACHE = 'Apache-2.0'
# Mean and standard deviation of RGB values from 0 to 255.
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


@dataclass(frozen=True)
class PyramidArch:
    """Widths and depths of the stages, one int for each of the four, and the parts of a pyramid."""
    embed_dims: Sequence[int]  # channels of a token
    depths: Sequence[int]  # numbers of blocks
    num_heads: Sequence[int]  # each divides the stage's `embed_dims`
    mlp_ratios: Sequence[int]  # hidden channels of an MLP, as a multiple of `embed_dims`
    sr_ratios: Sequence[int]  # by which spatial reduction shrinks each side of the key grid
    # Spatial reduction of keys and values. 'conv': by `sr_ratios`; attention costs the square of the number of pixels.
    # 'pool': to 7 x 7 (PVT v2, arXiv 2106.13797, section 3.2); it is linear.
    sr_mode: Literal['conv', 'pool'] = 'conv'
    # 'conv': a zero-padded depthwise 3 x 3 convolution in front of each MLP's GELU (PVT v2, section 3.2); 'relu-conv':
    # with ReLU before this, as in its b2-li.
    mlp_mode: Literal['linear', 'conv', 'relu-conv'] = 'linear'
    # 'disjoint': patches of 4 x 4 pixels, then 2 x 2 cells. 'overlap': convolutions of 7 x 7 with stride 4, then 3 x 3
    # with stride 2 (PVT v2, section 3.2).
    patch_mode: Literal['disjoint', 'overlap'] = 'disjoint'
    # Whether a LayerNorm ends each stage, whose result is returned and handed on, as in PVT v2 and SegFormer.
    stage_norm: bool = False
    # Whether the cells of the last stage attend to a class token, too, which is not returned, as in the classifiers of
    # PVT (arXiv 2102.12122, section 3.5).
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
                             'take cells only: leave cls_token out, as PVT v2 does.')


@dataclass(frozen=True)
class PlainArch:
    """Width, depth and parts of a plain backbone."""
    embed_dims: int  # channels of a token
    depth: int  # number of blocks
    num_heads: int  # divides `embed_dims`
    mlp_ratio: int = 4  # hidden channels of an MLP, as a multiple of `embed_dims`
    patch_size: int = 16  # side of a patch in pixels
    dist_token: bool = False  # whether a distillation token follows the class token (DeiT, section 4)
    # Learnt tokens that follow these and that only 'raw' returns (registers, arXiv 2309.16588).
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


class Member(NamedTuple):
    """A backbone with a name, and weights that the authors of the family released. This project has not evaluated them.
    """
    backbone: str  # 'PyramidCPVT' or 'CPVT'
    name: str  # of its arch
    options: Mapping[str, Any] = {}  # other arguments that differ from the defaults
    parts: Mapping[str, Any] = {}  # fields of the arch that differ from those of the name
    files: Mapping[str, str] = {}  # address -> format; all contain the same weights, the preferred address is the first
    licence: str = APACHE  # of the weights, according to the authors' repository and timm's model cards
    norm_eps: float = 1e-6  # in training. A file's format does not tell: mmseg's models use 1e-5, its Twins files 1e-6
    normalization: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET  # of the images in training
    images: Mapping[str, Any] = dict(crop_pct=.9)  # how they were prepared, as timm says of its copies


class Family(NamedTuple):
    """The contents of one file of this folder."""
    members: Mapping[str, Member]
    formats: tuple[Format, ...]  # the more specific ones last
    # Classes of mmdet, mmseg and mmpretrain that compute the same -> how names of archs begin, and other arguments.
    classes: Mapping[str, tuple[str, Mapping[str, Any]]] = {}


def timm_copy(model: str) -> str:
    """Returns the address of timm's copy. Nobody has read its revisions yet, so it names the branch `main`."""
    return f'hf://timm/{model}'


def parse_arch(arch: str | Mapping[str, Any], cls: type[Arch], named: Mapping[str, Arch],
               variants: Mapping[str, Any] = {}) -> Arch:
    """Returns `named[arch]`, or builds the dataclass `cls` from a dict, which may change fields of a `name`.

    `variants` are fields as well, which were arguments of the backbone before; they are told to move. Raises a
    ValueError if `arch` does not fit, or a TypeError if a variant is no field.
    """
    allowed = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # cls is a dataclass
    for name in variants:
        if name not in allowed:
            raise TypeError(f'__init__() got an unexpected keyword argument {name!r}')
    given = dict(arch) if isinstance(arch, Mapping) else dict(name=arch)
    if variants:
        warnings.warn(f'{", ".join(variants)} will no longer be accepted: write arch={given | dict(variants)}.',
                      FutureWarning, stacklevel=3)
    base = given.pop('name', None)
    check_names('a key of arch', given, ['name', *allowed])
    if base is None:
        required = [field.name for field in fields(cls) if field.default is MISSING]  # type: ignore[arg-type]
        if not set(required) <= set(given):
            raise ValueError(f'arch has only {", ".join(given)}, but must have {", ".join(required)}, or a name.')
        return cls(**{**given, **variants})
    if base not in list(named):
        raise ValueError(f'{base!r} is not an arch; allowed are {", ".join(named)}, or a dict of {", ".join(allowed)}.')
    return replace(named[base], **{**given, **variants})  # type: ignore[type-var]  # it is a dataclass
