"""Pyramid and plain backbone take whatever is put in, and learn with all of their parts."""
import itertools
import math
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.models.layers import Attention
from tests.all_encodings import ENCODINGS, ONE_FOR_EACH_POINT
from tests.backbones import BACKBONES, NARROW_PLAIN, WITH_CP, kept_bytes
from tests.models.conftest import PLAIN, PYRAMID, Backbone, Build, both, outspoken

DISTILLED = partial(CPVT, dict(NARROW_PLAIN, dist_token=True))
KINDS = {**BACKBONES, 'nano': partial(PyramidCPVT, 'nano')}
SIDES = st.integers(1, 400)


# With a head of 1000 classes: timm's twins_pcpvt, and DeiT with its table.
@pytest.mark.parametrize(('build', 'arch', 'millions'), [
    (PyramidCPVT, 'small', 24.11), (PyramidCPVT, 'base', 43.83), (PyramidCPVT, 'large', 60.99),
    *((partial(CPVT, position_encoding=dict(type='LearnablePE')), arch, millions)
      for arch, millions in (('tiny', 5.72), ('small', 22.05), ('base', 86.57)))])
def test_named_archs_have_the_sizes_of_their_papers(build: Build, arch: str, millions: float) -> None:
    with torch.device('meta'):  # shapes without values
        model = build(arch)
    head = 1000 * model.out_channels[-1] + 1000
    assert (sum(p.numel() for p in model.parameters()) + head) / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.parametrize(('kind', 'name', 'padding'), [
    *itertools.product(('conv', 'plain'), ENCODINGS, [None]),
    *itertools.product(('conv', 'plain'), ONE_FOR_EACH_POINT, ['exact']),
    *itertools.product(('pool', 'pvtv2', 'nano'), ['peg', 'relative', 'look-here'], [None, 'exact'])])
def test_any_size_gives_finite_features_twice_the_same(kind: str, name: str, padding: str | None) -> None:
    model = KINDS[kind](position_encoding=ENCODINGS[name], padding=padding).eval()

    @settings(max_examples=4, deadline=None, database=None)
    @given(batch=st.integers(0, 3), height=SIDES, width=SIDES, seed=st.integers(0, 2**31))
    def check(batch: int, height: int, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, 3, height, width, generator=generator)
        sizes = torch.stack([torch.randint(1, side + 1, (batch,), generator=generator)
                             for side in (height, width)], dim=1).tolist() if padding else None
        outputs = model(images, sizes, num_frames=1)
        for output, channels, stride in zip(outputs, model.out_channels, model.strides, strict=True):
            assert output.shape == (batch, channels, math.ceil(height / stride), math.ceil(width / stride))
            assert output.isfinite().all()
        assert all(map(torch.equal, outputs, model(images, sizes, num_frames=1)))

    check()


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('height', [1, 2, 4, 15, 16, 17, 33, 65, 97])
@both
def test_no_row_or_column_is_lost(build: Build, height: int) -> None:
    # Both sides pass through 1 to 97, in different pairs.
    model, image = outspoken(build), torch.randn(1, 3, height, 98 - height)
    last_row, last_column = image.clone(), image.clone()
    last_row[:, :, -1] += 1
    last_column[..., -1] += 1
    for output, below, right in zip(model(image), model(last_row), model(last_column), strict=True):
        assert output.is_contiguous()  # mmcv's RoIAlign needs it
        assert (output[:, :, -1] - below[:, :, -1]).abs().max() > 1e-4
        assert (output[..., -1] - right[..., -1]).abs().max() > 1e-4


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize(('build', 'size'), [(PYRAMID, (52, 72)), (PLAIN, (64, 80))])
def test_zeros_on_the_right_and_below_stand_for_missing_pixels(build: Build, size: tuple[int, int]) -> None:
    model, image = outspoken(build), torch.randn(1, 3, 50, 70)
    torch.testing.assert_close(model(image), model(F.pad(image, (0, size[1] - 70, 0, size[0] - 50))))


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize(('build', 'out_indices', 'depth'), [
    *((partial(PYRAMID, out_norm=True), out_indices, depth)
      for out_indices, depth in (((0,), 2), ((3,), 9), ((0, 2), 7), ((1, 2, 3), 9), ((-3, -1), 9))),
    *((PLAIN, out_indices, depth) for out_indices, depth in (((0,), 1), ((0, 2), 3), ((1, -1), 4), ((-4, -3), 2)))])
