"""PVT (arXiv 2102.12122), PVT v2 (arXiv 2106.13797) and the MiT of SegFormer (arXiv 2105.15203)."""
from dataclasses import replace

from .family import PyramidArch
from .twins import sizes

DEPTHS = {  # of PVT v2 and MiT
    'b0': (2, 2, 2, 2), 'b1': (2, 2, 2, 2), 'b2': (3, 4, 6, 3), 'b3': (3, 4, 18, 3), 'b4': (3, 8, 27, 3),
    'b5': (3, 6, 40, 3)}


def _v2(size: str, *mlp_ratios: int) -> PyramidArch:
    arch = replace(sizes(*DEPTHS[size]), mlp_ratios=mlp_ratios)
    return replace(arch, embed_dims=(32, 64, 160, 256)) if size == 'b0' else arch


ARCHS = {
    # PVT (table 1) has the sizes of Twins.
    'pvt-tiny': sizes(2, 2, 2, 2),
    'pvt-small': sizes(3, 4, 6, 3),
    'pvt-medium': sizes(3, 4, 18, 3),
    'pvt-large': sizes(3, 8, 27, 3),
    # PVT v2 (table 1) and MiT (table 6)
    **{f'pvtv2-{size}': _v2(size, 8, 8, 4, 4) for size in ('b0', 'b1', 'b2', 'b3', 'b4')},
    'pvtv2-b5': _v2('b5', 4, 4, 4, 4),
    **{f'mit-{size}': _v2(size, 4, 4, 4, 4) for size in DEPTHS},
}
