import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from torch import nn

from cpvt_mm.models.pyramid_cpvt import PYRAMID_ARCHS
from lab.backbones import Backbones, give_weights, max_abs_diff, reference
from lab.candidates import PEERS, Candidate, CannotMeasure, build_backbone, parse_candidate
from lab.steps import Setting
from lab.whole_models import WholeModels
from tests.conftest import MASK_RCNN, ROOT, UPERNET, refusal

from .subjects import SETTING

NANO = PYRAMID_ARCHS['nano']
BACKBONES, DETECTORS = Backbones('nano'), WholeModels(str(MASK_RCNN), 'nano')
TRAIN = replace(SETTING, mode='train')
OURS = Candidate('cpvt_mm')


@pytest.mark.parametrize('text, arguments', [
    ('mmseg', {}), ('cpvt_mm:with_cp=selective,drop_rate=0.1', dict(with_cp='selective', drop_rate=0.1)),
    ("cpvt_mm:position_encoding={'type': 'PEG', 'target': 'v'},out_norm=True",
     dict(position_encoding=dict(type='PEG', target='v'), out_norm=True))])
def test_reads_names_and_arguments(text: str, arguments: dict) -> None:
    candidate = parse_candidate(text)
    assert candidate == Candidate(text.partition(':')[0], arguments)
    assert parse_candidate(str(candidate)) == candidate


def test_compiles_for_the_shapes_but_the_plain_one_which_computes_everything_once() -> None:
    for shapes, calls in ((None, []), ('static', [call(dynamic=False)]), ('dynamic', [call(dynamic=True)])):
        Candidate('mmseg', shapes=shapes).compile(model := Mock())
        assert model.compile.mock_calls == calls
    candidate = Candidate('mmseg', dict(with_cp=True, drop_rate=0.1), 'static')
    assert candidate.plain() == Candidate('mmseg', dict(drop_rate=0.1))


def test_timm_needs_the_torchvision_of_its_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'timm.py').write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition('.')[0] == 'timm']:
        monkeypatch.delitem(sys.modules, name)
    told = refusal(build_backbone, Candidate('timm'), NANO, 0.2, error=CannotMeasure)
    assert 'timm cannot be imported (operator torchvision::nms does not exist): pip install timm, with the tor' in told


def skip_if_missing(name: str) -> None:
    try:
        PEERS[name].load()
    except ImportError as error:
        pytest.skip(f'{name}: {error}')


@pytest.mark.parametrize('name', ['mmseg', 'mmpretrain', 'timm'])
def test_other_implementations_do_the_same(name: str) -> None:
    skip_if_missing(name)
    assert BACKBONES.max_abs_diff(BACKBONES.step(OURS, SETTING), SETTING) == 0
    for setting in (SETTING, TRAIN):
        step = BACKBONES.step(Candidate(name), setting)
        assert BACKBONES.max_abs_diff(step, setting) < 1e-4
        assert step.model.training == (setting is TRAIN)
        assert BACKBONES.flops(Candidate(name), setting) == BACKBONES.flops(OURS, setting)


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
    step = BACKBONES.step(Candidate('onnxruntime'), SETTING)
    assert BACKBONES.max_abs_diff(step, SETTING) < 1e-4
    assert not step.has_torch_memory
    assert BACKBONES.flops(Candidate('onnxruntime'), SETTING) == BACKBONES.flops(OURS, SETTING)


def test_only_the_same_model_is_compared_and_a_compiled_one_as_it_is_compiled() -> None:
    for options, error in ((dict(with_cp=True), 0), (dict(norm_eps=1e-3), 0), (dict(position_encoding=None), None)):
        assert BACKBONES.max_abs_diff(BACKBONES.step(Candidate('cpvt_mm', options), SETTING), SETTING) == error
    compiled = Candidate('cpvt_mm', shapes='static')
    assert [BACKBONES.step(compiled, setting).is_comparable for setting in (
        SETTING, TRAIN, replace(SETTING, dtype='bf16'))] == [True, False, False]


@pytest.mark.parametrize('name', ['pvt', 'pvtv2'])
def test_pyramids_of_another_kind_are_of_the_same_size(name: str) -> None:
    skip_if_missing(name)
    step = BACKBONES.step(Candidate(name), SETTING)
    maps = step.model(torch.zeros(1, 3, 64, 96))
    assert [tuple(x.shape[1:]) for x in maps] == [(32, 16, 24), (64, 8, 12), (128, 4, 6), (192, 2, 3)]
    assert BACKBONES.max_abs_diff(step, SETTING) is None
    assert BACKBONES.flops(Candidate(name), TRAIN) > 2 * BACKBONES.flops(Candidate(name), SETTING)


@pytest.mark.parametrize('name', ['cpvt_mm', 'mmseg', 'pvt'])
def test_all_have_the_same_stochastic_depth(name: str) -> None:
    skip_if_missing(name)
    model = build_backbone(Candidate(name), NANO, 0.375)
    rates = [getattr(module, 'drop_prob', getattr(module, 'rate', 0)) for module in model.modules()]
    assert max(rates) == pytest.approx(0.375)


def test_what_is_computed_again_does_not_count() -> None:
    flops = [BACKBONES.flops(Candidate('cpvt_mm', arguments), TRAIN) for arguments in ({}, dict(with_cp=True))]
    first_layer = 2 * SETTING.batch_size * 16 * 24 * 32 * 3 * 4**2  # whose input needs no gradient
    assert flops[0] == flops[1] == 3 * BACKBONES.flops(OURS, SETTING) - first_layer


