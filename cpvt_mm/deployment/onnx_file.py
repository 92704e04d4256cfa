"""Writes and runs ONNX files."""
from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves, tree_unflatten

from cpvt_mm.errors import UserError, first_line
from cpvt_mm.models.grid import to_nchw, to_nhwc
from cpvt_mm.models.layers.attention import average_pool

from . import operators
from .batches import Run

if TYPE_CHECKING:
    from onnx import ModelProto

PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')
AXES = ('batch', 'channel', 'height', 'width')
POOL = torch.ops.aten.adaptive_avg_pool2d.default


def check_installed() -> None:
    """Raises a UserError if one of the optional packages cannot be imported."""
    try:
        for package in PACKAGES:
            __import__(package)
    except ImportError as error:
        raise UserError(f'ONNX needs packages that cannot be imported ({first_line(error)}): pip install '
                        f'{" ".join(PACKAGES)}.') from error


def write(path: Path, program: ExportedProgram, description: Mapping[str, str]) -> None:
    """Writes `program` with its weights as one file, with `description` as its metadata."""
    path.write_bytes(to_onnx(program, description).SerializeToString())


def to_onnx(program: ExportedProgram, description: Mapping[str, str]) -> ModelProto:
    """Converts a program to ONNX.

    The input is `image`, with the dynamic axes `batch`, `height` and `width`. The outputs are `output0`, ..., or the
    keys of the dict that the model returns.
    """
    from onnx.helper import set_model_props
    if any(node.target is POOL for node in program.graph.nodes):
        # ONNX has no such operator, and torch's decomposition needs static sizes.
        program = program.run_decompositions({POOL: _average_pool})
    # Gradients are off, as in the export: with gradients, operators decompose differently, and views fail.
    with torch.no_grad():
        onnx_program = torch.onnx.export(
            program, input_names=['image'], output_names=_output_names(program), verbose=False,
            custom_translation_table=operators.translations())
    assert onnx_program  # torch returns None only if it writes a file
    model = onnx_program.model_proto
    _name_axes(model)
    set_model_props(model, dict(description))
    return model


def _output_names(program: ExportedProgram) -> list[str]:
    outputs = tree_unflatten(program.graph_signature.user_outputs, program.call_spec.out_spec)
    return [*outputs] if isinstance(outputs, dict) else [f'output{i}' for i, _ in enumerate(tree_leaves(outputs))]


def _average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Averages parts of a map: `(B, C, H, W)` -> `(B, C, *size)`."""
    return to_nchw(average_pool(to_nhwc(x), size))


def _name_axes(model: ModelProto) -> None:
    """Renames torch's dynamic axes u0, u1, ..., also in expressions of axes that are computed from them."""
    axes = model.graph.input[0].type.tensor_type.shape.dim
    names = {axis.dim_param: name for axis, name in zip(axes, AXES, strict=True) if axis.dim_param}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = re.sub(r'\w+', lambda match: names.get(match[0], match[0]), axis.dim_param)


def load(path: Path) -> Run:
    """Loads a model for onnxruntime on the CPU, with as many threads as torch has now."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its exceptions contain the same messages
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])

    def run(image: Tensor) -> list[Tensor]:
        return [torch.from_numpy(output) for output in session.run(None, {'image': image.numpy()})]

    return run
