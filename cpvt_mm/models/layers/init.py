"""Initial values of parameters."""
from math import prod

from torch import nn


def init_parameters(module: nn.Module) -> None:
    """Initialises one layer like the original code of Twins-PCPVT, except for the biases of convolutions.

    Pass it to `Module.apply`. Linear layers get weights from a normal distribution of std 0.02, truncated at two
    standard deviations, and a zero bias. Convolutions get weights of variance 2 / fan-out and a bias of std 0.02.

    The original has zero biases in convolutions. With them, tokens of zero-padded pixels are zero in every channel. The
    derivative of LayerNorm at such a token is 1 / sqrt(eps), which is 10^3, and the factors of several norms multiply.
    The first gradients of a padded batch would be 10^6 times too large.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d | nn.Conv3d):
        fan_out = prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=(2 / fan_out)**0.5)
        if module.bias is not None:
            nn.init.normal_(module.bias, std=0.02)