def test_only_what_out_indices_needs_is_built(build: Build, out_indices: tuple[int, ...], depth: int) -> None:
    whole, part = (build(out_indices=indices, drop_path_rate=0.2).eval() for indices in ((0, 1, 2, 3), out_indices))
    missing, _ = part.load_state_dict(whole.state_dict(), strict=False)
    image = torch.randn(1, 3, 40, 70)
    outputs, maps = part(image), whole(image)
    assert missing == [] and part.num_blocks == depth
    torch.testing.assert_close(outputs, tuple(maps[i] for i in out_indices))
    assert part.strides == tuple(whole.strides[i] for i in out_indices)
    rates = [module.drop_path_rate for module in part.modules() if hasattr(module, 'drop_path_rate')]
    assert rates == pytest.approx([0.2 * i / (whole.num_blocks - 1) for i in range(depth)])
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    assert [name for name, p in part.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('build', [PYRAMID, DISTILLED], ids=['pyramid', 'plain'])
def test_every_parameter_gets_a_gradient(build: Build, name: str) -> None:
    model = build(position_encoding=ENCODINGS[name])
    outputs = model(torch.randn(2, 3, 70, 50), num_frames=1)
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


WHOLE_PLAIN = partial(CPVT, dict(NARROW_PLAIN, dist_token=True, num_register_tokens=2, layer_scale=0.1))
OF_PLAIN = ('cls_token.', 'dist_token.', 'register_tokens.', 'patch_embed.', 'position_encoding.', 'drop.')


@pytest.mark.parametrize(('build', 'frozen_stages', 'prefixes'), [
    (PYRAMID, -1, ()), (WHOLE_PLAIN, -1, ()), (PYRAMID, 0, ('stages.0.patch_embed.',)),
    *((partial(PYRAMID, out_norm=True), count, tuple(f'{part}.{i}.' for i in range(count)
                                                     for part in ('stages', 'out_norms'))) for count in range(1, 5)),
    *((WHOLE_PLAIN, count, (*OF_PLAIN, *(f'blocks.{i}.' for i in range(count)), *(['norm.'] if count == 4 else [])))
      for count in range(5))])
def test_frozen_stages_get_no_gradient_and_stay_in_eval_mode(build: Build, frozen_stages: int, prefixes: tuple) -> None:
    model = build(frozen_stages=frozen_stages, drop_rate=0.1, drop_path_rate=0.2)
    for change_mode in (lambda: None, model.train, model.eval, model.train):
        change_mode()
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad != f'{name}.'.startswith(prefixes), name
    for name, module in model.named_modules():
        assert not name or module.training != f'{name}.'.startswith(prefixes), name
    outputs = model(torch.randn(1, 3, 40, 70))
    assert any(output.requires_grad for output in outputs) == (frozen_stages < 4)  # a whole trunk runs without a graph


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('encoding', [
    *ONE_FOR_EACH_POINT.values(), dict(type='RotaryPE', form='dinov3', shift=1., jitter=2., rescale=2.)],
    ids=[*ONE_FOR_EACH_POINT, 'random'])
@pytest.mark.parametrize('drop_rate', [0., 0.1])
@both
def test_checkpointing_changes_no_output_and_no_gradient(build: Build, drop_rate: float, encoding: dict) -> None:
    models = [build(position_encoding=encoding, drop_rate=drop_rate, drop_path_rate=0.3, with_cp=with_cp)
              for with_cp in WITH_CP]
    image, results = torch.randn(2, 3, 70, 50), []
    for model in models:
        model.load_state_dict(models[0].state_dict())
        torch.manual_seed(1)
        outputs = model.train()(image)
        sum(output.square().mean() for output in outputs).backward()
        results.append((outputs, [p.grad for p in model.parameters()]))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(('build', 'selective', 'whole'), [
    (partial(PyramidCPVT, 'nano', drop_path_rate=0.2), 0.55, 0.25),
    (partial(CPVT, dict(NARROW_PLAIN, depth=3)), 0.7, 0.35)], ids=['pyramid', 'plain'])
def test_checkpointing_keeps_fewer_tensors(build: Build, selective: float, whole: float) -> None:
    image, kept = torch.randn(1, 3, 128, 128), {}
    for with_cp in WITH_CP:
        model = build(with_cp=with_cp)
        kept[with_cp] = kept_bytes(model, partial(model, image))
    assert kept['selective'] < selective * kept[False]
    assert kept[True] < whole * kept[False]


@both
def test_dropout_is_where_it_is_asked_for(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dropout = build(drop_rate=0.1, attn_drop_rate=0.2), Mock(side_effect=F.dropout)
    monkeypatch.setattr(F, 'dropout', dropout)
    model(torch.randn(1, 3, 64, 64))
    # After embeddings; of each block hidden channels, and at the end of both branches.
    assert [call.args[1] for call in dropout.call_args_list] == [0.1] * (len(model.depths) + 3 * model.num_blocks)
    assert {part.attn_drop_rate for part in model.modules() if isinstance(part, Attention)} == {0.2}


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@both
def test_autocast_stays_finite_and_near(build: Build, dtype: torch.dtype, name: str) -> None:
    model, images = build(position_encoding=ENCODINGS[name]), torch.randn(2, 3, 70, 50)
    with torch.autocast('cpu', dtype=dtype):
        outputs = model(images, num_frames=1)
        with pytest.raises(ValueError, match=r'images are torch\.float64, but the weights'):
            model(images.double())
    sum(output.float().square().mean() for output in outputs).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    for output, expected in zip(outputs, model.eval()(images, num_frames=1), strict=True):
        torch.testing.assert_close(output.float(), expected, atol=0.1, rtol=0.1)


@pytest.fixture(params=['conv', 'plain'])
def model(request: pytest.FixtureRequest) -> Backbone:
    return KINDS[request.param]().eval()


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_work_once_the_weights_have_them(model: Backbone, dtype: torch.dtype) -> None:
    images = torch.randn(2, 3, 50, 70)
    expected = model(images)
    for output, wanted in zip(model.to(dtype)(images.to(dtype)), expected, strict=True):
        assert output.dtype == dtype
        assert (output - wanted).abs().mean() < (1e-5 if dtype == torch.float64 else 0.05)


@pytest.mark.parametrize('lay_out', [
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.mT.contiguous().mT,
    lambda x: torch.stack([x, x], dim=-1)[..., 0],
    lambda x: x[:1].expand(2, -1, -1, -1)], ids=['channels-last', 'transposed', 'strided', 'expanded'])
def test_layouts_in_memory_do_not_matter(model: Backbone, lay_out: callable) -> None:
    images = torch.randn(1, 3, 50, 70).expand(2, -1, -1, -1).contiguous()
    torch.testing.assert_close(model(lay_out(images)), model(images))


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_what_is_not_finite_shows_and_stays_in_its_image(model: Backbone, value: float) -> None:
    images = torch.randn(2, 3, 64, 64)
    broken = images.clone()
    broken[0, 0, 40, 40] = value
    for output, expected in zip(model(broken), model(images), strict=True):
        assert output[0].isnan().any()
        torch.testing.assert_close(output[1], expected[1])
