"""Compares FastCocoMetric with mmdet's CocoMetric: results, seconds and memory, for annotation files and a made one.

Predictions are made from the annotations: each object twice, shifted a little, with random scores. The made file has as
many images, classes and objects as COCO's val2017.
"""
import argparse
import io
import json
import multiprocessing
import resource
import tempfile
import time
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.logging import MMLogger
from pycocotools import mask as rle

from openmmlab_runs.texts import markdown_table

KINDS = ('CocoMetric', 'FastCocoMetric')
IMAGES, CLASSES, OBJECTS, SIDE = 5000, 80, 36781, 640


def ellipse(x: float, y: float, w: float, h: float) -> list[list[float]]:
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    points = np.stack([x + w * (1 + np.cos(angles)) / 2, y + h * (1 + np.sin(angles)) / 2], axis=1)
    return [points.clip(0, SIDE).round(1).ravel().tolist()]


def write_made(path: Path) -> None:
    generator = np.random.default_rng(0)
    boxes = generator.uniform([0, 0, 8, 8], [400, 400, 200, 200], (OBJECTS, 4)).round(1).tolist()
    path.write_text(json.dumps(dict(
        images=[dict(id=index, file_name=f'{index}.jpg', width=SIDE, height=SIDE) for index in range(IMAGES)],
        categories=[dict(id=index, name=f'class{index}') for index in range(CLASSES)],
        annotations=[dict(id=index + 1, image_id=int(generator.integers(IMAGES)), iscrowd=0, bbox=box,
                          category_id=int(generator.integers(CLASSES)), area=box[2] * box[3],
                          segmentation=ellipse(*box)) for index, box in enumerate(boxes)])))


def predict(coco: dict[str, Any]) -> list[tuple[dict, dict]]:
    generator = np.random.default_rng(1)
    numbers = {one['id']: index for index, one in enumerate(coco['categories'])}
    by_image = defaultdict(list)
    for one in coco['annotations']:
        by_image[one['image_id']] += [one, one]
    results = []
    for image in coco['images']:
        own, width, height = by_image[image['id']], image['width'], image['height']
        moved = np.array([one['bbox'] for one in own]).reshape(-1, 4) + generator.normal(0, 3, (len(own), 4))
        boxes = np.concatenate([moved[:, :2], moved[:, :2] + moved[:, 2:].clip(1)], axis=1).clip(
            0, [width, height, width, height])
        masks = [rle.frPyObjects(ellipse(a, b, c - a, d - b), height, width)[0] for a, b, c, d in boxes]
        results.append((dict(width=width, height=height, img_id=image['id']), dict(
            img_id=image['id'], bboxes=boxes.astype(np.float32), scores=generator.random(len(own)).astype(np.float32),
            labels=np.array([numbers[one['category_id']] for one in own], int), masks=masks)))
    return results


def measure(kind: str, file: Path) -> tuple[dict[str, float], float, float]:
    """Returns the metrics, seconds, and MiB that the process grows by."""
    from mmdet.evaluation import CocoMetric

    from openmmlab_runs.evaluation.metrics import FastCocoMetric

    MMLogger.get_current_instance().setLevel('ERROR')
    coco = json.loads(file.read_text())
    results, names = predict(coco), [one['name'] for one in coco['categories']]
    with redirect_stdout(io.StringIO()):
        metric = dict(CocoMetric=CocoMetric, FastCocoMetric=FastCocoMetric)[kind](
            ann_file=str(file), metric=['bbox', 'segm'], classwise=True)
        metric.dataset_meta = dict(classes=names)
        del coco
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        found = metric.compute_metrics(results)
    seconds = time.perf_counter() - start
    return found, seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def compare(file: Path) -> list[object]:
    """Returns a row of the table."""
    runs = []
    for kind in KINDS:
        with multiprocessing.get_context('spawn').Pool(1) as pool:  # a process each, for its peak of memory
            runs.append(pool.apply(measure, (kind, file)))
    coco = json.loads(file.read_text())
    equal = [*runs[0][0]] == [*runs[1][0]] and np.array_equal([*runs[0][0].values()], [*runs[1][0].values()],
                                                             equal_nan=True)
    return [file.name, len(coco['images']), len(coco['annotations']),
            *(f'{seconds:.1f} s, {memory:.0f} MiB' for _, seconds, memory in runs),
            f'{"yes" if equal else "no"}, {len(runs[0][0])} values']


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='*', type=Path, help='annotation files')
    files = parser.parse_args().files
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, 'made.json')
        write_made(made)
        print(markdown_table(('annotations', 'images', 'objects', *KINDS, 'equal'), map(compare, (*files, made))))


if __name__ == '__main__':
    main()
