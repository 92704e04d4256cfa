import sys
from pathlib import Path

import pytest
from torch import nn

from cpvt_lab.candidates import Candidate, CannotMeasure, build_backbone, parse_candidate
from cpvt_mm.errors import UserError
from cpvt_mm.models.pyramid_cpvt import PYRAMID_ARCHS


@pytest.mark.parametrize('text, arguments', [
    ('mmseg', {}),
    ('cpvt_mm:with_cp=selective,drop_rate=0.1', dict(with_cp='selective', drop_rate=0.1)),
    ("cpvt_mm:position_encoding={'type': 'PEG', 'target': 'v'},out_norm=True",
     dict(position_encoding=dict(type='PEG', target='v'), out_norm=True)),
])
def test_reads_names_and_arguments(text: str, arguments: dict) -> None:
    candidate = parse_candidate(text)
    assert candidate == Candidate(text.partition(':')[0], arguments)
    assert parse_candidate(str(candidate)) == candidate


@pytest.mark.parametrize('text, words', [
    ('vit', "'vit' is not a candidate: choose from cpvt_mm, onnxruntime, mmseg,"),
    ('mmseg:with_cp', "'with_cp' of candidate 'mmseg:with_cp' is not an argument"),
])
def test_what_is_no_candidate_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_candidate(text)


def test_the_plain_one_computes_everything_once() -> None:
    assert Candidate('mmseg', dict(with_cp=True, drop_rate=0.1), 'static').plain() == Candidate(
        'mmseg', dict(drop_rate=0.1))


@pytest.mark.parametrize('shapes, calls', [(None, []), ('static', [False]), ('dynamic', [True])])
def test_compiles_for_the_shapes(shapes: str | None, calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(nn.Module, 'compile', lambda model, dynamic: compiled.append(dynamic))
    Candidate('mmseg', shapes=shapes).compile(nn.Identity())
    assert compiled == calls


def test_arguments_that_a_class_does_not_take_are_told() -> None:
    with pytest.raises(CannotMeasure, match=r'cpvt_mm:heads=3 cannot be built \(TypeError: .*heads'):
        build_backbone(Candidate('cpvt_mm', dict(heads=3)), PYRAMID_ARCHS['nano'], 0.2)


def test_timm_needs_the_torchvision_of_its_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'timm.py').write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition('.')[0] == 'timm']:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(CannotMeasure, match=r'timm cannot be imported \(operator torchvision::nms does not exist\): '
                                            'pip install timm, with the torchvision that goes with your torch'):
        build_backbone(Candidate('timm'), PYRAMID_ARCHS['nano'], 0.2)