@pytest.mark.parametrize('dtype, expected', [('fp32', torch.float32), ('bf16', torch.bfloat16)])
@pytest.mark.parametrize('channels_last', [False, True])
def test_a_step_of_training_leaves_gradients_of_all(dtype: str, expected: torch.dtype, channels_last: bool) -> None:
    step = Backbones('nano', drop_path_rate=0., channels_last=channels_last).step(OURS, replace(TRAIN, dtype=dtype))
    assert step.held_bytes() == 4 * sum(p.numel() for p in step.model.parameters())
    seen: list[torch.dtype] = []
    convolution = next(module for module in step.model.modules() if isinstance(module, nn.Conv2d))
    convolution.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    step.run()
    before = [p.grad.clone() for p in step.model.parameters()]
    assert all(grad.any() for grad in before)
    step.run()
    assert all(map(torch.equal, before, (p.grad for p in step.model.parameters())))
    assert seen == [expected, expected]


@pytest.mark.parametrize('candidate, backbone', [
    (Candidate('cpvt_mm', dict(with_cp=True)), 'PyramidCPVT'), (Candidate('mmseg'), 'PCPVT'),
    (Candidate('pvt'), 'PyramidVisionTransformer')])
def test_each_candidate_is_the_backbone_of_the_same_model(candidate: Candidate, backbone: str) -> None:
    step = DETECTORS.step(candidate, replace(TRAIN, height=96, width=128))
    assert type(step.model.backbone).__name__ == backbone
    weights = [p.detach().clone() for p in step.model.parameters()]
    held = step.held_bytes()
    assert held >= 4 * sum(p.numel() for p in weights)
    step.run()
    assert torch.isfinite(torch.cat([p.flatten() for p in step.model.parameters()])).all()
    assert all(map(torch.equal, step.model.parameters(), weights))  # every step is alike
    state = step.optim_wrapper.optimizer.state
    assert set(state) == {p for p in step.model.parameters() if p.requires_grad}
    assert any(state[p]['exp_avg'].any() for p in step.model.backbone.parameters())
    assert step.held_bytes() > 2.9 * held  # AdamW keeps two numbers for each weight


def test_predicts_and_counts() -> None:
    step = DETECTORS.step(OURS, SETTING)
    before = [buffer.clone() for buffer in step.model.buffers()]
    step.run()
    assert not step.model.training and step.optim_wrapper is None
    assert all(map(torch.equal, step.model.buffers(), before))
    flops = DETECTORS.flops(OURS, SETTING)
    assert flops > 2 * DETECTORS.flops(OURS, replace(SETTING, batch_size=1)) * 0.9
    for other in (Candidate('cpvt_mm', shapes='static'), Candidate('cpvt_mm', dict(with_cp='selective'))):
        assert DETECTORS.flops(other, SETTING) == flops
    assert DETECTORS.max_abs_diff(step, SETTING) is None


def test_segments_images_of_the_size_in_the_dtype(tmp_path: Path) -> None:
    path = tmp_path / 'padded.py'
    path.write_text(f"_base_ = '{UPERNET}'\nmodel = dict(data_preprocessor=dict(size=(160, 160), size_divisor=None))\n")
    step = WholeModels(str(path), 'nano').step(OURS, Setting('train', 96, 128, 3, 'bf16', 1))
    seen: list[tuple] = []
    step.model.backbone.register_forward_hook(lambda module, args, out: seen.append((args[0].shape, out[-1].dtype)))
    step.run()
    assert seen == [((3, 3, 96, 128), torch.bfloat16)]


def test_the_arch_need_not_be_the_config_s() -> None:
    config = str(ROOT / 'configs/toy/segformer_pyramid-cpvt-nano_toy-shapes-128x128.py')
    step = WholeModels(config, 'tiny').step(OURS, SETTING)
    assert step.model.backbone.out_channels == (64, 128, 320, 512)
    step.run()


def test_a_config_that_is_not_there_or_of_a_model_of_videos_is_refused(tmp_path: Path) -> None:
    path = tmp_path / 'video.py'
    assert 'video.py does not exist' in refusal(WholeModels(str(path), 'nano').step, OURS, SETTING)
    path.write_text(f"_base_ = '{MASK_RCNN}'\n"
                    "model = dict(data_preprocessor=dict(_delete_=True, type='TrackDataPreprocessor'))\n")
    told = refusal(WholeModels(str(path), 'nano').step, OURS, TRAIN)
    assert 'is not for a detector or segmentor of single images' in told


@pytest.mark.parametrize('subject, candidate, setting, words', [
    (BACKBONES, Candidate('cpvt_mm', dict(drop_rate=2.)), SETTING, 'cannot be built'),
    (BACKBONES, Candidate('cpvt_mm', dict(heads=3)), SETTING, r'cpvt_mm:heads=3 cannot be built \(TypeError: .*heads'),
    (DETECTORS, Candidate('cpvt_mm', dict(heads=3)), SETTING, r'cpvt_mm:heads=3 cannot be built \('),
    (DETECTORS, Candidate('timm'), SETTING, 'timm is in no registry of OpenMMLab'),
    *((BACKBONES, Candidate('onnxruntime', shapes=shapes), setting, 'runs forward passes in fp32 on the CPU only')
      for setting, shapes in ((TRAIN, None), (replace(SETTING, dtype='bf16'), None), (SETTING, 'static')))])
def test_what_cannot_be_built_or_run_is_told(subject: Any, candidate: Candidate, setting: Setting, words: str) -> None:
    with pytest.raises(CannotMeasure, match=words):
        subject.step(candidate, setting)
