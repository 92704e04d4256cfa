"""Exports a model to a file that runs without this package, at any image size."""
import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch._dynamo.decorators import mark_unbacked
from torch.export import ExportedProgram

from cpvt_mm.errors import UserError, first_line
from cpvt_mm.files import check_free, whole_file

from . import onnx_file, pt2_file
from .batches import Run
from .detector import Detector
from .parts import in_channels

# A frame in a Python traceback: file, line, function and code.
FRAME = re.compile(r'^ *File "(.+?)", line (\d+), in (\S+)\n +(.+)$', re.MULTILINE)
FORMATS = {'.pt2': pt2_file, '.onnx': onnx_file}


@contextmanager
def exported(model: nn.Module, path: Path, description: Mapping[str, str]) -> Iterator[Run]:
    """Exports a model with dynamic batch, height and width, and writes it to a file.

    The file is written to a temporary name first, so that the `with` block can test the exported model. It gets its
    final name at the end of the block, unless the block raises an error.

    Args:
        model: See `load_part`.
        path: Ends in .pt2, for `torch.export.load`, or .onnx.
        description: Stored in the file: in the metadata of .onnx, or in the extra file `description.json` of .pt2.

    Yields:
        A function that runs the exported model on images `(B, C, H, W)` and returns a flat list of its outputs.

    Raises:
        UserError: If the file exists already, its suffix is unknown, the model cannot be exported, or a package is
            missing.
    """
    if path.suffix not in FORMATS:
        raise UserError(f'{path} has no suffix of a known format: use {" or ".join(FORMATS)}.')
    if isinstance(model, Detector) and path.suffix != '.onnx':
        raise UserError(f'a detector cannot be exported to {path.suffix}, which has no operators for its boxes: use '
                        'the suffix .onnx.')
    fmt = FORMATS[path.suffix]
    fmt.check_installed()
    check_free(path)
    with whole_file(path) as temporary:
        with _reasons(model, path.suffix):
            fmt.write(temporary, export_program(model), description)
        yield fmt.load(temporary)


def export_program(model: nn.Module) -> ExportedProgram:
    """Exports a model with dynamic batch, height and width from 1; the program does not branch on their values."""
    image = torch.zeros(2, in_channels(model), 64, 96)
    # torch.export.Dim would use the example's size as a hint. torch (2.13) then requires what its convolutions assume
    # for that size: more than one image, and more than one cell per side on every map.
    mark_unbacked(image, [0, 2, 3], min=1)
    with torch.no_grad():
        program = torch.export.export(model, (image,), strict=True)
    for node in program.graph.nodes:
        node.meta.pop('stack_trace', None)  # paths of this machine
    return program


@contextmanager
def _reasons(model: nn.Module, suffix: str) -> Iterator[None]:
    """Converts errors of an export into a UserError, and silences torch's logging of them."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    except OSError:  # writing failed, for example on a full disk
        raise
    except Exception as error:  # compilers raise errors of many types
        raise UserError(f'the {type(model).__name__} cannot be exported to {suffix} with dynamic sizes, because of '
                        f'{_reason(error, model)}: replace that part, or make it work for any size.') from error
    finally:
        logging.disable(disabled)


def _reason(error: BaseException, model: nn.Module) -> str:
    """Returns the line of code that cannot be exported, and its module in `model`.

    If torch does not report the line, returns the first line of the original error.
    """
    while error.__cause__:
        error = error.__cause__
    explained, _, stack = str(error).partition('from user code:')
    frames = FRAME.findall(stack)
    if not frames:
        return first_line(error)
    owner = next(filter(None, (_owner(model, *frame[:3]) for frame in reversed(frames))), model)
    path, line, function, code = frames[-1]
    reason = re.search(r'Explanation: (.+)', explained)
    return (f"'{code}' in its {type(owner).__name__} ({Path(path).name}:{line} in {function}"
            f'{f"; {reason[1]}" if reason else ""})')


def _owner(model: nn.Module, path: str, line: str, function: str) -> nn.Module | None:
    """Finds the module of `model` whose method `function` contains the line."""
    for module in model.modules():
        code = getattr(inspect.unwrap(getattr(type(module), function, _owner)), '__code__', None)
        if code and code.co_filename == path and any(number == int(line) for *_, number in code.co_lines()):
            return module
    return None
