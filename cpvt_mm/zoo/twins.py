"""Twins-PCPVT (arXiv 2104.13840), the pyramid of CPVT, and a smaller one for trials on a CPU."""
from .family import PyramidArch


def sizes(*depths: int) -> PyramidArch:
    """Returns the widths of Twins-PCPVT, with other depths."""
    return PyramidArch(embed_dims=(64, 128, 320, 512), depths=depths, num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4),
                       sr_ratios=(8, 4, 2, 1))


ARCHS = {
    'nano': PyramidArch(embed_dims=(32, 64, 128, 192), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 6),
                        mlp_ratios=(4, 4, 4, 4), sr_ratios=(8, 4, 2, 1)),
    'tiny': sizes(2, 2, 2, 2),
    'small': sizes(3, 4, 6, 3),
    'base': sizes(3, 4, 18, 3),
    'large': sizes(3, 8, 27, 3),
}
