"""All families together: sizes by name, and the name of a size."""
import re
from collections.abc import Mapping

from torch import Tensor

from cpvt_mm.tokens.grid import round_up

from . import deit, dino, pvt, twins

PYRAMID_ARCHS = {**twins.ARCHS, **pvt.ARCHS}
PLAIN_ARCHS = {**deit.ARCHS, **dino.ARCHS}

FIRST_LAYER = re.compile(r'((?:stages\.\d+\.)?)blocks\.\d+\.mlp\.fc1\.weight')


def name_of(weights: Mapping[str, Tensor]) -> str | None:
    """Returns the name of the arch of a backbone with these weights; None if they are of no named one."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for name, tensor in weights.items():
        if match := FIRST_LAYER.fullmatch(name):
            shapes.setdefault(match[1], []).append(tuple(tensor.shape))
    found = [(len(of_stage), *of_stage[0]) for of_stage in shapes.values()]
    families = (('pvtv2', 'mit') if 'stages.0.norm.weight' in weights else
                ('pvt-',) if 'stages.3.position_encoding.0.table' in weights else ('',))
    for name, arch in PYRAMID_ARCHS.items():
        stages = zip(arch.depths, arch.mlp_ratios, arch.embed_dims, strict=True)
        if name.startswith(families) and found == [(depth, ratio * width, width) for depth, ratio, width in stages]:
            return name
    for name, plain in PLAIN_ARCHS.items():
        linear = plain.mlp_ratio * plain.embed_dims
        gated = 2 * round_up(linear * 2 // 3, 8)
        if found in [[(plain.depth, hidden, plain.embed_dims)] for hidden in (linear, gated)]:
            return name
    return None
