"""What a family of backbones consists of: sizes, backbones with names and weights, and formats of checkpoints."""
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, NamedTuple, TypeVar

from cpvt_mm.tokens.validation import check_names, check_positive

from .renaming import Format

Arch = TypeVar('Arch')
STRIDES = (4, 8, 16, 32)  # of the stages of a pyramid, in pixels
APACHE = 'Apache-2.0'
# Mean and standard deviation of RGB values from 0 to 255.
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


@dataclass(frozen=True)
class PyramidArch:
    """Widths and depths of the stages: each attribute has one int for each of the four."""
    embed_dims: Sequence[int]  # channels of a token
    depths: Sequence[int]  # numbers of blocks
    num_heads: Sequence[int]  # each divides the stage's `embed_dims`
    mlp_ratios: Sequence[int]  # hidden channels of an MLP, as a multiple of `embed_dims`
    sr_ratios: Sequence[int]  # by which spatial reduction shrinks each side of the key grid

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not isinstance(values, Sequence) or len(values) != len(STRIDES):
                raise ValueError(f'arch: {name} is {values!r}, but must be {len(STRIDES)} ints, one for each stage.')
            for value in values:
                check_positive(f'arch: {name}', value)
        for width, heads in zip(self.embed_dims, self.num_heads, strict=True):
            if width % heads:
                raise ValueError(f'arch: num_heads has {heads}, but must divide the embed_dims of its stage, {width}.')


@dataclass(frozen=True)
class PlainArch:
    """Width and depth of a plain backbone."""
    embed_dims: int  # channels of a token
    depth: int  # number of blocks
    num_heads: int  # divides `embed_dims`
    mlp_ratio: int = 4  # hidden channels of an MLP, as a multiple of `embed_dims`

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_positive(f'arch: {name}', value)
        if self.embed_dims % self.num_heads:
            raise ValueError(f'arch: num_heads is {self.num_heads}, but must divide embed_dims, {self.embed_dims}.')


class Member(NamedTuple):
    """A backbone with a name, and weights that the authors of the family released. This project has not evaluated them.
    """
    backbone: str  # 'PyramidCPVT' or 'CPVT'
    arch: str  # `arch` of this class
    options: Mapping[str, Any] = {}  # other arguments that differ from the defaults
    files: Mapping[str, str] = {}  # address -> format; all contain the same weights, the preferred address is the first
    top1: float | None = None  # the authors' ImageNet-1k accuracy at 224 x 224 in percent; None: not reported
    source: str = ''  # where the authors report it
    licence: str = APACHE  # of the weights, according to the authors' repository and timm's model cards
    norm_eps: float = 1e-6  # in training. A file's format does not tell: mmseg's models use 1e-5, its Twins files 1e-6
    normalization: tuple[tuple[float, ...], tuple[float, ...]] = IMAGENET  # of the images in training
    images: Mapping[str, Any] = dict(crop_pct=.9)  # how they were prepared, as timm says of its copies


class Family(NamedTuple):
    """What lies in one file of this folder."""
    archs: Mapping[str, Any]  # `PyramidArch` or `PlainArch` by name
    members: Mapping[str, Member]
    formats: tuple[Format, ...]  # the more specific ones last
    # Classes of mmdet, mmseg and mmpretrain that compute the same -> how names of archs begin, and other arguments.
    classes: Mapping[str, tuple[str, Mapping[str, Any]]] = {}


def timm_copy(model: str) -> str:
    """Returns the address of timm's copy. Nobody has read its revisions yet, so it names the branch `main`."""
    return f'hf://timm/{model}'


def parse_arch(arch: str | dict[str, Any], cls: type[Arch], named: Mapping[str, Arch]) -> Arch:
    """Returns `named[arch]`, or builds the dataclass `cls` from a dict; raises a ValueError if neither fits."""
    parts = fields(cls)  # type: ignore[arg-type]  # cls is a dataclass
    allowed = [field.name for field in parts]
    required = [field.name for field in parts if field.default is MISSING]
    if isinstance(arch, dict):
        check_names('a key of arch', arch, allowed)
        if not set(required) <= set(arch):
            raise ValueError(f'arch has only {", ".join(arch)}, but must have {", ".join(required)}.')
        return cls(**arch)
    if arch not in list(named):
        raise ValueError(f'{arch!r} is not an arch; allowed are {", ".join(named)}, or a dict of {", ".join(allowed)}.')
    return named[arch]
