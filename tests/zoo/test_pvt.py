"""PVT, PVT v2 and MiT of other libraries: their weights give their outputs here, and are told apart."""
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from cpvt_mm import PyramidCPVT, create_backbone, load_pretrained
from cpvt_mm.zoo.families import name_of
from cpvt_mm.zoo.family import PyramidArch
from cpvt_mm.zoo.pvt import FAMILY, PVT
from openmmlab_runs.checkpoints.fitting import load_weights
from tests.conftest import pretrained, refusal
from tests.zoo.pvt import PEERS, PVTV2, mmdet_pvt, mmseg_mit, randomized

# mmdet's and mmseg's heads all have the width of the first; MiT has one ratio of MLPs.
NARROW = dict(embed_dims=(8, 16, 40, 64), depths=(1, 2, 1, 1), num_heads=(1, 2, 5, 8), mlp_ratios=(4, 4, 4, 4),
              sr_ratios=(8, 4, 2, 1))
# transformers' PVT takes images of 224 x 224 only; its tables are made for them.
SIZES = {'transformers PVT': [(224, 224)]}
DEFAULT_SIZES = [(64, 96), (224, 224)]


@torch.no_grad()
@pytest.mark.parametrize('name', PEERS)
def test_their_weights_give_their_outputs(name: str, tmp_path: Path) -> None:
    build, options = PEERS[name]
    theirs, run = build(PyramidArch(**NARROW))
    torch.save(randomized(theirs).state_dict(), tmp_path / 'theirs.pth')
    ours = pretrained(tmp_path / 'theirs.pth', arch=NARROW, **options)
    for size in SIZES.get(name, DEFAULT_SIZES):
        image = torch.randn(1, 3, *size)
        for map_, expected in zip(ours(image), run(image), strict=True):
            # Rounding of 5 blocks, relative to the largest value: tens of times 6e-8.
            torch.testing.assert_close(map_, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def from_timm() -> nn.Module:
    return timm.create_model('pvt_v2_b0', features_only=True)


def from_smp() -> nn.Module:
    smp = pytest.importorskip('segmentation_models_pytorch')
    return smp.Unet('tu-pvt_v2_b0', encoder_weights=None)


@torch.no_grad()
@pytest.mark.parametrize(('build', 'part'), [(from_timm, ''), (from_smp, 'encoder.model')])
def test_a_model_of_features_alone_gives_its_maps(build: Callable[[], nn.Module], part: str, tmp_path: Path,
                                                  log: list[tuple[str, str]]) -> None:
    theirs = randomized(build())
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    load_pretrained(ours := create_backbone('pvtv2-b0').eval(), tmp_path / 'a.pth')
    message, = [text for level, text in log if level == 'INFO']
    assert 'format timm-pvtv2, 100.0 %' in message and 'stages_' not in message
    image = torch.randn(1, 3, 64, 96)
    for map_, expected in zip(ours(image), theirs.get_submodule(part)(image), strict=True):
        torch.testing.assert_close(map_, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(('name', 'of'), [('pvtv2-b0', 'pvtv2-b1'), ('pvtv2-b0', 'mit-b0'), ('mit-b0', 'pvtv2-b0')])
def test_weights_of_another_size_are_one_sentence_with_both_names(name: str, of: str, tmp_path: Path) -> None:
    def build(name: str) -> nn.Module:
        return PyramidCPVT(name, position_encoding=None)

    torch.save(build(of).state_dict(), tmp_path / 'of.pth')
    model = PyramidCPVT(name, position_encoding=None,
                        init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'of.pth')))
    told = refusal(model.init_weights)
    assert f"of arch '{of}' for a backbone of '{name}'" in told and told.count('.\n') == 0


def test_a_missing_class_token_is_one_sentence(tmp_path: Path) -> None:
    torch.save(PyramidCPVT(NARROW, **PVT).state_dict(), tmp_path / 'without.pth')
    assert '1 missing (stages.3.cls_token)' in refusal(
        pretrained, tmp_path / 'without.pth', arch=NARROW, **PVT, cls_token=True)


def test_a_detector_drops_the_class_token_and_says_so(tmp_path: Path, log: list[tuple[str, str]]) -> None:
    torch.save(PyramidCPVT(NARROW, **PVT, cls_token=True).state_dict(), tmp_path / 'with.pth')
    pretrained(tmp_path / 'with.pth', arch=NARROW, **PVT)
    assert any(level == 'WARNING' and 'does not have 1 of its tensors: stages.3.cls_token' in text
               for level, text in log)


def test_tables_of_a_pyramid_are_dropped_or_stand_beside_other_encodings(tmp_path: Path,
                                                                         log: list[tuple[str, str]]) -> None:
    whole = PyramidCPVT(NARROW, **PVT)
    torch.save(whole.state_dict(), tmp_path / 'tables.pth')
    pretrained(tmp_path / 'tables.pth', arch=NARROW, init_cfg=dict(allow_missing='position_encoding'))
    assert any('its position table is dropped, the backbone has none' in text for _, text in log)
    both = pretrained(tmp_path / 'tables.pth', arch=NARROW, init_cfg=dict(allow_missing='position_encoding'),
                      position_encoding=[dict(type='PEG'), dict(type='LearnablePE')])
    for ours, stage in zip(both.stages, whole.stages, strict=True):
        assert torch.equal(ours.position_encoding[1].table, stage.position_encoding[0].table)


@pytest.mark.parametrize('name', FAMILY.members)
def test_the_named_backbones_have_the_sizes_and_names_of_their_papers(name: str) -> None:
    with torch.device('meta'):
        model = create_backbone(name)
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert parameters == pytest.approx(MILLIONS[name], abs=0.06)
    same = {'pvtv2-b2-li': 'pvtv2-b2', 'mit-b5': 'pvtv2-b5'}  # the sizes of others
    assert name_of(model.state_dict()) == same.get(name, name)


# Without classifier: the papers' numbers less 1000 times the last width, plus 1000.
MILLIONS = {
    'pvt-tiny': 12.7, 'pvt-small': 24.0, 'pvt-medium': 43.7, 'pvt-large': 60.9,
    'pvtv2-b0': 3.4, 'pvtv2-b1': 13.5, 'pvtv2-b2': 24.8, 'pvtv2-b2-li': 22.0, 'pvtv2-b3': 44.7, 'pvtv2-b4': 62.0,
    'pvtv2-b5': 81.4, 'mit-b0': 3.3, 'mit-b1': 13.1, 'mit-b2': 24.2, 'mit-b3': 44.1, 'mit-b4': 60.8, 'mit-b5': 81.4}


class Whole(nn.Module):
    """A backbone and a head."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(2, 2)


@torch.no_grad()
@pytest.mark.parametrize('build, options', [(mmseg_mit, PVTV2), (mmdet_pvt, PVT)])
def test_checkpoints_of_whole_models_load_as_they_are(build: object, options: dict, tmp_path: Path) -> None:
    theirs = Whole(randomized(build(PyramidArch(**NARROW))[0]))
    torch.save(dict(state_dict=theirs.state_dict()), tmp_path / 'model.pth')
    for load in (lambda model: load_weights(model, tmp_path / 'model.pth'),
                 lambda model: model.load_state_dict(theirs.state_dict())):
        ours = Whole(PyramidCPVT(NARROW, **options, embed_norm_eps=1e-6)).eval()
        load(ours)
        image = torch.randn(1, 3, 64, 64)
        for map_, expected in zip(ours.backbone(image), theirs.backbone(image), strict=True):
            torch.testing.assert_close(map_, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
        assert torch.equal(ours.head.weight, theirs.head.weight)
