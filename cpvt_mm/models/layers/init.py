"""Initial values of parameters."""
from torch import nn


def init_parameters(module: nn.Module) -> None:
    """Initialises one layer as the original code of Twins-PCPVT does, but for convolutions' biases; for `Module.apply`.

    Linear: normal of std 0.02 truncated at two, bias 0. Convolution: normal of variance 2 / fan-out, bias normal of
    std 0.02. The original has 0 there, and the tokens of padding, whose pixels are 0, are 0 in every channel. At such
    tokens the derivative of LayerNorm is 1 / sqrt(eps): the first gradients of a padded batch are 10^6 times too large.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=(2 / fan_out)**0.5)
        if module.bias is not None:
            nn.init.normal_(module.bias, std=0.02)
