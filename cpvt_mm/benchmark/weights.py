"""Gives all implementations of the pyramid the same weights, and compares their outputs."""
import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import cast

import torch
from torch import Tensor, nn

from cpvt_mm.models.pyramid_cpvt import PyramidArch, PyramidCPVT
from cpvt_mm.weights.formats import Format


@functools.cache
def reference(arch: PyramidArch) -> PyramidCPVT:
    """Builds the backbone with the shared weights, in eval mode. All are random, also those initialised as 0 or 1."""
    model = PyramidCPVT(asdict(arch)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)
    return model


def give_weights(model: nn.Module, fmt: Format, arch: PyramidArch) -> bool:
    """Gives a backbone the weights of the reference, and the eps of its norms.

    Args:
        model: A backbone of the arch.
        fmt: The format of its weights.
        arch: The arch of the reference.

    Returns:
        Whether the weights fit. They do not if the model has other layers; it is unchanged then.
    """
    source = reference(arch)
    weights = fmt.to_theirs(source.state_dict())
    own = model.state_dict()
    if any(name not in own or own[name].shape != tensor.shape for name, tensor in weights.items()):
        return False
    model.load_state_dict(weights, strict=False)  # the model may have a final norm or a head, which is not used
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm) and f'{name}.weight' in weights:
            ours = fmt.our_names(f'{name}.weight')[0].rpartition('.')[0]
            module.eps = cast(nn.LayerNorm, source.get_submodule(ours)).eps
    return True


def max_abs_diff(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float | None:
    """Returns the largest absolute difference of two values; None if the maps have different shapes."""
    if [x.shape for x in outputs] != [x.shape for x in expected]:
        return None
    return max(float((x - y).abs().max()) for x, y in zip(outputs, expected, strict=True))
