"""Pyramid and plain backbone take whatever is put in, and tell of themselves as timm's models do."""
import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import pad

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.export import fuse
from tests.all_encodings import ENCODINGS, ONE_FOR_EACH_POINT
from tests.conftest import BACKBONES, NARROW_PLAIN, WITH_CP, kept_bytes
from tests.models.conftest import PLAIN, PYRAMID, Backbone, Build, assert_named, both, outspoken


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('height', [1, 2, 4, 15, 16, 17, 33, 65, 97])
@both
def test_any_size_gives_ceil_and_loses_no_row_or_column(build: Build, height: int) -> None:
    width = 98 - height  # both sides pass through 1 to 97, in different pairs
    model, image = outspoken(build), torch.randn(1, 3, height, width)
    outputs = model(image)
    assert [tuple(output.shape[1:]) for output in outputs] == [
        (channels, -(-height // stride), -(-width // stride))
        for channels, stride in zip(model.out_channels, model.strides, strict=True)]
    last_row, last_column = image.clone(), image.clone()
    last_row[:, :, -1] += 1
    last_column[..., -1] += 1
    for output, below, right in zip(outputs, model(last_row), model(last_column), strict=True):
        assert output.isfinite().all() and output.is_contiguous()  # mmcv's RoIAlign needs the latter
        assert (output[:, :, -1] - below[:, :, -1]).abs().max() > 1e-4
        assert (output[..., -1] - right[..., -1]).abs().max() > 1e-4


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize(('build', 'size'), [(PYRAMID, (52, 72)), (PLAIN, (64, 80))])
def test_zeros_on_the_right_and_below_stand_for_missing_pixels(build: Build, size: tuple[int, int]) -> None:
    model, image = outspoken(build), torch.randn(1, 3, 50, 70)
    torch.testing.assert_close(model(image), model(pad(image, (0, size[1] - 70, 0, size[0] - 50))))


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('build', [PYRAMID, partial(PLAIN, dist_token=True)], ids=['pyramid', 'plain'])
def test_every_parameter_gets_a_gradient(build: Build, name: str) -> None:
    model = build(position_encoding=ENCODINGS[name])
    outputs = model(torch.randn(2, 3, 70, 50), num_frames=1)
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


OF_PLAIN = ('cls_token.', 'dist_token.', 'register_tokens.', 'patch_embed.', 'position_encoding.', 'drop.')


@pytest.mark.parametrize(('build', 'frozen_stages', 'prefixes'), [
    (PYRAMID, -1, ()), (PLAIN, -1, ()), (PYRAMID, 0, ('stages.0.patch_embed.',)),
    *((PYRAMID, count, tuple(f'{part}.{i}.' for i in range(count) for part in ('stages', 'out_norms')))
      for count in range(1, 5)),
    *((PLAIN, count, (*OF_PLAIN, *(f'blocks.{i}.' for i in range(count)))) for count in range(4)),
    (PLAIN, 4, (*OF_PLAIN, *(f'blocks.{i}.' for i in range(4)), 'norm.'))])
def test_frozen_stages_get_no_gradient_and_stay_in_eval_mode(build: Build, frozen_stages: int, prefixes: tuple) -> None:
    model = build(frozen_stages=frozen_stages, drop_rate=0.1, drop_path_rate=0.2,
                  **(dict(out_norm=True) if build is PYRAMID else
                     dict(dist_token=True, num_register_tokens=2, layer_scale=0.1)))
    for mode in (None, True, False, True):
        if mode is not None:
            model.train(mode)
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad != f'{name}.'.startswith(prefixes), name
    for name, module in model.named_modules():
        assert not name or module.training != f'{name}.'.startswith(prefixes), name
    outputs = model(torch.randn(1, 3, 40, 70))
    assert any(output.requires_grad for output in outputs) == (frozen_stages < 4)  # a whole trunk runs without a graph


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('name', ONE_FOR_EACH_POINT)
@pytest.mark.parametrize('drop_rate', [0., 0.1])
@both
def test_checkpointing_changes_no_output_and_no_gradient(build: Build, drop_rate: float, name: str) -> None:
    models = [build(position_encoding=ENCODINGS[name], drop_rate=drop_rate, drop_path_rate=0.3, with_cp=with_cp)
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


@pytest.mark.parametrize(('error', 'kwargs', 'words'), [
    (ValueError, dict(in_channels=0), ('in_channels', 'at least 1')),
    (ValueError, dict(img_size=(224,)), ('img_size', '(224,)', 'height and a width')),
    (ValueError, dict(out_indices='0'), ('out_indices', 'sequence')),
    (ValueError, dict(out_indices=(3, 1)), ('out_indices', 'increasing')),
    (ValueError, dict(frozen_stages=1.), ('frozen_stages', '1.0')),
    (ValueError, dict(drop_path_rate=1.0), ('drop_path_rate', '[0, 1)')),
    (ValueError, dict(with_cp='all'), ('with_cp', 'all', 'selective')),
    (ValueError, dict(padding='same'), ("padding is 'same', but must be None or 'exact'.",)),
    (ValueError, dict(position_encoding=dict(type='GEP')), ('GEP', 'position_encoding', 'PEG')),
    (TypeError, dict(drop_path=0.1), ("'drop_path'",)),
    *((TypeError, dict(init_cfg=value), ('init_cfg', repr(value), 'a dict with a type'))
      for value in ('a.pth', dict(checkpoint='a.pth'), ['a.pth'])),
    (TypeError, dict(position_encoding=dict(type='PEG', stage=9)), ('position_encoding', 'stage=9')),
    (TypeError, dict(position_encoding=dict(type='PEG', kernel=3)), ("'kernel'",))])
@both
def test_bad_values_are_named(build: Build, error: type[Exception], kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(error, words, build, **kwargs)


@pytest.mark.parametrize(('build', 'out_indices', 'modules'), [
    (PYRAMID, (-3, -1), ['stages.1', 'stages.3']), (PLAIN, (1, -1), ['blocks.1', 'blocks.3'])])
def test_feature_info_tells_what_is_returned(build: Build, out_indices: tuple[int, ...], modules: list[str]) -> None:
    model = build(out_indices=out_indices).eval()
    outputs, info = model(torch.randn(1, 3, 64, 64)), model.feature_info
    assert info.channels() == list(model.out_channels) == [output.shape[1] for output in outputs]
    assert info.reduction() == list(model.strides) == [64 // output.shape[2] for output in outputs]
    assert info.module_name() == modules and info.out_indices == (0, 1) and model.out_indices == (1, 3)
    assert (info.channels(-1), info.module_name(1)) == (model.out_channels[-1], modules[1])
    assert info.get_dicts() == info.info == list(info)
    assert info.get_dicts(['module'], [1]) == [dict(module=modules[1])]
    assert all(item.keys() == {'num_chs', 'reduction', 'module', 'index'} for item in info)


@both
def test_intermediates_are_the_maps_of_all_stages_or_blocks(build: Build) -> None:
    model, image = build(out_indices=(0, 1, 2, 3)).eval(), torch.randn(2, 3, 70, 50)
    outputs, (final, maps) = model(image), model.forward_intermediates(image)
    assert len(maps) == 4 and final.shape[-1] == model.out_channels[-1]
    torch.testing.assert_close(maps[:-1], list(outputs[:-1]))
    if build is PLAIN:
        torch.testing.assert_close(final[:, -outputs[-1][0, 0].numel():], outputs[-1].flatten(2).mT)
        assert not torch.equal(maps[-1], model.forward_intermediates(image, norm=True)[1][-1])


@both
def test_intermediates_can_be_chosen(build: Build) -> None:
    model, image = build().eval(), torch.randn(1, 3, 64, 64)
    _, maps = model.forward_intermediates(image)
    chosen = model.forward_intermediates(image, [0, -1], intermediates_only=True)
    assert torch.equal(chosen[0], maps[0]) and torch.equal(chosen[1], maps[-1])
    last = model.forward_intermediates(image, 2, output_fmt='NLC', intermediates_only=True)
    assert all(torch.equal(tokens, found.flatten(2).mT) for tokens, found in zip(last, maps[-2:], strict=True))
    run: list[nn.Module] = []
    for part in model.get_submodule(model.parts):
        part.register_forward_hook(lambda module, args, output: run.append(module))
    model.forward_intermediates(image, [1], stop_early=True, intermediates_only=True)
    assert len(run) == 2
    for error, words, wrong, kwargs in (
            (ValueError, "output_fmt is 'NHWC', but must be 'NCHW' or 'NLC'", image, dict(output_fmt='NHWC')),
            (ValueError, 'images have shape', image[0], {}), (IndexError, None, image, dict(indices=[9])),
            (IndexError, None, image, dict(indices=0))):
        with pytest.raises(error, match=words):
            model.forward_intermediates(wrong, **kwargs)
    with pytest.raises(ValueError, match="padding is 'exact', but forward_intermediates takes images that fill"):
        build(padding='exact').forward_intermediates(image)


@both
def test_tokens_and_position_encodings_get_no_weight_decay(build: Build) -> None:
    model = build(position_encoding=[dict(type='PEG'), dict(type='LearnablePE')])
    names = model.no_weight_decay()
    assert names == {name for name, _ in model.named_parameters() if 'position_encoding' in name or name == 'cls_token'}
    assert any(name.endswith('table') for name in names) and any('convs' in name for name in names)


KINDS = {**BACKBONES, 'nano': partial(PyramidCPVT, 'nano')}
SIDES = st.integers(1, 400)


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


@pytest.mark.parametrize('images, error, words', [
    *((torch.ones(2, 3, 32, 32, dtype=dtype), ValueError,
       f'images are {dtype}, but the weights are torch.float32: normalise') for dtype in (torch.uint8, torch.float16)),
    *((torch.ones(shape), ValueError, r'images have shape \(.*\), but must have \(B, 3, H, W\), H and W at least 1')
      for shape in ((2, 3, 0, 32), (3, 32, 32), (2, 32, 32, 3))),
    (np.ones((32, 32, 3)), TypeError, r'images are a ndarray, but must be a tensor \(B, 3, H, W\)')])
def test_what_is_no_batch_of_images_is_a_sentence(model: Backbone, images: object, error: type[Exception], words: str
                                                  ) -> None:
    with pytest.raises(error, match=words):
        model(images)


PEGS = [dict(type='PEG', ndim=ndim, conv_type=conv_type, kernel_size=5, num_layers=2, positions=(-1, 0), target=target)
        for ndim, conv_type, target in ((2, 'depthwise', 'tokens'), (3, 'full', 'tokens'), (2, 'full', 'qk'))]


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('encoding', [*PEGS, *(ENCODINGS[name] for name in ('peg-separable', 'peg-fixed', 'rotary'))])
@both
def test_fused_weights_give_the_same_maps_and_fit_no_other_backbone(build: Build, encoding: dict) -> None:
    model = build(position_encoding=encoding).eval()
    plain, image = copy.deepcopy(model), torch.randn(4, 3, 64, 96)
    with torch.no_grad():
        expected = model(image, num_frames=2)
        for _ in range(2):  # it may be fused already
            fuse(model)
            for output, wanted in zip(model(image, num_frames=2), expected, strict=True):
                assert (output - wanted).abs().max() < 1e-13 * wanted.abs().max()
    convs = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Conv3d)]
    is_fused = encoding['type'] == 'PEG' and encoding.get('conv_type') != 'separable'
    assert any('fused' in name for name in convs) == is_fused
    if is_fused:
        with pytest.raises(RuntimeError, match='fused'):
            plain.load_state_dict(model.state_dict())


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
