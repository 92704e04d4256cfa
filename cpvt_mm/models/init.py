"""Initialises a backbone with random weights, as the original code has them."""
from math import prod

from torch import nn

from cpvt_mm.encodings.base import PositionEncoding


def init_parameters(module: nn.Module) -> None:
    """Initialises one layer like the original code of Twins-PCPVT, except for the biases of convolutions.

    For `Module.apply`. Linear layers get weights from a normal of std 0.02, truncated at two standard deviations, and a
    zero bias; convolutions weights of variance 2 / fan-out and a bias of std 0.02; position encodings values of their
    own.

    With zero biases, as in the original, tokens of padding are zero. LayerNorm's derivative there is 1 / sqrt(eps), and
    the first gradients of a padded batch would be 10^6 times too large.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, PositionEncoding):
        module.init_parameters()
    elif isinstance(module, nn.Conv2d | nn.Conv3d):
        fan_out = prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=(2 / fan_out)**0.5)
        if module.bias is not None:
            nn.init.normal_(module.bias, std=0.02)
