"""Initial values of parameters."""
from torch import nn


def init_parameters(module: nn.Module) -> None:
    """Initialises one layer as the original code of Twins-PCPVT does; for `Module.apply`.

    Linear: normal of std 0.02 truncated at two. Convolution: normal of variance 2 / fan-out. Biases: 0.
    """
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
    elif isinstance(module, nn.Conv2d):
        fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=(2 / fan_out)**0.5)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)
