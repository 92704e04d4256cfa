"""Exports a part of a config's model to a file that runs without this package: .pt2 of torch.export, or ONNX."""
import copy
import inspect
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch._dynamo.decorators import mark_unbacked  # torch (2.13) has no public function that does the same
from torch.export import ExportedProgram

from cpvt_mm.models.create import load_backbone
from cpvt_mm.models.layers import PatchEmbed
from cpvt_mm.models.pvt_parts import average_pool
from openmmlab_tools.checkpoints.fitting import load_weights
from openmmlab_tools.checkpoints.loading import build_model
from openmmlab_tools.errors import UserError, first_line
from openmmlab_tools.files import check_free, whole_file
from openmmlab_tools.libraries import logging_from

from .detector import Detector, to_detector
from .pixel_decoder import take_any_size

if TYPE_CHECKING:
    from onnx import ModelProto

# A function that runs an exported model on images `(B, C, H, W)` and returns a flat list of its outputs.
Run = Callable[[Tensor], list[Tensor]]

SCOPES = {'segmentor': 'mmseg', 'detector': 'mmdet'}
ONNX_PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')
LEAST = 1e-7  # threshold of a binary segmentor, whose logit is finite
AXES = ('batch', 'channel', 'height', 'width')
POOL = torch.ops.aten.adaptive_avg_pool2d.default


@contextmanager
def exported(model: nn.Module, path: Path, description: Mapping[str, str]) -> Iterator[Run]:
    """Exports a model with dynamic batch, height and width to a file, which gets its name if the `with` block succeeds.

    Args:
        model: See `load_part`.
        path: Ends in .pt2, for `torch.export.load`, or .onnx.
        description: Stored in the metadata of .onnx, or in the extra file `description.json` of .pt2.

    Yields:
        A function that runs the exported model on images `(B, C, H, W)` and returns a flat list of its outputs.

    Raises:
        UserError: If the file exists, its suffix is unknown, the export fails, or a package is missing.
    """
    if path.suffix not in FORMATS:
        raise UserError(f'{path} has no suffix of a known format: use {" or ".join(FORMATS)}.')
    if isinstance(model, Detector) and path.suffix != '.onnx':
        raise UserError(f'a detector cannot be exported to {path.suffix}, which has no operators for its boxes: use '
                        'the suffix .onnx.')
    if 'min' not in inspect.signature(mark_unbacked).parameters:
        raise UserError(f'torch {torch.__version__} cannot export for all image sizes: use torch 2.13 or newer.')
    try:
        for package in ONNX_PACKAGES if path.suffix == '.onnx' else ():
            __import__(package)
    except ImportError as error:
        raise UserError(f'ONNX needs packages that cannot be imported ({first_line(error)}): pip install '
                        f'{" ".join(ONNX_PACKAGES)}.') from error
    check_free(path)
    write, load = FORMATS[path.suffix]
    with whole_file(path) as temporary:
        try:
            # The optimizer of onnxscript tells what it leaves as it is.
            with logging_from(logging.ERROR, logging.getLogger('onnxscript.optimizer')), warnings.catch_warnings():
                warnings.simplefilter('ignore')
                write(temporary, export_program(model), description,
                      *([model.translations()] if isinstance(model, Detector) else []))
        except OSError:  # writing failed, for example on a full disk
            raise
        except Exception as error:  # compilers raise errors of many types
            raise UserError(f'the {type(model).__name__} cannot be exported to {path.suffix} with dynamic sizes, '
                            f'because of {_reason(error)}: replace that part, or make it work for any size.') from error
        yield load(temporary)


def _reason(error: Exception) -> str:
    """Returns the first line of an error, and the line of code that cannot be exported if torch tells it."""
    frame = next(iter(reversed(getattr(error, 'real_stack', None) or ())), None)
    where = f"'{frame.line}' ({Path(frame.filename).name}:{frame.lineno} in {frame.name}): " if frame else ''
    return f'{where}{first_line(error)}'


def export_program(model: nn.Module) -> ExportedProgram:
    """Exports a copy, in eval mode, for any batch, height and width from 1."""
    model = copy.deepcopy(model).eval()
    take_any_size(model)
    image = torch.zeros(2, in_channels(model), 64, 96)
    # torch.export.Dim would use the example's size as a hint. torch (2.13) then requires what its convolutions assume
    # for that size: more than one image, and more than one cell per side on every map.
    mark_unbacked(image, [0, 2, 3], min=1)
    with torch.no_grad():
        program = torch.export.export(model, (image,), strict=True)
    for node in program.graph.nodes:
        node.meta.pop('stack_trace', None)  # paths of this machine
    return program


def flatten(outputs: Any) -> list[Tensor]:
    """Lists the tensors in the outputs of a model, which may be dicts and sequences, in their order."""
    if isinstance(outputs, Tensor):
        return [outputs]
    return [x for part in (outputs.values() if isinstance(outputs, dict) else outputs) for x in flatten(part)]


def write_pt2(path: Path, program: ExportedProgram, description: Mapping[str, str]) -> None:
    """Writes `program`, with `description` as the extra file `description.json`."""
    with path.open('wb') as file:  # torch requires a path to end in .pt2, but accepts any open file
        torch.export.save(program, file, extra_files={'description.json': json.dumps(dict(description))})


