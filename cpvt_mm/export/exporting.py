"""Exports a model to a file that runs without this package: .pt2 of torch.export, or ONNX."""
import gc
import json
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import config as fx_config

from openmmlab_tools.errors import UserError, first_line
from openmmlab_tools.exported.runtimes import Run, installed, load_everywhere
from openmmlab_tools.files import check_free, whole_file

from .detector import Detector
from .program import export_program
from .to_onnx import Translations, write_onnx

ONNX_PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')
TORCH = Path(torch.__file__).parent


def write_pt2(path: Path, program: ExportedProgram, description: Mapping[str, str], translations: Translations = {}
              ) -> None:
    """Writes `program`, with `description` as the extra file `description.json`."""
    with path.open('wb') as file:  # torch requires a path to end in .pt2, but accepts any open file
        torch.export.save(program, file, extra_files={'description.json': json.dumps(dict(description))})


WRITERS: dict[str, Callable[[Path, ExportedProgram, Mapping[str, str], Translations], None]] = {
    '.pt2': write_pt2, '.onnx': write_onnx}


@contextmanager
def exported(model: nn.Module, path: Path, description: Mapping[str, str],
             tell: Callable[[str], object] = lambda step: None) -> Iterator[dict[str, Run]]:
    """Exports a model to a file with dynamic batch size, height and width. If the `with` block fails, no file remains.

    Args:
        model: A model from `load_part`.
        path: The file to write: .onnx, or .pt2 for `torch.export.load`. It must not exist.
        description: Texts to store in the metadata of .onnx, or in the extra file `description.json` of .pt2.
        tell: Called with the name of each step before it begins. Defaults to nothing.

    Yields:
        For each installed runtime, by its name, a function that runs the exported model on images `(B, C, H, W)` and
        returns a flat list of its outputs.

    Raises:
        UserError: If the file exists, its suffix is unknown, the export fails, or a package is missing.
    """
    check_can_export(model, path)
    check_free(path)
    with whole_file(path) as temporary:
        try:
            with warnings.catch_warnings(), quick_tracing():
                warnings.simplefilter('ignore')
                tell('Tracing the model for all sizes')
                program = export_program(model)
                tell(f'Writing {path.suffix}')
                WRITERS[path.suffix](temporary, program, description,
                                     model.translations() if isinstance(model, Detector) else {})
        except OSError:  # writing failed, for example on a full disk
            raise
        except Exception as error:  # compilers raise errors of many types
            raise UserError(f'the {type(model).__name__} cannot be exported to {path.suffix} with dynamic sizes, '
                            f'because of {_reason(error)}: replace that part, or make it work for any size.') from error
        tell(f'Loading the file with {", ".join(installed(path.suffix))}')
        yield load_everywhere(temporary, path.suffix)


@contextmanager
def quick_tracing() -> Iterator[None]:
    """Saves a quarter of the time of tracing: nodes get no stack traces, which files do not contain, and garbage is not
    collected, because there is little among many objects.
    """
    stack_traces, is_collecting = fx_config.do_not_emit_stack_traces, gc.isenabled()
    fx_config.do_not_emit_stack_traces = True
    gc.disable()
    try:
        yield
    finally:
        fx_config.do_not_emit_stack_traces = stack_traces
        if is_collecting:
            gc.enable()


def check_can_export(model: nn.Module, path: Path) -> None:
    """Raises a UserError if a suffix is unknown, or not for a detector, or torch is too old, or a package missing."""
    if path.suffix not in WRITERS:
        raise UserError(f'{path} has no suffix of a known format: use {" or ".join(WRITERS)}.')
    if isinstance(model, Detector) and path.suffix != '.onnx':
        raise UserError(f'a detector cannot be exported to {path.suffix}, which has no operators for its boxes: use '
                        'the suffix .onnx.')
    if not find_spec('torch.fx.experimental.dynamic_spec'):
        raise UserError(f'torch {torch.__version__} cannot export for all image sizes: use torch 2.14 or newer.')
    try:
        for package in ONNX_PACKAGES if path.suffix == '.onnx' else ():
            __import__(package)
    except ImportError as error:
        raise UserError(f'ONNX needs packages that cannot be imported ({first_line(error)}): pip install '
                        f'{" ".join(ONNX_PACKAGES)}.') from error


def _reason(error: Exception) -> str:
    """Returns the first line of an error, and the line that cannot be exported: the last line that torch has called."""
    frames = traceback.extract_tb(error.__traceback__)
    is_torch = [TORCH in Path(frame.filename).parents for frame in frames]
    last = max(index for index, its in enumerate(is_torch) if not its)
    frame = frames[last]
    where = f"'{frame.line}' ({Path(frame.filename).name}:{frame.lineno} in {frame.name}): " if any(
        is_torch[:last]) else ''
    return f'{where}{first_line(error)}'
