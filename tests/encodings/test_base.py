"""The contract: points at which an encoding may act; what a config may say; and the cache."""
import sys
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cpvt_mm import CPVT, POSITION_ENCODINGS, PyramidCPVT
from cpvt_mm.encodings.base import PositionEncoding, StageSpec, build_position_encodings
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.tokens.tracing import CACHED, cached
from openmmlab_tools.checkpoints.loading import backbone_config, build
from openmmlab_tools.engine import load_config
from tests.all_encodings import ENCODINGS, STAGE, encode
from tests.backbones import NARROW, UPERNET
from tests.helpers import ROOT
from tests.models.conftest import Build, assert_named


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


SMALL = partial(CPVT, dict(embed_dims=16, depth=2, num_heads=2))


@torch.no_grad()
@pytest.mark.parametrize('encoding, least', [
    *((dict(type=cls), 1e-3) for cls in (AtEntry, AfterLastBlock, FirstKeyOnly)),
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
    x = torch.randn(1, 3, 4, 16)
    both = build_position_encodings([dict(type=AtEntry), dict(type=AfterLastBlock)], STAGE)
    torch.testing.assert_close(encode(both, x, -1), x + torch.arange(3)[:, None, None])
    assert encode(both, x, 0) is x
    torch.testing.assert_close(encode(both, x, 2), 2 * x)
    q, k, grids = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 2, 8), (Grid(2, 2), Grid(1, 2, 2, 2))
    of_one, of_two = (build_position_encodings([dict(type=FirstKeyOnly)] * count, STAGE) for count in (1, 2))
    (one,), (two,) = (encodings.attention(q, k, k, 0, *grids)[3] for encodings in (of_one, of_two))
    assert torch.equal(two, 2 * one)


@pytest.mark.parametrize('name, kwargs, words', [
    *(('PEG', dict(kernel_size=value), (f'kernel_size is {value}', 'odd')) for value in (4, 0)),
    ('PEG', dict(kernel_size=(3, 3, 3)), ('kernel_size is (3, 3, 3)', '2 of them', 'ndim is 2')),
    ('PEG', dict(ndim=3, kernel_size=(3., 3, 3)), ('kernel_size is (3.0, 3, 3)',)),
    *(('PEG', dict(positions=value), (f'positions is {value!r}', 'a sequence of different', 'to 2'))
      for value in ((), (3,), (-2,), 1, (1, 1), [True])),
    ('PEG', dict(target='qk', positions=(2,)), ('positions is (2,)', 'to 1', "target is 'qk'")),
    ('PEG', dict(conv_type='dense'), ("conv_type is 'dense'", "'depthwise' or 'separable' or 'full'")),
    ('PEG', dict(target='values'), ("target is 'values'", "'tokens' or 'qk'")),
    *(('PEG', {key: 'False'}, (f"{key} is 'False'", 'False or True')) for key in ('bias', 'residual', 'trainable')),
    ('PEG', dict(num_layers=0), ('num_layers is 0', 'at least 1')), ('PEG', dict(ndim=4), ('ndim is 4', '2 or 3')),
    ('PEG', dict(init='ones'), ("init is 'ones'", "'random' or 'zero'")),
    *(('PEG', {'init': 'zero', key: False}, (f'{key} False', 'to be True')) for key in ('trainable', 'residual')),
    *((name, dict(grid=(0, 3)), ('grid is (0, 3)', 'at least 1')) for name in ('LearnablePE', 'RandomTablePE')),
    *((name, dict(ndim=3), ('ndim is 3', '1 or 2')) for name in ('LearnablePE', 'RandomTablePE', 'SinusoidalPE')),
    ('LearnablePE', dict(antialias=1), ('antialias is 1', 'False or True')),
    ('LearnablePE', dict(mode='linear'), ("mode is 'linear'", "'bicubic' or 'bilinear'")),
    ('LearnablePE', dict(offset=-1), ('offset is -1', 'above 0')),
    ('LearnablePE', dict(offset=.1, antialias=True), ('antialias True, offset 0.1', 'one of')),
    ('LearnablePE', dict(ndim=1, antialias=True), ('ndim is 1, antialias True', 'ndim=2')),
    ('LearnablePE', dict(ndim=1, mode='bilinear'), ("mode 'bilinear'", 'ndim=2')),
    ('RandomTablePE', dict(std=0), ('std is 0', 'above 0')),
    ('RandomFourierPE', dict(scale='1'), ("scale is '1'", 'above 0')),
    *((name, dict(temperature=1), ('temperature is 1', 'above 1'))
      for name in ('SinusoidalPE', 'MixedRotaryPE', 'RotaryPE')),
    ('RotaryPE', dict(form='dino'), ("form is 'dino'", "'axial' or 'dinov3'")),
    ('RotaryPE', dict(form='dinov3', jitter=0.5), ('jitter is 0.5', 'above 1')),
    ('RotaryPE', dict(rescale=2.), ("form of a RotaryPE with rescale is 'axial'", "'dinov3'")),
    ('RelativePE', dict(max_distance=0), ('max_distance is 0', 'at least 1')),
    ('FirePE', dict(scale=0), ('scale is 0', 'above 0')), ('LookHerePE', dict(fov=0), ('fov is 0', 'above 0')),
    ('LookHerePE', dict(slope=-1), ('slope is -1', 'above 0')),
    ('ParabolicPE', dict(num_parabolas=0), ('num_parabolas is 0', 'at least 1')),
    ('ParabolicPE', dict(reach=0), ('reach is 0', 'above 0')),
    ('ParabolicPE', dict(trainable=1), ('trainable is 1', 'False or True'))])
def test_bad_values_are_named(name: str, kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, build_position_encodings, dict(type=name, **kwargs), STAGE)


@pytest.mark.parametrize('name, dims, words', [
    ('SinusoidalPE', 18, ('ndim 2', 'divisible by 4', '18')), ('RandomFourierPE', 9, ('even', '9')),
    *((name, 18, (name, 'multiple of 4', '18')) for name in ('RotaryPE', 'MixedRotaryPE'))])
def test_channels_that_do_not_fit_are_named(name: str, dims: int, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, build_position_encodings, dict(type=name), StageSpec(dims, 1, 1, (4, 4)))


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


@pytest.mark.parametrize('build', [
    *(partial(SMALL, position_encoding=dict(type=name))
      for name in ('SinusoidalPE', 'RotaryPE', 'RelativePE', 'LearnablePE', 'FirePE')),
    partial(PyramidCPVT, NARROW, padding='exact')])
def test_what_inference_mode_left_serves_training(build: Build) -> None:
    model, images = build(), torch.randn(2, 3, 48, 1104)  # no other test has this size
    sizes = [(48, 1104), (31, 33)] if model.padding else None
    with torch.inference_mode():
        model(images, sizes)
    model(images, sizes)[0].mean().backward()
    assert next(model.parameters()).grad.isfinite().all()


def test_shapes_worked_out_without_numbers_are_not_kept() -> None:
    model = SMALL(position_encoding=dict(type='RotaryPE'))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.randn(1, 3, 48, 1204))
    assert model(torch.randn(1, 3, 48, 1204))[0].isfinite().all()


def test_scoped_types_are_found_under_any_default_scope() -> None:
    assert len(build_position_encodings(dict(type='cpvt_mm.PEG'), STAGE)) == 1


def test_the_example_of_the_reference_encodes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / 'docs/reference/position_encodings.md').read_text()
    module, config = (block.split('```')[0] for block in page.split('```python\n')[1:])
    assert module == (ROOT / 'examples/own_encoding/my_encodings.py').read_text()
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
