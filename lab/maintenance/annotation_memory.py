"""Measures the memory of ranks and their workers that train on COCO annotations of the size of train2017.

It writes annotations for 118,000 names of toy images, starts ranks on this machine, and reads the proportional set size
(PSS) of each process, in which pages that several share count once in all.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.maintenance.faults import descendants

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / 'configs/toy/mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes.py'
IMAGES, OBJECTS, POINTS = 118_000, 860_000, 22


def write_annotations(source: Path, target: Path) -> None:
    """Writes a file as large as instances_train2017.json, on the images of `source`."""
    coco: dict[str, Any] = json.loads(source.read_text())
    generator = np.random.default_rng(0)
    images = [dict(coco['images'][index % len(coco['images'])], id=index) for index in range(IMAGES)]
    annotations = []
    for index in range(OBJECTS):
        image = images[int(generator.integers(IMAGES))]
        x, y, w, h = (generator.random(4) * [.5, .5, .3, .3] + [0, 0, .1, .1]) * np.tile(
            [image['width'], image['height']], 2)
        angles = np.linspace(0, 2 * np.pi, POINTS, endpoint=False)
        polygon = np.stack([x + w * (1 + np.cos(angles)) / 2, y + h * (1 + np.sin(angles)) / 2], 1).round(2)
        annotations.append(dict(
            id=index + 1, image_id=image['id'], category_id=coco['categories'][index % len(coco['categories'])]['id'],
            bbox=[round(float(value), 2) for value in (x, y, w, h)], area=round(float(w * h), 2), iscrowd=0,
            segmentation=[polygon.ravel().tolist()]))
    target.write_text(json.dumps(dict(images=images, categories=coco['categories'], annotations=annotations)))


def proportional(process: int) -> float:
    """Returns the PSS of a process in MiB."""
    lines = Path(f'/proc/{process}/smaps_rollup').read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith('Pss:'))) / 1024


def measure(data: Path, folder: Path, ranks: int, workers: int) -> tuple[float, int]:
    """Returns the MiB of all processes of a training in its third iteration, and the number of processes."""
    annotations = f'{data}/instances_validation.json'
    options = {
        'train_dataloader.dataset.data_root': f'{data}/', 'val_dataloader.dataset.data_root': f'{data}/',
        'train_dataloader.dataset.ann_file': folder / 'large.json', 'val_evaluator.ann_file': annotations,
        'train_dataloader.num_workers': workers, 'train_dataloader.batch_size': 1, 'train_cfg.max_iters': 100000,
        'train_dataloader.persistent_workers': workers > 0, 'train_cfg.val_interval': 100000,
        'default_hooks.logger.interval': 1, 'env_cfg.dist_cfg.timeout': 1200}
    work_dir = folder / f'{ranks}-{workers}'
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={ranks}',
               str(ROOT / 'tools/train.py'), str(CONFIG), '--launcher', 'pytorch', '--work-dir', str(work_dir),
               '--cfg-options', *(f'{key}={value}' for key, value in options.items())]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, 'OMP_NUM_THREADS': '1'})
    try:
        while not any('loss' in log.read_text() for log in work_dir.glob('*/vis_data/scalars.json')):
            if process.poll() is not None:
                raise SystemExit('training ended')
            time.sleep(1)
        time.sleep(20)  # all workers have begun
        own = [*descendants(process.pid)][1:]
        return sum(map(proportional, own)), len(own)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path, help='toy data, written by tools/dataset_converters/make_toy_shapes.py')
    data = parser.parse_args().data.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_annotations(data / 'instances_training.json', folder / 'large.json')
        print(f'{(folder / "large.json").stat().st_size / 2**20:.0f} MiB of annotations', flush=True)
        for ranks, workers in ((1, 0), (2, 4)):
            memory, processes = measure(data, folder, ranks, workers)
            print(f'{ranks} ranks with {workers} workers each: {memory:.0f} MiB in {processes} processes', flush=True)


if __name__ == '__main__':
    main()
