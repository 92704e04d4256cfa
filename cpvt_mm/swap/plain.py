"""Swaps CPVT in for plain transformers: backbones whose maps come from several depths and have one stride."""
from collections.abc import Sequence
from typing import Any, ClassVar

from cpvt_mm.models import CPVT, PLAIN_ARCHS, PyramidCPVT
from cpvt_mm.models.cpvt import PlainArch
from cpvt_mm.models.validation import parse_arch

from .channels import is_vitdet_neck
from .errors import CannotSwap
from .probing import ProbedBackbone
from .pyramid import find_stages
from .targets import Target


class PlainTarget(Target):
    """CPVT: each map of the old backbone is replaced by the map of a block, see `blocks_by_depth`."""
    cls = CPVT
    archs = tuple(PLAIN_ARCHS)
    # Detectors and segmentors use patches only.
    options: ClassVar[dict[str, Any]] = dict(drop_path_rate=0.1, cls_token=False)
    # From ViTDet, and from Swin on ADE20K.
    optimizers: ClassVar[dict[str, dict[str, Any]]] = {
        'mmdet': dict(type='AdamW', lr=1e-4, weight_decay=0.1),
        'mmseg': dict(type='AdamW', lr=6e-5, weight_decay=0.01),
    }

    def choose_outputs(self, config: dict[str, Any], old: ProbedBackbone, scope: str | None,
                       whole: PyramidCPVT | CPVT) -> tuple[int, ...]:
        name, strides = config['type'], old.maps.strides
        if set(strides) != set(whole.strides):
            other = ': take PyramidCPVT instead of CPVT' if find_stages(old, scope) else ''
            raise CannotSwap(f'its backbone {name} returns maps of strides {", ".join(map(str, strides))}, but CPVT of '
                             f'stride {whole.strides[0]} only{other}.')
        if len(strides) > whole.num_blocks:
            raise CannotSwap(f'its backbone {name} returns {len(strides)} maps, but this arch of CPVT has '
                             f'{whole.num_blocks} blocks.')
        # CPVT does not build blocks after the last returned block, so the number comes from its arch.
        num_blocks = (parse_arch(config.get('arch', 'tiny'), PlainArch, PLAIN_ARCHS).depth if self.is_in(config)
                      else old.num_blocks)
        if old.out_indices and num_blocks and set(old.out_indices) <= set(range(num_blocks)):
            return blocks_by_depth(sorted(old.out_indices), num_blocks, whole.num_blocks)
        if len(strides) > 1:
            raise CannotSwap(f'its backbone {name} returns {len(strides)} maps, but does not state which blocks they '
                             'come from (it needs out_indices, and a list of blocks that is called layers or blocks).')
        return whole.out_indices

    def adapt_neck(self, neck: dict[str, Any]) -> None:
        """Replaces ViTDet's neck by `SimpleFeaturePyramid`, which is equivalent but reads a sequence of maps."""
        if is_vitdet_neck(neck):
            new = dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=neck['backbone_channel'],
                       out_channels=neck['out_channels'], num_outs=neck['num_outs'])
            neck.clear()
            neck.update(new)


def blocks_by_depth(indices: Sequence[int], num_blocks: int, new_num_blocks: int) -> tuple[int, ...]:
    """Chooses blocks of a new transformer at the same relative depth as blocks of an old one.

    The relative depth of block i, counted from 0, is (i + 1) / num_blocks. The new block is the first one of at least
    the same relative depth, so the last block replaces the last block. If two old blocks give the same new block, the
    later one moves to the next free block.

    Args:
        indices: Blocks of the old transformer, in increasing order.
        num_blocks: Number of blocks of the old transformer.
        new_num_blocks: Number of blocks of the new transformer, at least the length of `indices`.

    Returns:
        Blocks of the new transformer, as many as `indices`, in increasing order.

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
