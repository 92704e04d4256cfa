"""Reads one epoch of nuclei from a folder, a zip file, a tar file, eight shards, and a server of S3 on this machine.

It needs s3fs and moto's server (the extra `s3` and the dependency group `tests`). Each source is read by the training
pipeline, in two workers.
The sources take turns, and each is compared with the folder in the same turn, because other work slows all.
"""
import argparse
import os
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from operator import truediv
from pathlib import Path

from mmengine import fileio
from mmengine.registry import DATASETS, init_default_scope
from torch.utils.data import DataLoader

from lab.datasets.shards import write_shards
from openmmlab_runs.engine import load_config
from openmmlab_runs.texts import markdown_table

ROOT = Path(__file__).parents[2]

ROUNDS = 3
CONFIG = ROOT / 'configs/nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'


@contextmanager
def s3_server() -> Iterator[None]:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, '-m', 'moto.server', '-H', '127.0.0.1', '-p', str(port)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ.update(AWS_ACCESS_KEY_ID='me', AWS_SECRET_ACCESS_KEY='secret',
                      FSSPEC_S3_ENDPOINT_URL=f'http://127.0.0.1:{port}')
    try:
        yield
    finally:
        process.kill()
        process.wait()


def copies(folder: Path, scratch: Path) -> dict[str, str]:
    """Copies a folder to each of the others; returns the roots of the data."""
    files = [path for path in folder.rglob('*') if path.is_file()]
    with zipfile.ZipFile(scratch / 'data.zip', 'w') as archive, tarfile.open(scratch / 'data.tar', 'w') as tar:
        for path in files:
            archive.write(path, path.relative_to(folder))
            tar.add(path, path.relative_to(folder))
    import s3fs

    s3fs.S3FileSystem().mkdir('data')
    for path in files:
        fileio.put(path.read_bytes(), f's3://data/{path.relative_to(folder)}')
    return {'folder': str(folder), 'zip': f'zip://::{scratch}/data.zip', 'tar': f'tar://::{scratch}/data.tar',
            '8 shards': f'tar://::{write_shards(folder, scratch / "data", 8)}', 'S3': 's3://data'}


def read(root: str) -> tuple[int, float]:
    """Returns the number of images and the seconds of the second epoch."""
    cfg = load_config(CONFIG, {'train_dataloader.dataset.data_root': f'{root}/'}, 'unused')
    init_default_scope('mmdet')
    loader = DataLoader(DATASETS.build(cfg.train_dataloader.dataset), batch_size=4, num_workers=2,
                        persistent_workers=True, collate_fn=len)
    sum(loader)
    start = time.perf_counter()
    return sum(loader), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='data/nuclei')
    folder = parser.parse_args().folder.resolve()
    with s3_server(), tempfile.TemporaryDirectory() as scratch:
        rates: dict[str, list[float]] = {}
        roots = copies(folder, Path(scratch))
        for _ in range(ROUNDS):
            for name, root in roots.items():
                images, seconds = read(root)
                rates.setdefault(name, []).append(images / seconds)
    print(markdown_table(('source', 'images/s', 'of the folder'), (
        (name, f'{statistics.median(found):.0f}', f'{statistics.median(map(truediv, found, rates["folder"])):.0%}')
        for name, found in rates.items())))


if __name__ == '__main__':
    main()
