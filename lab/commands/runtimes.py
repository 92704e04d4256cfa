"""Measures the time and the memory of torch, onnxruntime and OpenVINO, for backbones, RetinaNet and UPerNet.

Models have random weights, in float32. In turns, each runtime gets the same image of noise. The table contains medians
of processor time, which other work on the machine changes less than time on the clock. The memory is how far the peak
of the process rises over fifty new image sizes, after the largest size and nine others.
"""
import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import TYPE_CHECKING

from lab.arguments import positive
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.texts import markdown_table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from openmmlab_tools.exported.runtimes import Run

ROOT = Path(__file__).parents[2]
NANO, SMALL = 'pyramid-cpvt-nano', 'pyramid-cpvt-s'
# The config and the part of each model.
MODELS = {
    'nano, backbone': (f'boxes/retinanet_{NANO}_fpn_boxes', 'backbone'),
    'nano, RetinaNet': (f'boxes/retinanet_{NANO}_fpn_boxes', 'detector'),
    'nano, UPerNet': (f'camvid/upernet_{NANO}_camvid-192x256', 'segmentor'),
    'small, backbone': (f'boxes/retinanet_{SMALL}_fpn_boxes', 'backbone'),
    'small, RetinaNet': (f'boxes/retinanet_{SMALL}_fpn_boxes', 'detector'),
    'small, UPerNet': (f'camvid/upernet_{SMALL}_camvid-360x480', 'segmentor')}
RUNTIMES = ('torch', 'onnxruntime', 'openvino')
FEW, NEW = 10, 50  # sizes before memory is measured, and after
LARGEST, STEP = 359, 5  # pixels of a side, and how much smaller the next one is


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('csv', type=Path, help='file to write')
    parser.add_argument('--models', nargs='+', choices=MODELS, default=[*MODELS], help='(default: all)')
    parser.add_argument('--sides', type=positive, nargs='+', default=[256, 512], help='of images, in pixels')
    parser.add_argument('--rounds', type=positive, default=5, help='turns after one that is not timed')
    return parser.parse_args()


def load_model(name: str) -> 'nn.Module':
    """Builds a model with random weights; a detector then finds no box."""
    from cpvt_mm.export.detector import to_detector
    from cpvt_mm.export.parts import load_part
    from openmmlab_tools.checkpoints.loading import build_model
    from openmmlab_tools.engine import load_config
    config, part = MODELS[name]
    cfg = load_config(ROOT / f'configs/{config}.py')
    cfg.model.backbone.init_cfg = None
    return to_detector(build_model(cfg)).eval() if part == 'detector' else load_part(cfg, part).eval()


def load_runtimes(model: 'nn.Module') -> dict[str, 'Run']:
    """Exports a model; returns what runs it, by the runtime."""
    import torch

    from cpvt_mm.export.detector import Detector
    from cpvt_mm.export.program import export_program
    from cpvt_mm.export.to_onnx import write_onnx
    from openmmlab_tools.exported.runtimes import flatten, load_everywhere
    with TemporaryDirectory() as folder:
        file = Path(folder, 'model.onnx')
        write_onnx(file, export_program(model), {}, model.translations() if isinstance(model, Detector) else {})
        return {'torch': torch.no_grad()(lambda image: flatten(model(image))),
                **load_everywhere(file, file.suffix)}


def measure(runs: dict[str, 'Run'], image: 'Tensor', rounds: int) -> dict[str, float]:
    """Returns the median processor seconds of each runtime, which run in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + rounds):
        for name, run in runs.items():
            start = process_time()
            run(image)
            seconds[name].append(process_time() - start)
    return {name: median(times[1:]) for name, times in seconds.items()}


def growth(run: 'Run') -> float:
    """Returns by how many megabytes the peak of the process rises over fifty new sizes, none larger than the first."""
    import torch
    Path('/proc/self/clear_refs').write_text('5')  # the peak is counted from here on
    peaks = []
    for index in range(FEW + NEW):
        run(torch.randn(1, 3, *(LARGEST - STEP * (index * factor % (FEW + NEW)) for factor in (17, 29))))
        status = Path('/proc/self/status').read_text()
        peaks.append(int(status.partition('VmHWM:')[2].split()[0]) / 1e3)
    return peaks[-1] - peaks[FEW - 1]


def rows_of(name: str, sides: list[int], rounds: int) -> list[dict[str, str]]:
    """Measures a model; returns a row for each size of images, and one for the memory."""
    import torch
    runs = load_runtimes(load_model(name))
    rows = []
    for side in sides:
        seconds = measure(runs, torch.randn(1, 3, side, side), rounds)
        rows.append({'model': name, 'measured': f'{side} x {side}, s',
                     **{runtime: f'{seconds[runtime]:.3f}' for runtime in RUNTIMES if runtime in seconds}})
    return [*rows, {'model': name, 'measured': f'{NEW} new sizes, MB',
                    **{runtime: f'{growth(runs[runtime]):.0f}' for runtime in RUNTIMES if runtime in runs}}]


@exit_on_error
def main() -> None:
    args = parse_args()
    import torch

    from lab.results import to_csv
    from openmmlab_tools.files import write_text
    torch.manual_seed(0)
    rows: list[dict[str, str]] = []
    for name in args.models:
        rows += rows_of(name, args.sides, args.rounds)
        write_text(args.csv, to_csv(rows))  # also if a later model fails
        print(f'{name} is measured', file=sys.stderr, flush=True)
    print(f'{torch.get_num_threads()} threads; {", ".join(f"{name} {version(name)}" for name in RUNTIMES)}\n')
    header = ('model', 'measured', *RUNTIMES)
    print(markdown_table(header, ([row.get(head, '') for head in header] for row in rows)), end='')
