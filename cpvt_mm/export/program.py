"""Traces a model with torch.export, for any batch, height and width."""
import copy
import inspect
from contextlib import suppress

import torch
from torch import nn
from torch.export import ExportedProgram

from .parts import in_channels
from .pixel_decoder import take_any_size


def export_program(model: nn.Module) -> ExportedProgram:
    """Exports a copy, in eval mode, for any batch, height and width from 1."""
    from torch.fx.experimental.dynamic_spec import ParamsSpec, ShapeVar, TensorSpec  # torch 2.14 or newer
    model = copy.deepcopy(model).eval()
    take_any_size(model)
    channels = in_channels(model)
    # torch.export.Dim would use the example's size as a hint, and require what convolutions assume for that size: more
    # than one image, and more than one cell per side on every map. A `ShapeVar` has no hint.
    batch, height, width = (ShapeVar(name, min=1) for name in ('batch', 'height', 'width'))
    argument = next(iter(inspect.signature(model.forward).parameters))
    shapes = ParamsSpec({argument: TensorSpec([batch, channels, height, width])})

    def trace(strict: bool) -> ExportedProgram:
        with torch.no_grad():
            return torch.export.export(model, (torch.zeros(2, channels, 64, 96),), dynamic_shapes=shapes, strict=strict)

    try:
        program = trace(strict=False)
    except Exception:
        # Code may need a number for a size, as `len(x)` does. torch's compiler reads such code instead of running it,
        # which takes twice as long.
        with suppress(Exception):
            return without_paths(trace(strict=True))
        raise
    return without_paths(program)


def without_paths(program: ExportedProgram) -> ExportedProgram:
    """Removes the paths of this machine, in place."""
    for node in program.graph.nodes:
        node.meta.pop('stack_trace', None)
    return program
