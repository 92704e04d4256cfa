"""Measures the seconds of torch, onnxruntime and OpenVINO in turns, for backbones, RetinaNet and UPerNet.

Models have random weights, in float32. Each runtime gets the same image of noise in turns; the table has medians. Other
work on the machine makes all seconds larger, but the turns share it: compare the ratios. Also prints by how much the
memory of the process grows in each runtime over fifty new sizes, after ten others.
"""
import argparse
import csv
import io
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
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
HEADER = ('model', 'image', 'torch, s', 'onnxruntime, s', 'openvino, s')
FEW, NEW = 10, 50  # sizes before memory is measured, and after


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
    """Returns the median seconds of each runtime, which run in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + rounds):
        for name, run in runs.items():
            start = perf_counter()
            run(image)
            seconds[name].append(perf_counter() - start)
    return {name: median(times[1:]) for name, times in seconds.items()}


def growth(run: 'Run') -> float:
    """Returns by how many megabytes the memory of the process grows over fifty new sizes."""
    import os

    import torch
    resident = []
    for index in range(FEW + NEW):
        run(torch.randn(1, 3, 64 + 5 * (index * 17 % (FEW + NEW)), 64 + 5 * (index * 29 % (FEW + NEW))))
        pages = int(Path('/proc/self/statm').read_text().split()[1])
        resident.append(pages * os.sysconf('SC_PAGE_SIZE') / 1e6)
    return resident[-1] - resident[FEW - 1]


@exit_on_error
def main() -> None:
    args = parse_args()
    import torch

    from openmmlab_tools.files import write_text
    torch.manual_seed(0)
    rows = []
    for name in args.models:
        runs = load_runtimes(load_model(name))
        for side in args.sides:
            seconds = measure(runs, torch.randn(1, 3, side, side), args.rounds)
            rows.append([name, f'{side} x {side}', *(f'{seconds[head.removesuffix(", s")]:.4f}' if head.removesuffix(
                ', s') in seconds else '' for head in HEADER[2:])])
            print(*rows[-1], file=sys.stderr, flush=True)
        if name == args.models[0]:
            grown = ', '.join(f'{runtime} {growth(run):.0f} MB' for runtime, run in runs.items())
            print(f'{name}, {NEW} new sizes: memory grows in {grown}', file=sys.stderr, flush=True)
    table = io.StringIO()
    csv.writer(table, lineterminator='\n').writerows([HEADER, *rows])
    write_text(args.csv, table.getvalue())
    print(markdown_table(HEADER, rows), end='')