def load_pt2(path: Path) -> Run:
    with path.open('rb') as file:
        module = torch.export.load(file).module()

    def run(image: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return flatten(module(image))

    return run


def write_onnx(path: Path, program: ExportedProgram, description: Mapping[str, str],
               translations: Mapping[Callable[..., Any], Callable[..., Any]] = {}) -> None:
    """Writes `program` with its weights as one ONNX file, with `description` as its metadata.

    The input is `image`, with dynamic axes `batch`, `height`, `width`; outputs are `output0`, ..., or the model's keys.
    """
    from onnx.helper import set_model_props
    if any(node.target is POOL for node in program.graph.nodes):
        # ONNX has no such operator, and torch's decomposition needs static sizes.
        program = program.run_decompositions({POOL: _average_pool})
    names = program.graph_signature.user_outputs
    outputs = program.call_spec.out_spec.unflatten(names)
    # Gradients are off, as in the export: with gradients, operators decompose differently, and views fail.
    with torch.no_grad():
        onnx_program = torch.onnx.export(
            program, input_names=['image'], verbose=False, custom_translation_table=dict(translations),
            output_names=[*outputs] if isinstance(outputs, dict) else [f'output{i}' for i in range(len(names))])
    assert onnx_program  # torch returns None only if it writes a file
    model = onnx_program.model_proto
    _name_axes(model)
    set_model_props(model, dict(description))
    path.write_bytes(model.SerializeToString())


def _average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Averages parts of a map: `(B, C, H, W)` -> `(B, C, *size)`."""
    return average_pool(x.permute(0, 2, 3, 1), size).permute(0, 3, 1, 2)


def _name_axes(model: 'ModelProto') -> None:
    """Renames torch's dynamic axes u0, u1, ..., also in expressions of axes that are computed from them."""
    axes = model.graph.input[0].type.tensor_type.shape.dim
    names = {axis.dim_param: name for axis, name in zip(axes, AXES, strict=True) if axis.dim_param}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = re.sub(r'\w+', lambda match: names.get(match[0], match[0]), axis.dim_param)


def load_onnx(path: Path) -> Run:
    """Loads a model for onnxruntime on the CPU, with as many threads as torch has now."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its exceptions contain the same messages
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])

    def run(image: Tensor) -> list[Tensor]:
        return [torch.from_numpy(output) for output in session.run(None, {'image': image.numpy()})]

    return run


FORMATS: dict[str, tuple[Callable[..., None], Callable[[Path], Run]]] = {
    '.pt2': (write_pt2, load_pt2), '.onnx': (write_onnx, load_onnx)}


class Segmentor(nn.Module):
    """Backbone, neck and decode head of mmseg's EncoderDecoder, with logits resized to the image.

    The one channel of a binary head, which mmseg compares with a threshold after a sigmoid, gets the logit of that
    threshold as a channel before it: the larger channel is the class, as of other segmentors.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        """Computes the logits of images: `(B, 3, H, W)` -> `(B, classes, H, W)`."""
        logits = self.model.encode_decode(image, [dict(img_shape=tuple(image.shape[2:]))])
        if logits.shape[1] > 1:
            return logits
        threshold = min(max(self.model.decode_head.threshold, LEAST), 1 - LEAST)
        return torch.cat([torch.full_like(logits, math.log(threshold / (1 - threshold))), logits], dim=1)


def load_part(cfg: Config, part: str, checkpoint: str | Path | None = None,
              to_detector: Callable[[Any], Detector] = to_detector) -> nn.Module:
    """Builds a part of a config's model, in eval mode.

    Args:
        cfg: See `openmmlab_tools.engine.load_config`.
        part: 'backbone': a `CPVT` or `PyramidCPVT`; 'segmentor': a `Segmentor`; or 'detector': a `Detector`.
        checkpoint: Weights of the whole model; required for a detector. Defaults to None: random weights.
        to_detector: What wraps a detector. Defaults to the one for RetinaNet.

    Raises:
        UserError: If the config has no such part, a detector has no checkpoint, or the checkpoint does not fit.
    """
    if part == 'backbone':
        return load_backbone(cfg, checkpoint)
    if cfg.default_scope != SCOPES[part]:
        raise UserError(f'config {cfg.filename} is of {cfg.default_scope}, but {part}s are of {SCOPES[part]}: export '
                        'the backbone alone, with --part backbone.')
    if part == 'detector' and not checkpoint:
        raise UserError('a detector with random weights finds no boxes to compare: pass a --checkpoint.')
    model = build_model(cfg)
    if part == 'segmentor' and not hasattr(model, 'encode_decode'):
        raise UserError(f'the model of config {cfg.filename} is a {type(model).__name__}, but must be an '
                        'EncoderDecoder: export the backbone alone, with --part backbone.')
    wrapped = to_detector(model) if part == 'detector' else Segmentor(model)
    if checkpoint:
        load_weights(model, checkpoint)
    return wrapped.eval()


def in_channels(model: nn.Module) -> int:
    """Returns the number of image channels of a model with a backbone of this package."""
    return next(module.proj.in_channels for module in model.modules() if isinstance(module, PatchEmbed))
