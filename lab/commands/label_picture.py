"""Draws the labels of an image beside the predictions of a detector with masks, as outlines on the brightened image."""
import argparse
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.evaluation.reporting import brightened
from openmmlab_tools.files import write_figure
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.predict.predicting import predict

COLOURS = {'labels': 'tab:orange', 'predictions': 'deepskyblue'}


def labels_of(annotations: Path, image: str) -> list[dict[str, Any]]:
    """Returns the RLE mask of each label of an image, by its name in a COCO file; raises a UserError if it has none."""
    with redirect_stdout(StringIO()):  # COCO prints that it reads a file
        coco = COCO(annotations)
    ids = [entry['id'] for entry in coco.dataset['images'] if Path(entry['file_name']).name == image]
    masks = [coco.annToRLE(label) for label in coco.imgToAnns[ids[0]]] if ids else []
    if not masks:
        raise UserError(f'{annotations} has no labels for {image}: choose another image.')
    return masks


def side_by_side(image: np.ndarray, masks: Mapping[str, Iterable[dict[str, Any]]]) -> Figure:
    """Draws a panel for each key of `masks`, with the outlines of its RLE masks on an image `(H, W, 3)`."""
    figure = Figure(figsize=(4 * len(masks), 4 * image.shape[0] / image.shape[1] + 0.3), layout='constrained')
    for axes, (title, outlined) in zip(figure.subplots(1, len(masks), squeeze=False)[0], masks.items(), strict=True):
        axes.imshow(brightened(image))
        for mask in outlined:
            axes.contour(coco_mask.decode(mask), [0.5], colors=COLOURS[title], linewidths=1.5)
        axes.set(title=title, xticks=[], yticks=[])
    return figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('image', type=Path, help='image file')
    parser.add_argument('annotations', type=Path, help='COCO file with the labels of the image')
    parser.add_argument('config', help='config of the detector')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('out', type=Path, help='.png file to write')
    parser.add_argument('--score-thr', type=float, default=0.5, help='draw predictions with a score above this value')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    labels = labels_of(args.annotations, args.image.name)
    prediction, = predict(args.image, args.config, args.checkpoint, score_thr=args.score_thr)
    masks = dict(labels=labels, predictions=prediction.masks or [])
    write_figure(args.out, side_by_side(read_image(args.image), masks))
    print(args.out)
