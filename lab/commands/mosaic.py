"""Compares the AP of 25 nuclei images that are predicted alone, as one mosaic, and as a mosaic in tiles.

A box in the mosaic belongs to the image that contains its centre, and is cut at the border of this image. Objects at
the border of an image have a neighbouring image instead of a border.
"""
import argparse
import io
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.pictures.prediction import Prediction
from openmmlab_tools.predict.predicting import build_inferencer, infer
from openmmlab_tools.texts import markdown_table

COLUMNS = 5
MOST = 1000  # boxes of an image that count


def cut(whole: Prediction, row: int, column: int, side: int) -> Prediction:
    """Returns the part of a mosaic's prediction that belongs to one image."""
    assert whole.boxes is not None
    corner = np.array([column, row] * 2) * side
    boxes = whole.boxes - corner
    x, y = (boxes[:, :2] + boxes[:, 2:]).T / 2
    part = whole.take(np.flatnonzero((x >= 0) & (x < side) & (y >= 0) & (y < side)))
    assert part.boxes is not None and part.masks is not None
    rows, columns = (slice(start * side, start * side + side) for start in (row, column))
    masks = [coco_mask.encode(np.asfortranarray(coco_mask.decode(mask)[rows, columns])) for mask in part.masks]
    return Prediction((side, side), part.classes, (part.boxes - corner).clip(0, side).astype(np.float32), part.labels,
                      part.scores, [dict(mask, counts=mask['counts'].decode()) for mask in masks])


def average_precision(truth: COCO, predictions: dict[int, Prediction], kind: str) -> float:
    """Returns the AP of boxes ('bbox') or masks ('segm'), from predictions by ids of images."""
    results = [dict(entry, image_id=index) for index, prediction in predictions.items()
               for entry in prediction.to_coco()['annotations']]
    with redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, truth.loadRes(results), kind)
        evaluation.params.imgIds, evaluation.params.maxDets = [*predictions], [MOST]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval['precision'][:, :, :, 0, 0]
    return float(precision[precision > -1].mean())


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--data', type=Path, default=Path('data/nuclei'), help='folder with the nuclei data')
    parser.add_argument('--model', type=Path, default=Path('demo/nuclei'), help='folder with config.py and '
                        'model.safetensors')
    parser.add_argument('--side', type=int, default=256, help='side of the images to use, in pixels')
    parser.add_argument('--tiles', type=int, nargs='*', default=[384, 512, 768], help='sides of tiles in pixels')
    parser.add_argument('--overlap', type=int, help='overlap of tiles in pixels; a quarter of a tile if not given')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    with redirect_stdout(io.StringIO()):
        truth = COCO(args.data / 'instances_val.json')
    chosen = [image for image in truth.dataset['images'] if image['height'] == image['width'] == args.side]
    images = {image['id']: read_image(args.data / 'val' / image['file_name']) for image in chosen[:COLUMNS ** 2]}
    pixels = np.stack([*images.values()]).reshape(COLUMNS, COLUMNS, args.side, args.side, 3)
    mosaic = pixels.transpose(0, 2, 1, 3, 4).reshape(COLUMNS * args.side, COLUMNS * args.side, 3)
    inferencer = build_inferencer(load_config(args.model / 'config.py'), args.model / 'model.safetensors', 'cpu')
    rows = []
    for tile in (0, None, *args.tiles):  # 0: alone, None: the whole mosaic
        if tile == 0:
            name, predictions = 'alone', dict(zip(images, infer(inferencer, [*images.values()]), strict=True))
        else:
            name = 'mosaic' if tile is None else f'mosaic, tiles of {tile}'
            whole, = infer(inferencer, mosaic, tile=tile, overlap=tile and args.overlap)
            predictions = {image: cut(whole, *divmod(index, COLUMNS), args.side) for index, image in enumerate(images)}
        count = sum(len(prediction.boxes) for prediction in predictions.values() if prediction.boxes is not None)
        rows.append([name, count, *(f'{average_precision(truth, predictions, kind):.3f}' for kind in ('bbox', 'segm'))])
    print(markdown_table(['images', 'boxes', 'box AP', 'mask AP'], rows), end='')

