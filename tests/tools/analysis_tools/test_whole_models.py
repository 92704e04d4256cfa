from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpvt_lab.candidates import Candidate, CannotMeasure
from cpvt_lab.whole_models import WholeModels
from cpvt_mm.errors import UserError
from tests.conftest import MASK_RCNN, ROOT, UPERNET

from .subjects import SETTING

TRAIN = replace(SETTING, mode='train', height=96, width=128)
DETECTORS = WholeModels(str(MASK_RCNN), 'nano')


def test_each_candidate_is_the_backbone_of_the_same_model() -> None:
    names = {}
    for candidate in (Candidate('cpvt_mm', dict(with_cp=True)), Candidate('mmseg'), Candidate('pvt')):
        step = DETECTORS.step(candidate, TRAIN)
        names[str(candidate)] = type(step.model.backbone).__name__
        weights = {name: p.detach().clone() for name, p in step.model.named_parameters()}
        assert step.held_bytes() >= 4 * sum(p.numel() for p in weights.values())
        held = step.held_bytes()
        step.run()
        assert torch.isfinite(torch.cat([p.flatten() for p in step.model.parameters()])).all()
        assert all(torch.equal(p, weights[name]) for name, p in step.model.named_parameters())  # every step is alike
        state = step.optim_wrapper.optimizer.state
        assert set(state) == {p for p in step.model.parameters() if p.requires_grad}
        assert any(state[p]['exp_avg'].any() for p in step.model.backbone.parameters())
        assert step.held_bytes() > 2.9 * held  # AdamW keeps two numbers for each weight
    assert list(names.values()) == ['PyramidCPVT', 'PCPVT', 'PyramidVisionTransformer']


def test_predicts_and_counts() -> None:
    step = DETECTORS.step(Candidate('cpvt_mm'), SETTING)
    before = {name: buffer.clone() for name, buffer in step.model.named_buffers()}
    step.run()
    assert not step.model.training and step.optim_wrapper is None
    assert all(torch.equal(buffer, before[name]) for name, buffer in step.model.named_buffers())
    flops = DETECTORS.flops(Candidate('cpvt_mm', shapes='static'), SETTING)
    assert flops > 2 * DETECTORS.flops(Candidate('cpvt_mm'), replace(SETTING, batch_size=1)) * 0.9
    recomputing = Candidate('cpvt_mm', dict(with_cp='selective'))
    assert DETECTORS.flops(recomputing, SETTING) == DETECTORS.flops(Candidate('cpvt_mm'), SETTING)
    assert DETECTORS.max_abs_diff(step, SETTING) is None


def test_segments_images_of_the_size_in_the_dtype(tmp_path: Path) -> None:
    path = tmp_path / 'padded.py'
    path.write_text(f"_base_ = '{UPERNET}'\nmodel = dict(data_preprocessor=dict(size=(160, 160), size_divisor=None))\n")
    step = WholeModels(str(path), 'nano').step(Candidate('cpvt_mm'), replace(TRAIN, dtype='bf16', batch_size=3))
    seen: list[tuple] = []
    step.model.backbone.register_forward_hook(lambda module, args, out: seen.append((args[0].shape, out[-1].dtype)))
    step.run()
    assert seen == [((3, 3, 96, 128), torch.bfloat16)]


def test_the_arch_need_not_be_the_config_s() -> None:
    step = WholeModels(str(ROOT / 'configs/toy/segformer_pyramid-cpvt-nano_toy-shapes-128x128.py'), 'tiny').step(
        Candidate('cpvt_mm'), SETTING)
    assert step.model.backbone.out_channels == (64, 128, 320, 512)
    step.run()


@pytest.mark.parametrize('candidate, words', [
    (Candidate('timm'), 'timm is in no registry of OpenMMLab'),
    (Candidate('cpvt_mm', dict(heads=3)), r'cpvt_mm:heads=3 cannot be built \('),
])
def test_what_no_config_can_have_is_told(candidate: Candidate, words: str) -> None:
    with pytest.raises(CannotMeasure, match=words):
        DETECTORS.step(candidate, SETTING)


def test_a_config_that_is_not_there_or_of_a_model_of_videos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'config nowhere\.py does not exist'):
        WholeModels('nowhere.py', 'nano').step(Candidate('cpvt_mm'), SETTING)
    path = tmp_path / 'video.py'
    path.write_text(f"_base_ = '{MASK_RCNN}'\n"
                    "model = dict(data_preprocessor=dict(_delete_=True, type='TrackDataPreprocessor'))\n")
    with pytest.raises(UserError, match='is not for a detector or segmentor of single images'):
        WholeModels(str(path), 'nano').step(Candidate('cpvt_mm'), TRAIN)
