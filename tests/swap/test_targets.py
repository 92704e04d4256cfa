"""The maps that replace those of an old backbone X: stages of a pyramid, or blocks of a plain transformer."""
import pytest
import torch

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.swap import TARGETS, CannotSwap
from cpvt_mm.swap.probing import Maps, ProbedBackbone
from cpvt_mm.swap.targets import blocks_by_depth

ALL = (0, 1, 2, 3)


def stages(strides: tuple[int, ...], out_indices: tuple[int, ...] | None, scope: str) -> tuple[int, ...]:
    """Chooses stages of a pyramid."""
    old = ProbedBackbone(Maps((1,) * len(strides), strides), out_indices)
    with torch.device('meta'):
        return TARGETS['PyramidCPVT'].choose_outputs(dict(type='X'), old, scope, PyramidCPVT('nano'))


def blocks(strides: tuple[int, ...], out_indices: tuple[int, ...] | None, num_blocks: int | None) -> tuple[int, ...]:
    """Chooses blocks of the tiny CPVT, of 12."""
    old = ProbedBackbone(Maps((8,) * len(strides), strides), out_indices, num_blocks)
    with torch.device('meta'):
        return TARGETS['CPVT'].choose_outputs(dict(type='X'), old, 'mmdet', CPVT())


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
    assert stages(strides, out_indices, 'mmseg') == in_mmseg
    if in_mmdet:
        assert stages(strides, out_indices, 'mmdet') == in_mmdet
    else:
        with pytest.raises(CannotSwap, match='backbone X returns maps of strides'):
            stages(strides, out_indices, 'mmdet')


@pytest.mark.parametrize(('strides', 'out_indices'), [
    ((4, 4), None), ((16, 16, 16, 16), (2, 5, 8, 11)), ((8, 4), (0, 1)), ((2, 4, 8, 16), (0, 1, 2, 4)), ((64,), (3,)),
    ((8, 8), (3, 2)), ((4, 4, 8, 64), (0, 1, 2, 3)),
])
def test_other_maps_are_no_pyramid(strides: tuple, out_indices: tuple | None) -> None:
    for scope in ('mmdet', 'mmseg'):
        with pytest.raises(CannotSwap, match='backbone X returns maps of strides'):
            stages(strides, out_indices, scope)


@pytest.mark.parametrize(('indices', 'num_blocks', 'new_num_blocks', 'expected'), [
    ((2, 5, 8, 11), 12, 12, (2, 5, 8, 11)),
    ((5, 11, 17, 23), 24, 12, (2, 5, 8, 11)),
    ((9, 14, 19, 23), 24, 12, (4, 7, 9, 11)),  # after 15 of 24 blocks: 7.5 of 12
    ((5,), 12, 12, (5,)),
    ((5, 11), 12, 24, (11, 23)),
    ((20, 21, 22, 23), 24, 12, (8, 9, 10, 11)),  # two would be 10, two 11
    ((0, 1), 24, 12, (0, 1)),  # both would be 0
    ((0, 1, 2), 24, 3, (0, 1, 2)),
    ((8,), 10, 2, (1,)),
])
def test_blocks_by_depth(indices: tuple[int, ...], num_blocks: int, new_num_blocks: int,
                         expected: tuple[int, ...]) -> None:
    assert blocks_by_depth(indices, num_blocks, new_num_blocks) == expected


@pytest.mark.parametrize('num_blocks', [1, 2, 3, 5, 12, 24, 40])
@pytest.mark.parametrize('new_num_blocks', [1, 2, 3, 5, 12])
def test_blocks_are_distinct_and_the_last_replaces_the_last(num_blocks: int, new_num_blocks: int) -> None:
    for first in range(num_blocks):
        indices = range(max(first, num_blocks - new_num_blocks), num_blocks)
        found = blocks_by_depth(indices, num_blocks, new_num_blocks)
        assert len(found) == len(indices) and list(found) == sorted(set(found))
        assert found[0] >= 0 and found[-1] == new_num_blocks - 1


def test_one_map_without_a_block_is_that_of_the_last() -> None:
    assert blocks((16,), None, None) == (11,)
    assert blocks((16,), (2,), None) == (11,)  # a stage, and no list of blocks
    assert blocks((16,), (2,), 6) == (5,)


@pytest.mark.parametrize(('strides', 'out_indices', 'num_blocks', 'reason'), [
    ((4, 8, 16, 32), ALL, None, 'maps of strides 4, 8, 16, 32, but CPVT of stride 16 only: take PyramidCPVT inst'),
    ((16, 8, 4), None, None, r'maps of strides 16, 8, 4, but CPVT of stride 16 only\.$'),
    ((14, 14), (2, 5), 6, r'maps of strides 14, 14, but CPVT of stride 16 only\.$'),
    ((16, 16), None, 6, '2 maps, but does not state which blocks they come from'),
    ((16, 16), (2, 5), None, '2 maps, but does not state which blocks they come from'),
    ((16, 16), (2, 5), 4, '2 maps, but does not state which blocks they come from'),
    ((16,) * 13, tuple(range(13)), 24, '13 maps, but this arch of CPVT has 12 blocks'),
])
def test_maps_that_it_cannot_replace(strides: tuple, out_indices: tuple | None, num_blocks: int | None,
                                     reason: str) -> None:
    with pytest.raises(CannotSwap, match=f'its backbone X returns {reason}') as caught:
        blocks(strides, out_indices, num_blocks)
    assert '\n' not in str(caught.value)
