"""Measures the time and the peak memory of `cpvt_mm predict --tile` on a large image that is read in tiles.

Writes an RGB TIFF with uncompressed tiles, which repeats the example of demo/nuclei, and predicts it with a segmentor
of nano with random weights. The command runs in a process of its own; its peak is what Linux counts as resident.
"""
import argparse
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

from lab.arguments import positive
from openmmlab_tools.errors import UserError, exit_on_error, say

if TYPE_CHECKING:
    import numpy as np

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / 'configs/camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py'
PART = 256  # side of the tiles of the file


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--side', type=positive, default=30_000, help='of the image, in pixels (default: %(default)s)')
    parser.add_argument('options', nargs='*', help='further options of cpvt_mm predict, after --, such as -- '
                        '--tile-scale 0.25')
    return parser.parse_args()


def write_tiff(path: Path, side: int) -> None:
    import numpy as np
    import tifffile
    from PIL import Image
    example = np.asarray(Image.open(ROOT / 'demo/nuclei/example.png').convert('RGB'))
    part = np.tile(example, (-(-PART // example.shape[0]), -(-PART // example.shape[1]), 1))[:PART, :PART]

    def parts() -> 'Iterator[np.ndarray]':
        for _ in range((-(-side // PART))**2):
            yield part

    tifffile.imwrite(path, parts(), shape=(side, side, 3), dtype=np.uint8, tile=(PART, PART), photometric='rgb')


def write_checkpoint(path: Path) -> None:
    import torch

    from openmmlab_tools.checkpoints.loading import build_model
    from openmmlab_tools.engine import load_config
    torch.manual_seed(0)
    torch.save(dict(state_dict=build_model(load_config(CONFIG)).state_dict()), path)


@exit_on_error
def main() -> None:
    args = parse_args()
    with TemporaryDirectory() as folder:
        image, checkpoint = Path(folder, 'large.tif'), Path(folder, 'random.pth')
        write_tiff(image, args.side)
        write_checkpoint(checkpoint)
        start = perf_counter()
        done = subprocess.run([sys.executable, '-m', 'cpvt_mm', 'predict', image, CONFIG, checkpoint, '--tile', '1024',
                               '--out-dir', f'{folder}/out', *args.options], cwd=ROOT)
        seconds = perf_counter() - start
    if done.returncode:
        raise UserError('the prediction failed.')
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(f'{args.side} x {args.side} pixels: peak {used.ru_maxrss * 1024 / 1e9:.2f} GB, {seconds:.0f} s on the clock, '
        f'{used.ru_utime + used.ru_stime:.0f} s of the processor')
