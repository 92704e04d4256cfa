import pytest

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.errors import UserError
from cpvt_mm.weights.formats import (
    FORMATS,
    MMSEG_PCPVT,
    PLAIN_CPVT,
    PYRAMID_CPVT,
    TIMM_VIT,
    TWINS,
    detect_format,
)
from cpvt_mm.weights.renaming import Format
from tests.conftest import NARROW, NARROW_PLAIN


def names_of(fmt: Format) -> list[str]:
    """The names of a whole backbone in a format."""
    if fmt.backbone == 'PyramidCPVT':
        weights = PyramidCPVT(NARROW).state_dict()
    else:
        weights = CPVT(NARROW_PLAIN, img_size=64, position_encoding=dict(type='LearnablePE')).state_dict()
    return list(weights if fmt in (PYRAMID_CPVT, PLAIN_CPVT) else fmt.to_theirs(weights))


@pytest.mark.parametrize('fmt', FORMATS, ids=lambda fmt: f'{fmt.backbone}-{fmt}')
@pytest.mark.parametrize('prefix', ['', 'backbone.', 'detector.backbone.'])
def test_names_tell_format_and_prefix(prefix: str, fmt: Format) -> None:
    names = ['neck.weight', *(prefix + name for name in names_of(fmt)), 'head.weight']
    assert detect_format(names, 'a.pth') == (fmt, prefix, ())


def test_the_first_of_the_shortest_prefixes_is_taken() -> None:
    names = [prefix + name for prefix in ('teacher.backbone.', 'student.backbone.', 'backbone.')
             for name in names_of(TWINS)]
    assert detect_format(names, 'a.pth') == (TWINS, 'backbone.', ('teacher.backbone.', 'student.backbone.'))
    assert detect_format([name for name in names if not name.startswith('b')], 'a.pth').prefix == 'teacher.backbone.'


@pytest.mark.parametrize('prefix', ['student.backbone', 'student.backbone.'])
def test_a_prefix_can_be_given(prefix: str) -> None:
    names = [start + name for start in ('backbone.', 'student.backbone.') for name in names_of(MMSEG_PCPVT)]
    assert detect_format(names, 'a.pth', prefix) == (MMSEG_PCPVT, 'student.backbone.', ())
    with pytest.raises(UserError, match=r"no backbone of a known format below 'neck\.'"):
        detect_format(names, 'a.pth', 'neck')
    with pytest.raises(UserError, match='no backbone of a known format: '):
        detect_format(names, 'a.pth', '')


def test_other_names_are_refused_with_the_formats_and_the_first_keys() -> None:
    names = [f'layer{i}.weight' for i in range(4)]
    with pytest.raises(UserError) as caught:
        detect_format(names, 'a.pth')
    assert str(caught.value) == (
        'checkpoint a.pth has no backbone of a known format: it has layer0.weight, layer1.weight, layer2.weight, ...; '
        'use a checkpoint of a known format (for PyramidCPVT cpvt_mm, twins or timm, mmseg, mmpretrain; for CPVT '
        'cpvt_mm, timm, mmpretrain).')


@pytest.mark.parametrize('names', [
    # Swin's blocks are called like those of a ViT, but below a layer, which has no patch embedding.
    ['patch_embed.proj.weight', 'layers.0.blocks.0.attn.qkv.weight'],
    [f'text_{name}' for name in TIMM_VIT.signature],  # a prefix ends at a dot
])
def test_similar_names_are_no_backbone(names: list[str]) -> None:
    with pytest.raises(UserError, match='no backbone'):
        detect_format(names, 'a.pth')


def test_of_two_classes_that_of_the_backbone_is_preferred() -> None:
    names = [*(f'a.{name}' for name in PLAIN_CPVT.signature),
             *(f'backbone.{name}' for name in TWINS.signature)]
    assert detect_format(names, 'a.pth').prefix == 'a.'
    assert detect_format(names, 'a.pth', wanted='PyramidCPVT').prefix == 'backbone.'
