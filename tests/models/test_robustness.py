"""Whatever is put in: features of the right shape, or a sentence."""
import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpvt_mm import PyramidCPVT
from tests.conftest import BACKBONES
from tests.encodings import ENCODINGS, ONE_FOR_EACH_POINT
from tests.models.conftest import Backbone

KINDS = {**BACKBONES, 'nano': partial(PyramidCPVT, 'nano')}
SIDES = st.integers(1, 400)


@pytest.mark.parametrize(('kind', 'name', 'padding'), [
    *itertools.product(('conv', 'plain'), ENCODINGS, [None]),
    *itertools.product(('conv', 'plain'), ONE_FOR_EACH_POINT, ['exact']),
    *itertools.product(('pool', 'conv-mlp', 'nano'), ['peg', 'relative'], [None, 'exact'])])
def test_any_size_gives_finite_features_of_the_right_shape_twice_the_same(kind: str, name: str,
                                                                          padding: str | None) -> None:
    model = KINDS[kind](position_encoding=ENCODINGS[name], padding=padding).eval()

    @settings(max_examples=4, deadline=None, database=None)
    @given(batch=st.integers(1, 3), height=SIDES, width=SIDES, seed=st.integers(0, 2**31))
    def check(batch: int, height: int, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, 3, height, width, generator=generator)
        sizes = None
        if padding:
            sizes = torch.stack([torch.randint(1, side + 1, (batch,), generator=generator)
                                 for side in (height, width)], dim=1).tolist()
        outputs = model(images, sizes, num_frames=1)
        for output, channels, stride in zip(outputs, model.out_channels, model.strides, strict=True):
            assert output.shape == (batch, channels, math.ceil(height / stride), math.ceil(width / stride))
            assert output.isfinite().all()
        assert all(map(torch.equal, outputs, model(images, sizes, num_frames=1)))

    check()


@pytest.fixture(params=['conv', 'plain'])
def model(request: pytest.FixtureRequest) -> Backbone:
    return KINDS[request.param]().eval()


@pytest.mark.parametrize('lay_out', [
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.mT.contiguous().mT,
    lambda x: torch.stack([x, x], dim=-1)[..., 0],
    lambda x: x[:1].expand(2, -1, -1, -1),
], ids=['channels-last', 'transposed', 'strided', 'expanded'])
def test_layouts_in_memory_do_not_matter(model: Backbone, lay_out: callable) -> None:
    images = torch.randn(1, 3, 50, 70).expand(2, -1, -1, -1).contiguous()
    for output, expected in zip(model(lay_out(images)), model(images), strict=True):
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_work_once_the_weights_have_them(model: Backbone, dtype: torch.dtype) -> None:
    images = torch.randn(2, 3, 50, 70)
    expected = model(images)
    for output, wanted in zip(model.to(dtype)(images.to(dtype)), expected, strict=True):
        assert output.dtype == dtype
        assert (output - wanted).abs().mean() < (1e-5 if dtype == torch.float64 else 0.05)


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int64, torch.bool, torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_a_sentence_before(model: Backbone, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=rf'images are {dtype}, but the weights are torch.float32: normalise'):
        model(torch.ones(2, 3, 32, 32, dtype=dtype))


def test_under_autocast_images_have_any_dtype_that_it_casts(model: Backbone) -> None:
    with torch.autocast('cpu', torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert all(output.isfinite().all() for output in model(torch.ones(2, 3, 32, 32, dtype=dtype)))
        for dtype in (torch.float64, torch.uint8):
            with pytest.raises(ValueError, match=f'images are {dtype}, but the weights'):
                model(torch.ones(2, 3, 32, 32, dtype=dtype))


@pytest.mark.parametrize('shape', [(2, 3, 0, 32), (2, 3, 32, 0), (3, 32, 32), (2, 4, 32, 32), (2, 32, 32, 3)])
def test_other_shapes_are_a_sentence(model: Backbone, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r'images have shape \(.*\), but must have \(B, 3, H, W\), H and W at least 1'):
        model(torch.ones(shape))


@pytest.mark.parametrize('padding', [None, 'exact'])
@pytest.mark.parametrize('kind', ['conv', 'plain'])
def test_no_images_give_no_features(kind: str, padding: str | None) -> None:
    model = KINDS[kind](padding=padding)
    outputs = model(torch.ones(0, 3, 50, 70))
    assert [o.shape for o in outputs] == [(0, channels, math.ceil(50 / stride), math.ceil(70 / stride))
                                          for channels, stride in zip(model.out_channels, model.strides, strict=True)]
    sum(output.sum() for output in outputs).backward()


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_what_is_not_finite_shows_and_stays_in_its_image(model: Backbone, value: float) -> None:
    images = torch.randn(2, 3, 64, 64)
    broken = images.clone()
    broken[0, 0, 40, 40] = value
    for output, expected in zip(model(broken), model(images), strict=True):
        assert output[0].isnan().any()
        torch.testing.assert_close(output[1], expected[1])
