"""Runs exported files on the CPU: .onnx with onnxruntime or OpenVINO, .pt2 with torch.

A runtime is imported when a file is loaded. All of them use as many threads as torch has then.
"""
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from openmmlab_tools.errors import UserError, as_sentence, show
from openmmlab_tools.files import what_is

# A function that runs an exported model on images `(B, C, H, W)` and returns a flat list of its outputs.
Run = Callable[[Tensor], list[Tensor]]


class Loaded(NamedTuple):
    """An exported file that can be run, the names of its outputs, and its description, which the export has written."""
    run: Run
    outputs: list[str]
    description: dict[str, str]


def flatten(outputs: Any) -> list[Tensor]:
    """Lists the tensors in the outputs of a model, which may be dicts and sequences, in their order."""
    if isinstance(outputs, Tensor):
        return [outputs]
    return [x for part in (outputs.values() if isinstance(outputs, dict) else outputs) for x in flatten(part)]


def load_pt2(path: Path) -> Loaded:
    extra = {'description.json': ''}
    with path.open('rb') as file:  # torch requires a path to end in .pt2, but accepts any open file
        if not is_program(file):
            raise ValueError('it is not a whole file of torch.export')
        program = torch.export.load(file, extra_files=extra)
    module = program.module()

    def run(image: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return flatten(module(image))

    names = [f'output{i}' for i in range(len(program.graph_signature.user_outputs))]
    description = json.loads(extra['description.json'] or '{}')
    if not isinstance(description, dict):
        raise ValueError('its description is no dict')
    return Loaded(run, names, {name: str(value) for name, value in description.items()})


def is_program(file: IO[bytes]) -> bool:
    """Returns whether an open file can be a file of torch.export, because torch.export logs pages about other files."""
    try:
        with ZipFile(file) as archive:
            return any(name.endswith('/archive_format') for name in archive.namelist())
    except BadZipFile:
        return False
    finally:
        file.seek(0)


def load_onnxruntime(path: Path) -> Loaded:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its exceptions contain the same messages
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])

    def run(image: Tensor) -> list[Tensor]:
        return [torch.from_numpy(output) for output in session.run(None, {'image': image.numpy()})]

    return Loaded(run, [output.name for output in session.get_outputs()], session.get_modelmeta().custom_metadata_map)


def load_openvino(path: Path) -> Loaded:
    import openvino
    core = openvino.Core()
    model = core.read_model(path)
    # Without the hint, OpenVINO rounds to bfloat16 where the processor has it. With its cache for sizes, results are
    # wrong after an image of one pixel (version 2026.4.1), and memory grows with each new size (openvino#23316).
    compiled = core.compile_model(model, 'CPU', dict(
        INFERENCE_PRECISION_HINT='f32', CPU_RUNTIME_CACHE_CAPACITY=0, INFERENCE_NUM_THREADS=torch.get_num_threads()))

    def run(image: Tensor) -> list[Tensor]:
        return [torch.from_numpy(output) for output in compiled({'image': image.numpy()}).values()]

    told = dict(model.get_rt_info().items())
    return Loaded(run, [output.get_any_name() for output in model.outputs],
                  {name: value.astype(str) for name, value in told.get('framework', {}).items()})  # metadata of ONNX


# The runtimes for each suffix, by the names of their packages; the first one that is installed is used.
RUNTIMES: dict[str, dict[str, Callable[[Path], Loaded]]] = {
    '.onnx': dict(onnxruntime=load_onnxruntime, openvino=load_openvino), '.pt2': dict(torch=load_pt2)}


def is_exported(path: object) -> bool:
    """Returns whether a path has the suffix of an exported file."""
    return Path(str(path)).suffix in RUNTIMES


def installed(suffix: str) -> Mapping[str, Callable[[Path], Loaded]]:
    """Returns the installed runtimes for files with a suffix; raises a UserError if there is none."""
    known = RUNTIMES[suffix]
    here = {name: load for name, load in known.items() if find_spec(name)}
    if not here:
        raise UserError(f'{suffix} files need {" or ".join(known)}, but none is installed: pip install '
                        f'{next(iter(known))}.')
    return here


def load_everywhere(path: Path, suffix: str) -> dict[str, Run]:
    """Loads an exported file with each runtime that is installed for a suffix; returns its functions by their names.

    A runtime that lacks an operator of the file is left out with a note. If all do, this is a UserError.
    """
    runs: dict[str, Run] = {}
    faults: list[str] = []
    for name, loading in installed(suffix).items():
        try:
            runs[name] = loading(path).run
        except Exception as error:  # runtimes raise errors of many types, with the operators at the end
            faults.append(f'{name} cannot run the exported file ({str(error).strip().splitlines()[-1].strip(" -.")})')
    if not runs:
        raise UserError(f'{"; ".join(faults)}: nothing is written.')
    for fault in faults:
        show(f'note: {fault}, so it is not compared there: use {" or ".join(runs)}.')
    return runs


def load(path: Path) -> Loaded:
    """Loads an exported file with the first runtime that is installed; raises a UserError if it cannot be read."""
    if missing := what_is(path):
        raise UserError(f'{path} {missing}: pass an exported file.')
    name, loading = next(iter(installed(path.suffix).items()))
    with as_sentence(f'{path} cannot be read by {name}', 'export the model again'):
        return loading(path)
