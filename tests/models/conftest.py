"""Fixtures and types for tests of both backbones."""
from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.tokens.grid import Size
from tests.backbones import BACKBONES
from tests.helpers import refusal

Backbone: TypeAlias = PyramidCPVT | CPVT
Build: TypeAlias = Callable[..., Backbone]

PYRAMID, PLAIN = BACKBONES['conv'], BACKBONES['plain']

both = pytest.mark.parametrize('build', [PYRAMID, PLAIN], ids=['pyramid', 'plain'])
every_backbone = pytest.mark.parametrize('build', BACKBONES.values(), ids=BACKBONES)


def outspoken(build: Build, **kwargs: object) -> Backbone:
    """A backbone in eval mode, its weights large enough for attention to be far from even."""
    model = build(**kwargs).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    return model


def alone(images: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Images of a batch, or frames of a clip, as if they were all: with zeros up to common multiples of 32."""
    height, width = (-(-max(sides) // 32) * 32 for sides in zip(*sizes, strict=True))
    return torch.stack([F.pad(image[:, :h, :w], (0, width - w, 0, height - h))
                        for image, (h, w) in zip(images, sizes, strict=True)])


def assert_named(error: type[Exception], words: tuple[str, ...], build: Callable[..., object], *args: object,
                 **kwargs: object) -> None:
    """Asserts that a call ends in an error of one line that has all the words."""
    told = refusal(build, *args, error=error, **kwargs)
    assert [word for word in words if word not in told] == []
