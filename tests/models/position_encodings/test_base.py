"""The contract: four points at which an encoding may act, tried with one encoding for each."""
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from cpvt_mm import PyramidCPVT
from cpvt_mm.models.grid import Grid
from cpvt_mm.models.position_encodings import PositionEncoding, StageSpec, build_position_encodings
from cpvt_mm.registry import POSITION_ENCODINGS
from tests.conftest import NARROW
from tests.encodings import encode

STAGE = StageSpec(embed_dims=8, num_heads=2, depth=2, grid=(4, 4))


class AtEntry(PositionEncoding):

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        rows = torch.arange(grid.height).repeat_interleave(grid.width)
        return x + rows[:, None] if position == -1 else x


class AfterLastBlock(PositionEncoding):

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        return 2 * x if position == self.stage.depth - 1 else x


class FirstBlockAttendsEvenly(PositionEncoding):

    def qk_tokens(self, x: Tensor, index: int, grid: Grid) -> Tensor:
        return torch.zeros_like(x) if index == 0 else x


class NoLogits(PositionEncoding):

    def qk(self, x: Tensor, grid: Grid) -> Tensor:
        assert x.shape[1:] == (self.stage.num_heads, grid.size, self.stage.head_dims)
        return torch.zeros_like(x)


class FirstKeyOnly(PositionEncoding):

    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
        assert q.shape[1:] == (self.stage.num_heads, grid.size, self.stage.head_dims)
        bias = torch.full((key_grid.size,), -1e4)
        bias[0] = 0
        return bias.expand(self.stage.num_heads, grid.size, -1)


TRIALS = (AtEntry, AfterLastBlock, FirstBlockAttendsEvenly, NoLogits, FirstKeyOnly)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for cls in TRIALS:
        POSITION_ENCODINGS.register_module(module=cls)
    yield
    for cls in TRIALS:
        POSITION_ENCODINGS.module_dict.pop(cls.__name__)


def features(position_encoding: dict | list | None, image: Tensor) -> list[Tensor]:
    """With the same other weights, whatever the encoding."""
    model = PyramidCPVT(NARROW, position_encoding=position_encoding).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if 'position_encoding' not in name:
            parameter.data.normal_(std=0.2, generator=generator)
    with torch.no_grad():
        return model(image)


@pytest.mark.parametrize('name', [cls.__name__ for cls in TRIALS])
def test_each_point_reaches_every_stage(name: str) -> None:
    image = torch.randn(1, 3, 70, 50)
    for plain, encoded in zip(features(None, image), features(dict(type=name), image), strict=True):
        assert plain.shape == encoded.shape
        assert (plain - encoded).abs().max() > 1e-3


def test_a_list_combines_and_order_of_points_is_kept() -> None:
    x = torch.randn(1, 3, 4, 8)
    both = build_position_encodings([dict(type='AtEntry'), dict(type='AfterLastBlock')], STAGE)
    torch.testing.assert_close(encode(both, x, -1), x + torch.arange(3)[:, None, None])
    assert encode(both, x, 0) is x
    torch.testing.assert_close(encode(both, x, 1), 2 * x)


def test_biases_add_up() -> None:
    at = torch.randn(1, 2, 4, 4), 0, Grid(2, 2), Grid(1, 2, 2, 2)
    one = build_position_encodings(dict(type='FirstKeyOnly'), STAGE).bias(*at)
    two = build_position_encodings([dict(type='FirstKeyOnly')] * 2, STAGE).bias(*at)
    assert torch.equal(two, 2 * one)


def test_without_encoding_nothing_is_built_and_no_bias_is_made() -> None:
    encodings = build_position_encodings(None, STAGE)
    assert list(encodings.parameters()) == []
    assert encodings.bias(torch.randn(1, 2, 4, 4), 0, Grid(2, 2), Grid(2, 2)) is None


@pytest.mark.usefixtures('float64')
def test_without_encoding_attention_does_not_know_positions() -> None:
    model = PyramidCPVT(dict(NARROW, sr_ratios=(1, 1, 1, 1)), out_indices=(0,), position_encoding=None).eval()
    image = torch.randn(1, 3, 32, 32)
    moved = image.roll((4, 8), (2, 3))  # by whole patches
    with torch.no_grad():
        torch.testing.assert_close(model(moved)[0], model(image)[0].roll((1, 2), (2, 3)))


def test_scoped_types_are_found_under_any_default_scope() -> None:
    assert len(build_position_encodings(dict(type='cpvt_mm.PEG'), STAGE)) == 1


@pytest.mark.parametrize('cfg', ['PEG', dict(kernel_size=3), [None], 3])
def test_what_is_no_config_is_refused(cfg: object) -> None:
    with pytest.raises(TypeError, match=r'position_encoding is .* must be None, a dict with a type, or a list'):
        build_position_encodings(cfg, STAGE)


def test_an_unknown_type_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'PEGG' is not a type of position_encoding; allowed are .*PEG"):
        build_position_encodings(dict(type='PEGG'), STAGE)
