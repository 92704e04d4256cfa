import sys
from pathlib import Path

import pytest

from cpvt_mm.benchmark.candidates import Candidate, CannotMeasure, build_backbone, parse_candidate
from cpvt_mm.errors import UserError
from cpvt_mm.models.backbones.pyramid_cpvt import ARCHS


@pytest.mark.parametrize('text, arguments', [
    ('mmseg', {}),
    ('cpvt_mm:with_cp=True', dict(with_cp=True)),
    ('cpvt_mm:with_cp=selective,drop_rate=0.1', dict(with_cp='selective', drop_rate=0.1)),
    ("cpvt_mm:position_encoding={'type': 'PEG', 'target': 'v'},out_norm=True",
     dict(position_encoding=dict(type='PEG', target='v'), out_norm=True)),
])
def test_reads_names_and_arguments(text: str, arguments: dict) -> None:
    candidate = parse_candidate(text)
    assert candidate == Candidate(text.partition(':')[0], arguments)
    assert parse_candidate(str(candidate)) == candidate


@pytest.mark.parametrize('text, words', [
    ('vit', "'vit' is no candidate: take cpvt_mm, mmseg,"),
    ('mmseg:with_cp', "'with_cp' of candidate 'mmseg:with_cp' is no argument"),
])
def test_what_is_no_candidate_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_candidate(text)


def test_the_plain_one_computes_everything_once() -> None:
    assert Candidate('mmseg', dict(with_cp=True, drop_rate=0.1), 'static').plain() == Candidate(
        'mmseg', dict(drop_rate=0.1))


@pytest.mark.parametrize('shapes, calls', [(None, []), ('static', [False]), ('dynamic', [True])])
def test_compiles_for_the_shapes(shapes: str | None, calls: list[bool]) -> None:
    class Model:

        def __init__(self) -> None:
            self.calls: list[bool] = []

        def compile(self, dynamic: bool) -> None:
            self.calls.append(dynamic)

    model = Model()
    Candidate('mmseg', shapes=shapes).compile(model)
    assert model.calls == calls


@pytest.mark.parametrize('candidate, words', [
    (Candidate('cpvt_mm', dict(heads=3)), r"cpvt_mm:heads=3 cannot be built \(TypeError: .*heads"),
    (Candidate('twins'), r'twins cannot be built \(ModuleNotFoundError: No module named'),
])
def test_what_cannot_be_built_is_told(candidate: Candidate, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'timm', sys)  # as if it were there
    monkeypatch.setitem(sys.modules, 'gvt', None)
    with pytest.raises(CannotMeasure, match=words.replace('No module named', '(No module named|import of) .*gvt')):
        build_backbone(candidate, ARCHS['nano'], 0.2)


# What the original code imports at its top.
ORIGINAL = """
from mmcv.runner import auto_fp16, force_fp32, load_checkpoint
from mmdet.models.builder import BACKBONES
from mmdet.utils import get_root_logger
from torch import nn

class CPVTV2(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.arguments = arguments

    @auto_fp16()
    def forward(self, x):
        return [x]

@BACKBONES.register_module()
class pcpvt_small_v0(CPVTV2): pass
"""


def test_the_original_code_does_without_old_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'gvt.py').write_text(ORIGINAL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, 'timm', sys)
    try:
        model = build_backbone(Candidate('twins'), ARCHS['tiny'], 0.25)
    finally:
        sys.modules.pop('gvt', None)
    assert model(3) == [3]
    assert model.arguments == dict(
        embed_dims=[64, 128, 320, 512], depths=[2, 2, 2, 2], num_heads=[1, 2, 5, 8], mlp_ratios=[8, 8, 4, 4],
        sr_ratios=[8, 4, 2, 1], qkv_bias=True, num_classes=0, drop_path_rate=0.25)
    assert 'mmcv.runner' not in sys.modules
