import pytest

from cpvt_mm.swap import CannotSwap
from cpvt_mm.swap.probing import Maps, ProbedBackbone
from cpvt_mm.swap.pyramid import choose_stages


@pytest.mark.parametrize(('strides', 'out_indices', 'in_mmdet', 'in_mmseg'), [
    ((4, 8, 16, 32), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
    ((4, 8, 16, 32), None, (0, 1, 2, 3), (0, 1, 2, 3)),
    ((8, 16, 32), (3, 4, 5), (1, 2, 3), (1, 2, 3)),  # numbers of Darknet's own
    ((32,), (3,), (3,), (3,)),
    ((16,), (3,), (2,), (3,)),  # dilated: anchors need the stride, segmentation the last stage
    ((4, 8, 8, 8), (0, 1, 2, 3), None, (0, 1, 2, 3)),
    ((4, 8, 8, 8), (1, 2, 4, 6), None, (0, 1, 2, 3)),  # numbers of MobileNet's own
    ((8, 8), (2, 3), None, (2, 3)),
    ((16,), (11,), (2,), (2,)),  # a plain transformer
])
def test_stages_by_stride_or_by_number(strides: tuple, out_indices: tuple | None, in_mmdet: tuple | None,
                                       in_mmseg: tuple) -> None:
    probed = ProbedBackbone(Maps((1,) * len(strides), strides), out_indices)
    assert choose_stages('X', probed, 'mmseg') == in_mmseg
    if in_mmdet:
        assert choose_stages('X', probed, 'mmdet') == in_mmdet
    else:
        with pytest.raises(CannotSwap, match='backbone X returns maps of strides'):
            choose_stages('X', probed, 'mmdet')


@pytest.mark.parametrize(('strides', 'out_indices'), [
    ((4, 4), None), ((16, 16, 16, 16), (2, 5, 8, 11)), ((8, 4), (0, 1)), ((2, 4, 8, 16), (0, 1, 2, 4)), ((64,), (3,)),
    ((8, 8), (3, 2)), ((4, 4, 8, 64), (0, 1, 2, 3)),
])
def test_other_maps_are_no_pyramid(strides: tuple, out_indices: tuple | None) -> None:
    for scope in ('mmdet', 'mmseg'):
        with pytest.raises(CannotSwap, match='backbone X returns maps of strides'):
            choose_stages('X', ProbedBackbone(Maps((1,) * len(strides), strides), out_indices), scope)
