"""Chooses the stages or blocks of a new backbone that replace the maps of an old backbone."""
from collections.abc import Sequence

from cpvt_mm.archs import STRIDES

from .probing import CannotSwap, Maps


def choose_stages(name: str, old: Maps, is_segmentor: bool) -> tuple[int, ...]:
    """Returns the stages of the pyramid, counted from 0, that replace the maps of a backbone.

    The stages have the same strides as the old maps. For a dilated backbone, a detector uses the stage with the same
    stride, because anchors depend on the stride. A segmentor uses the stage with the same number, because of its
    receptive field.

    Args:
        name: The type of the old backbone, for messages.
        old: Its maps.
        is_segmentor: Whether the model is a segmentor of mmseg.

    Raises:
        CannotSwap: If the old maps do not form a pyramid.
    """
    stages = _find_stages(old, is_segmentor)
    if not stages:
        other = ': use CPVT instead of PyramidCPVT' if set(old.strides) == {16} else ''
        raise CannotSwap(f'its backbone {name} returns maps with strides {_list(old.strides)}, but the stages of a '
                         f'pyramid have strides {_list(STRIDES)}{other}.')
    return stages


def _find_stages(old: Maps, is_segmentor: bool) -> tuple[int, ...]:
    """Returns the stages for `choose_stages`; an empty tuple if the maps do not form a pyramid."""
    strides, numbers = list(old.strides), tuple(range(len(STRIDES)))
    if is_segmentor and strides == sorted(strides) and set(strides) <= set(STRIDES):
        if len(strides) == len(numbers) and strides[0] == STRIDES[0]:
            return numbers
        if old.out_indices and old.out_indices == tuple(i for i in numbers if i in old.out_indices):
            return old.out_indices
    stages = tuple(i for i in numbers if STRIDES[i] in strides)
    return stages if strides == [STRIDES[i] for i in stages] else ()


def choose_blocks(name: str, old: Maps, is_segmentor: bool, stride: int, num_blocks: int) -> tuple[int, ...]:
    """Returns the blocks of CPVT that replace the maps of a plain transformer, see `blocks_by_depth`.

    Args:
        name: The type of the old backbone, for messages.
        old: Its maps.
        is_segmentor: Whether the model is a segmentor of mmseg. It resizes its logits to the image, so it also accepts
            patches of 14 pixels.
        stride: The stride of the new maps, in pixels.
        num_blocks: The number of blocks of the new backbone.

    Raises:
        CannotSwap: If the old maps have another stride, or it is unknown which blocks return them.
    """
    strides = old.strides
    if set(strides) != {stride} and not (is_segmentor and set(strides) == {16}):
        other = (': use PyramidCPVT instead of CPVT, or a config with SimpleFeaturePyramid, as in configs/cpvt and '
                 'configs/dino' if _find_stages(old, is_segmentor) else '')
        raise CannotSwap(f'its backbone {name} returns maps with strides {_list(strides)}, but CPVT returns only maps '
                         f'with stride {stride}{other}.')
    if len(strides) > num_blocks:
        raise CannotSwap(f'its backbone {name} returns {len(strides)} maps, but this arch of CPVT has {num_blocks} '
                         'blocks.')
    if old.out_indices and old.num_blocks and set(old.out_indices) <= set(range(old.num_blocks)):
        return blocks_by_depth(sorted(old.out_indices), old.num_blocks, num_blocks)
    if len(strides) > 1:
        raise CannotSwap(f'its backbone {name} returns {len(strides)} maps, but does not state which blocks they '
                         'come from (it needs out_indices, and a list of blocks that is called layers or blocks).')
    return (num_blocks - 1,)


def blocks_by_depth(indices: Sequence[int], num_blocks: int, new_num_blocks: int) -> tuple[int, ...]:
    """Chooses blocks of a new transformer at the same relative depths as blocks of an old transformer, in increasing
    order.

    The relative depth of block i, counted from 0, is (i + 1) / num_blocks. The new block is the first block with at
    least the same relative depth. If two old blocks lead to the same new block, the later one moves to the next free
    block.

    Examples:
        >>> blocks_by_depth([5, 11, 17, 23], 24, 12)
        (2, 5, 8, 11)
    """
    blocks: list[int] = []
    for following, index in zip(reversed(range(len(indices))), indices, strict=True):
        same_share = -(-(index + 1) * new_num_blocks // num_blocks) - 1
        after_previous = blocks[-1] + 1 if blocks else 0
        blocks.append(min(max(same_share, after_previous), new_num_blocks - 1 - following))
    return tuple(blocks)


def _list(values: Sequence[int]) -> str:
    return ', '.join(map(str, values))
