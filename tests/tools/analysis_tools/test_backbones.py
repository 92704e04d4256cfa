import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from cpvt_lab.backbones import Backbones, give_weights, max_abs_diff, reference
from cpvt_lab.candidates import PEERS, Candidate, CannotMeasure, build_backbone
from cpvt_lab.steps import Setting
from cpvt_mm.models.pyramid_cpvt import PYRAMID_ARCHS

from .subjects import SETTING

NANO = PYRAMID_ARCHS['nano']
TRAIN = replace(SETTING, mode='train')


def skip_if_missing(name: str) -> None:
    try:
        PEERS[name].load()
    except ImportError as error:
        pytest.skip(f'{name}: {error}')


@pytest.mark.parametrize('name', ['mmseg', 'mmpretrain', 'timm'])
def test_other_implementations_do_the_same(name: str) -> None:
    skip_if_missing(name)
    subject, ours, other = Backbones('nano'), Candidate('cpvt_mm'), Candidate(name)
    assert subject.max_abs_diff(subject.step(ours, SETTING), SETTING) == 0
    for setting in (SETTING, TRAIN):
        step = subject.step(other, setting)
        assert subject.max_abs_diff(step, setting) < 1e-4
        assert step.model.training == (setting is TRAIN)
        assert subject.flops(other, setting) == subject.flops(ours, setting)


@torch.no_grad()
def test_the_weights_tell_apart_what_is_not_the_same() -> None:
    """All weights are random, so that a wrong one, or another eps of one norm, shows in the outputs."""
    for name, parameter in reference(NANO).named_parameters():
        assert len(parameter.unique()) > 0.9 * parameter.numel(), name
    image = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    expected = copy.deepcopy(reference(NANO)).double()(image)
    model = build_backbone(Candidate('mmseg'), NANO, 0.2).eval()
    assert give_weights(model, PEERS['mmseg'].format, NANO)
    model.double()
    assert max_abs_diff(model(image), expected) < 1e-10
    model.layers[2][1].norm1.eps = 0.1
    assert max_abs_diff(model(image), expected) > 1e-5
    assert max_abs_diff(model(image[..., :64]), expected) is None


@pytest.mark.slow
def test_onnxruntime_computes_the_same() -> None:
    subject = Backbones('nano')
    step = subject.step(Candidate('onnxruntime'), SETTING)
    assert subject.max_abs_diff(step, SETTING) < 1e-4
    assert not step.has_torch_memory
    assert subject.flops(Candidate('onnxruntime'), SETTING) == subject.flops(Candidate('cpvt_mm'), SETTING)


@pytest.mark.parametrize('arguments, is_comparable', [
    (dict(with_cp=True), True), (dict(norm_eps=1e-3), True), (dict(position_encoding=None), False)])
def test_only_the_same_model_is_compared(arguments: dict, is_comparable: bool) -> None:
    subject = Backbones('nano')
    step = subject.step(Candidate('cpvt_mm', arguments), SETTING)
    assert subject.max_abs_diff(step, SETTING) == (0 if is_comparable else None)


@pytest.mark.parametrize('setting, is_comparable', [
    (SETTING, True), (TRAIN, False), (replace(SETTING, dtype='bf16'), False)])
def test_a_compiled_one_is_compared_as_it_is_compiled(setting: Setting, is_comparable: bool) -> None:
    assert Backbones('nano').step(Candidate('cpvt_mm', shapes='static'), setting).is_comparable == is_comparable


@pytest.mark.parametrize('name', ['pvt', 'pvtv2'])
def test_pyramids_of_another_kind_are_of_the_same_size(name: str) -> None:
    skip_if_missing(name)
    subject = Backbones('nano')
    step = subject.step(Candidate(name), SETTING)
    maps = step.model(torch.zeros(1, 3, 64, 96))
    assert [tuple(x.shape[1:]) for x in maps] == [(32, 16, 24), (64, 8, 12), (128, 4, 6), (192, 2, 3)]
    assert subject.max_abs_diff(step, SETTING) is None
    assert subject.flops(Candidate(name), TRAIN) > 2 * subject.flops(Candidate(name), SETTING)


def test_all_have_the_same_stochastic_depth() -> None:
    for name in ('cpvt_mm', 'mmseg', 'pvt'):
        skip_if_missing(name)
        model = build_backbone(Candidate(name), NANO, 0.375)
        rates = [getattr(module, 'drop_prob', getattr(module, 'rate', 0)) for module in model.modules()]
        assert max(rates) == pytest.approx(0.375), name


def test_what_is_computed_again_does_not_count() -> None:
    subject = Backbones('nano')
    flops = [subject.flops(Candidate('cpvt_mm', arguments), TRAIN) for arguments in ({}, dict(with_cp=True))]
    assert flops[0] == flops[1]
    forward = subject.flops(Candidate('cpvt_mm'), SETTING)
    first_layer = 2 * SETTING.batch_size * 16 * 24 * 32 * 3 * 4**2  # whose input needs no gradient
    assert flops[0] == 3 * forward - first_layer


@pytest.mark.parametrize('dtype, expected', [('fp32', torch.float32), ('bf16', torch.bfloat16)])
@pytest.mark.parametrize('channels_last', [False, True])
def test_a_step_of_training_leaves_gradients_of_all_weights(dtype: str, expected: torch.dtype, channels_last: bool,
                                                            ) -> None:
    step = Backbones('nano', drop_path_rate=0., channels_last=channels_last).step(
        Candidate('cpvt_mm'), replace(TRAIN, dtype=dtype))
    assert step.held_bytes() == 4 * sum(p.numel() for p in step.model.parameters())
    seen: list[torch.dtype] = []
    convolution = next(module for module in step.model.modules() if isinstance(module, nn.Conv2d))
    convolution.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    step.run()
    before = {name: p.grad.clone() for name, p in step.model.named_parameters()}
    assert all(grad.any() for grad in before.values())
    step.run()
    assert all(torch.equal(p.grad, before[name]) for name, p in step.model.named_parameters())
    assert seen == [expected, expected]


@pytest.mark.parametrize('candidate, setting, words', [
    (Candidate('cpvt_mm', dict(drop_rate=2.)), SETTING, 'cannot be built'),
    *((Candidate('onnxruntime', shapes=shapes), setting, 'runs forward passes in fp32 on the CPU only')
      for setting, shapes in ((TRAIN, None), (replace(SETTING, dtype='bf16'), None), (SETTING, 'static'))),
])
def test_what_cannot_be_built_or_run_is_told(candidate: Candidate, setting: Setting, words: str) -> None:
    with pytest.raises(CannotMeasure, match=words):
        Backbones('nano').step(candidate, setting)
