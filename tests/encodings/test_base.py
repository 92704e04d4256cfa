"""The contract: points at which an encoding may act; and the cache."""
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cpvt_mm import CPVT, POSITION_ENCODINGS, PyramidCPVT
from cpvt_mm.encodings import PositionEncoding, StageSpec, build_position_encodings
from cpvt_mm.tokens.coordinates import CACHED, cached
from cpvt_mm.tokens.grid import Grid
from openmmlab_runs.checkpoints.loading import backbone_config, build
from openmmlab_runs.engine import load_config
from tests.all_encodings import ENCODINGS, encode
from tests.conftest import NARROW, ROOT, UPERNET

STAGE = StageSpec(embed_dims=8, num_heads=2, depth=2, grid=(4, 4))


class AtEntry(PositionEncoding):
    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        rows = torch.arange(grid.height).repeat_interleave(grid.width)
        return x + rows[:, None] if position == -1 else x


class AfterLastBlock(PositionEncoding):
    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        return 2 * x if position == self.stage.depth - 1 else x


class FirstKeyOnly(PositionEncoding):
    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
        assert q.shape[1:] == (self.stage.num_heads, grid.size, self.stage.head_dims)
        bias = torch.full((key_grid.size,), -1e4)
        bias[0] = 0
        return bias.expand(self.stage.num_heads, grid.size, -1)


TRIALS = (AtEntry, AfterLastBlock, FirstKeyOnly)


@torch.no_grad()
@pytest.mark.parametrize('encoding, least', [
    *((dict(type=cls), 1e-3) for cls in TRIALS),
    *((encoding, 1e-4) for encoding in ENCODINGS.values() if encoding)], ids=str)
def test_each_reaches_every_stage_at_odd_sizes(encoding: dict | list, least: float) -> None:
    image, features = torch.randn(1, 3, 70, 50), []
    for position_encoding in (None, encoding):
        model = PyramidCPVT(NARROW, position_encoding=position_encoding).eval()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():  # the same other weights, none so small that it has no effect
            parameter.normal_(std=0.2, generator=None if 'position_encoding' in name else generator)
        features.append(model(image))
    for plain, encoded in zip(*features, strict=True):
        assert encoded.isfinite().all()
        assert (plain - encoded).abs().max() > least


def test_a_list_combines_keeps_the_order_of_points_and_adds_up_biases() -> None:
    x = torch.randn(1, 3, 4, 8)
    both = build_position_encodings([dict(type=AtEntry), dict(type=AfterLastBlock)], STAGE)
    torch.testing.assert_close(encode(both, x, -1), x + torch.arange(3)[:, None, None])
    assert encode(both, x, 0) is x
    torch.testing.assert_close(encode(both, x, 1), 2 * x)
    q, k, grids = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 2, 4), (Grid(2, 2), Grid(1, 2, 2, 2))
    of_one, of_two = (build_position_encodings([dict(type=FirstKeyOnly)] * count, STAGE) for count in (1, 2))
    (one,), (two,) = (encodings.attention(q, k, k, 0, *grids)[3] for encodings in (of_one, of_two))
    assert torch.equal(two, 2 * one)


@pytest.mark.parametrize('cfg', ['PEG', dict(kernel_size=3), [None]])
def test_what_is_no_config_is_refused(cfg: object) -> None:
    with pytest.raises(TypeError, match=r'position_encoding is .* must be None, a dict with a type, or a list'):
        build_position_encodings(cfg, STAGE)


def test_the_latest_results_are_kept_and_older_ones_are_freed() -> None:
    made: list[weakref.ref[Tensor]] = []

    @cached
    def ones(length: int) -> Tensor:
        result = torch.ones(length)
        made.append(weakref.ref(result))
        return result

    for length in range(1, 100):
        assert ones(length) is ones(length)
    assert len(made) == 99 and sum(one() is not None for one in made) == CACHED


@pytest.mark.parametrize('name', ['SinusoidalPE', 'RotaryPE', 'RelativePE', 'LearnablePE', 'FirePE'])
def test_what_inference_mode_left_serves_training(name: str) -> None:
    model = CPVT(dict(embed_dims=16, depth=2, num_heads=2), position_encoding=dict(type=name))
    image = torch.randn(1, 3, 48, 1104)
    with torch.inference_mode():
        model(image)
    model(image)[0].mean().backward()
    assert model.patch_embed.proj.weight.grad.isfinite().all()


def test_shapes_worked_out_without_numbers_are_not_kept() -> None:
    model = CPVT(dict(embed_dims=16, depth=1, num_heads=2), position_encoding=dict(type='RotaryPE'))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.randn(1, 3, 48, 1204))
    assert model(torch.randn(1, 3, 48, 1204))[0].isfinite().all()


def test_scoped_types_are_found_under_any_default_scope() -> None:
    assert len(build_position_encodings(dict(type='cpvt_mm.PEG'), STAGE)) == 1


def test_the_example_of_the_reference_encodes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / 'docs/reference/position_encodings.md').read_text()
    module, config = (block.split('```')[0] for block in page.split('```python\n')[1:])
    (tmp_path / 'my_encodings.py').write_text(module)
    (tmp_path / 'config.py').write_text(f'_base_ = {str(UPERNET)!r}\n{config}')
    monkeypatch.syspath_prepend(tmp_path)
    try:
        cfg = load_config(tmp_path / 'config.py')
        stage = build(cfg, backbone_config(cfg)).stages[0]
    finally:
        sys.modules.pop('my_encodings', None)
        POSITION_ENCODINGS.module_dict.pop('RowPE', None)
    (encoding,) = stage.position_encoding
    torch.nn.init.ones_(encoding.vector)
    x = torch.randn(1, 4, 6, encoding.stage.embed_dims)
    torch.testing.assert_close(encode(encoding, x, -1), x + torch.tensor([0., 0.5, 1., 1.5])[:, None, None])
    assert encode(encoding, x, 0) is x
