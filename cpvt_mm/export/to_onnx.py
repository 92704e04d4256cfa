"""Writes a program of torch.export as an ONNX file."""
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram

from openmmlab_tools.libraries import logging_from

if TYPE_CHECKING:
    import onnx_ir
    from onnx import ModelProto

Translations = Mapping[Callable[..., Any], Callable[..., Any]]
AXES = ('batch', 'channel', 'height', 'width')


def write_onnx(path: Path, program: ExportedProgram, description: Mapping[str, str], translations: Translations = {}
               ) -> None:
    """Writes `program` with its weights as one ONNX file, with `description` as its metadata.

    The input is `image`, with dynamic axes `batch`, `height`, `width`; outputs are `output0`, ..., or the model's keys.
    """
    from onnx.helper import set_model_props
    names = program.graph_signature.user_outputs
    outputs = program.call_spec.out_spec.unflatten(names)
    # Gradients are off, as in the export: with gradients, operators decompose differently, and views fail.
    with torch.no_grad():
        onnx_program = torch.onnx.export(
            program, input_names=['image'], verbose=False, optimize=False,
            custom_translation_table={torch.ops.aten.adaptive_avg_pool2d.default: average_pool, **translations},
            output_names=[*outputs] if isinstance(outputs, dict) else [f'output{i}' for i in range(len(names))])
    assert onnx_program  # torch returns None only if it writes a file
    simplify(onnx_program.model)
    model = onnx_program.model_proto
    _name_axes(model)
    set_model_props(model, dict(description))
    path.write_bytes(model.SerializeToString())


def simplify(model: 'onnx_ir.Model') -> None:
    """Computes what is constant, and removes what is computed twice or not used.

    torch's own optimizer also tries about forty rules at each node. It then needs as long as the rest of the export,
    and runtimes, which have rules of their own, are not faster with its files.
    """
    import onnxscript.optimizer
    from onnx_ir.passes import common
    with logging_from(logging.ERROR, logging.getLogger('onnxscript.optimizer')):  # it tells what it leaves as it is
        onnxscript.optimizer.fold_constants(model, onnx_shape_inference=True)
    onnxscript.optimizer.remove_unused_nodes(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    onnxscript.optimizer.remove_unused_nodes(model)


def average_pool(x: Any, size: Sequence[Any]) -> Any:
    """Translates adaptive average pooling of `(B, C, H, W)`, for which torch needs static sizes.

    It multiplies by the weight of each row in the mean of each part, and by the same of columns.
    """
    from onnxscript import opset18
    op: Any = opset18  # its annotations allow only tensors, but it accepts numbers as constants

    def shares(axis: int, parts: Any) -> Any:
        length = op.Squeeze(op.Shape(x, start=axis, end=axis + 1))
        part, cell = op.Unsqueeze(op.Range(0, parts, 1), [1]), op.Range(0, length, 1)
        start = op.Div(op.Mul(part, length), parts)
        stop = op.Div(op.Add(op.Mul(op.Add(part, 1), length), op.Sub(parts, 1)), parts)
        is_in = op.And(op.GreaterOrEqual(cell, start), op.Less(cell, stop))
        return op.Div(op.CastLike(is_in, x), op.CastLike(op.Sub(stop, start), x))

    rows, columns = shares(2, size[0]), shares(3, size[1])
    return op.MatMul(op.MatMul(rows, x), op.Transpose(columns, perm=[1, 0]))


def _name_axes(model: 'ModelProto') -> None:
    """Renames torch's dynamic axes u0, u1, ..., also in expressions of axes that are computed from them."""
    axes = model.graph.input[0].type.tensor_type.shape.dim
    names = {axis.dim_param: name for axis, name in zip(axes, AXES, strict=True) if axis.dim_param}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = re.sub(r'\w+', lambda match: names.get(match[0], match[0]), axis.dim_param)
