"""Swaps PyramidCPVT in for backbones with maps of different strides, or with one map."""
from typing import Any, ClassVar

from cpvt_mm.models import ARCHS, CPVT, PyramidCPVT
from cpvt_mm.models.pyramid_cpvt import STRIDES

from .channels import is_vitdet_neck
from .errors import CannotSwap
from .probing import ProbedBackbone
from .targets import Target


class PyramidTarget(Target):
    """PyramidCPVT: each map of the old backbone is replaced by the map of a stage, see `choose_stages`."""
    cls = PyramidCPVT
    archs = tuple(ARCHS)
    options: ClassVar[dict[str, Any]] = dict(drop_path_rate=0.2)
    # From the original's 1x schedule on COCO and from Swin's schedule on ADE20K.
    optimizers: ClassVar[dict[str, dict[str, Any]]] = {
        'mmdet': dict(type='AdamW', lr=2e-4, weight_decay=1e-4),
        'mmseg': dict(type='AdamW', lr=6e-5, weight_decay=0.01),
    }

    def choose_outputs(self, config: dict[str, Any], old: ProbedBackbone, scope: str | None,
                       whole: PyramidCPVT | CPVT) -> tuple[int, ...]:
        return choose_stages(config['type'], old, scope)

    def adapt_neck(self, neck: dict[str, Any]) -> None:
        if is_vitdet_neck(neck):
            raise CannotSwap(f'its neck {neck["type"]} makes a pyramid of the map of a plain transformer: take CPVT '
                             'instead of PyramidCPVT.')


def choose_stages(name: str, old: ProbedBackbone, scope: str | None) -> tuple[int, ...]:
    """Chooses the stages of the pyramid, counted from 0, that replace the maps of a backbone.

    Without dilation, the map of stage i has the stride of the pyramid's stage i. With dilation, the stride is smaller,
    and the choice depends on the model:

    - A detector gets the stage of the same stride, which its anchors need.
    - A segmentor gets the stage of the same number. It takes any stride, and needs the receptive field of the last
      stage.

    Args:
        name: The type of the backbone.
        old: The maps of the backbone.
        scope: The scope of the config: 'mmseg', or any other.

    Raises:
        CannotSwap: If the maps are not those of a pyramid.
    """
    stages = find_stages(old, scope)
    if not stages:
        strides = ', '.join(map(str, old.maps.strides))
        other = ': take CPVT instead of PyramidCPVT' if set(old.maps.strides) == {16} else ''
        raise CannotSwap(f'its backbone {name} returns maps of strides {strides}, but a pyramid of four stages has one '
                         f'each of {", ".join(map(str, STRIDES))}{other}.')
    return stages


def find_stages(old: ProbedBackbone, scope: str | None) -> tuple[int, ...]:
    """Returns the stages for `choose_stages`; empty if the maps are not those of a pyramid."""
    return (_by_number(old) if scope == 'mmseg' else ()) or _by_stride(old)


def _by_stride(old: ProbedBackbone) -> tuple[int, ...]:
    strides = old.maps.strides
    is_pyramid = list(strides) == [stride for stride in STRIDES if stride in strides]
    return tuple(STRIDES.index(stride) for stride in strides) if is_pyramid else ()


def _by_number(old: ProbedBackbone) -> tuple[int, ...]:
    strides, numbers = old.maps.strides, tuple(range(len(STRIDES)))
    if list(strides) != sorted(strides) or not set(strides) <= set(STRIDES):
        return ()
    if len(strides) == len(numbers) and strides[0] == STRIDES[0]:
        return numbers
    named = old.out_indices or ()
    return named if named == tuple(i for i in numbers if i in named) else ()
