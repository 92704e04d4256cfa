"""Measures how far the predictions of detectors and segmentors move with the image, for shifts from 1 to 31 pixels.

Each picture lies on a canvas of the mean colour and moves by the same number of pixels to the right and down, so no
content enters or leaves. Of a detector, it counts the detections before the shift of which one afterwards has the same
class and the moved box, to one pixel. Of a segmentor, it compares the moved label map with the new one, by their mIoU.
Writes a table as .csv and .md, and a figure.
"""
import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.registry import TRANSFORMS
from numpy.typing import NDArray
from rich.progress import track

from lab.arguments import positive
from lab.results import MARKERS, write_report
from openmmlab_tools.checkpoints.fitting import load_weights
from openmmlab_tools.checkpoints.loading import build_model, normalization
from openmmlab_tools.cli import add_cfg_options
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.files import list_images
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.pictures.prediction import Prediction, of_sample
from openmmlab_tools.registry import in_scope
from openmmlab_tools.texts import label, markdown_table

SHIFTS = range(1, 32)
SPACE = 32  # pixels on the right and below the picture
NEAR = 1.  # pixels by which a box may be wrong
PACK = dict(mmdet='PackDetInputs', mmseg='PackSegInputs')
Predict = Callable[[NDArray[np.uint8]], Prediction]


@dataclass(frozen=True)
class Agreement:
    """How far predictions agree before and after a shift.

    Attributes:
        kept: The share of detections of which one has the same class and box; the mIoU of two label maps.
        score_change: The mean absolute change of the scores of these detections; None for label maps.
    """
    kept: float
    score_change: float | None


def canvas(picture: NDArray[np.uint8], shift: int, fill: Sequence[float]) -> NDArray[np.uint8]:
    """Puts a picture `(H, W, 3)` on a canvas of `SPACE` more rows and columns, `shift` pixels from the upper left."""
    height, width = picture.shape[:2]
    pixels = np.broadcast_to(np.round(fill).astype(np.uint8), (height + SPACE, width + SPACE, 3)).copy()
    pixels[shift:shift + height, shift:shift + width] = picture
    return pixels


def compare_boxes(pairs: Sequence[tuple[Prediction, Prediction]], shift: int) -> Agreement:
    """Compares detections before and after a shift; each afterwards is the partner of at most one before."""
    changes, count = [], 0
    for before, after in pairs:
        assert before.boxes is not None and before.labels is not None and before.scores is not None
        assert after.boxes is not None and after.labels is not None and after.scores is not None
        count += len(before.boxes)
        free = np.ones(len(after.boxes), bool)
        for box, kind, score in zip(before.boxes + shift, before.labels, before.scores, strict=True):
            errors = np.abs(after.boxes - box).max(axis=1, initial=0)
            errors[(after.labels != kind) | ~free] = np.inf
            if len(errors) and errors.min() <= NEAR:
                partner = errors.argmin()
                free[partner] = False
                changes.append(abs(after.scores[partner] - score))
    if not count:
        raise UserError('the detector finds nothing in these images: choose others, or a lower --score-thr.')
    return Agreement(len(changes) / count, float(np.mean(changes)) if changes else None)


def compare_maps(pairs: Sequence[tuple[NDArray, NDArray]], classes: int) -> Agreement:
    """Compares label maps of the same pixels; a class that no map contains does not count."""
    pixels = np.concatenate([classes * before.ravel().astype(int) + after.ravel() for before, after in pairs])
    counts = np.bincount(pixels, minlength=classes**2).reshape(classes, classes)
    unions = counts.sum(axis=0) + counts.sum(axis=1) - counts.diagonal()
    return Agreement(float((counts.diagonal()[unions > 0] / unions[unions > 0]).mean()), None)


def measure(predict: Predict, pictures: Sequence[NDArray[np.uint8]], fill: Sequence[float],
            shifts: Sequence[int] = SHIFTS) -> dict[int, Agreement]:
    """Returns the agreement of the predictions for each shift with those without a shift."""
    before = [predict(canvas(picture, 0, fill)) for picture in pictures]
    results = {}
    for shift in shifts:
        after = [predict(canvas(picture, shift, fill)) for picture in pictures]
        if before[0].label_map is None:
            results[shift] = compare_boxes([*zip(before, after, strict=True)], shift)
            continue
        maps = [(_part(old, picture, 0), _part(new, picture, shift))
                for old, new, picture in zip(before, after, pictures, strict=True)]
        results[shift] = compare_maps(maps, len(before[0].classes))
    return results


def _part(prediction: Prediction, picture: NDArray, shift: int) -> NDArray:
    assert prediction.label_map is not None
    return prediction.label_map[shift:shift + picture.shape[0], shift:shift + picture.shape[1]]


def load_predict(config: str, checkpoint: str, score_thr: float, options: Mapping[str, Any] | None = None
                 ) -> tuple[Predict, list[float]]:
    """Returns a function that predicts RGB pixels as they are, without the config's Resize, and the mean colour."""
    cfg = load_config(config, dict(options or {}))
    scope = cfg.get('default_scope')
    if scope not in PACK:
        raise UserError(f'config {config} is for {scope}, but must be for {" or ".join(PACK)}.')
    model: Any = build_model(cfg).eval()
    load_weights(model, checkpoint)
    with in_scope(scope):
        pack = TRANSFORMS.build(dict(type=PACK[scope]))
    mean, _, channels = normalization(cfg)

    @torch.no_grad()
    def predict(pixels: NDArray[np.uint8]) -> Prediction:
        size = pixels.shape[:2]
        packed = pack(dict(img=np.ascontiguousarray(pixels[..., ::-1]), img_shape=size, ori_shape=size,
                           scale_factor=(1., 1.), img_id=0))
        with in_scope(scope):
            sample, = model.test_step(dict(inputs=[packed['inputs']], data_samples=[packed['data_samples']]))
        classes = cfg.test_dataloader.dataset.metainfo.classes
        prediction = of_sample(sample, size, dict(classes=classes))
        assert prediction is not None
        return prediction if prediction.boxes is None else prediction.above(score_thr)

    return predict, mean if channels != 'BGR' else mean[::-1]


def figure_of(results: dict[str, dict[int, Agreement]], title: str) -> Figure:
    figure = Figure(figsize=(9, 4.5), layout='constrained')
    axes = figure.subplots()
    have_scores = {any(agreement.score_change is not None for agreement in agreements.values())
                   for agreements in results.values()}
    measures = {True: 'share of detections that stay', False: 'mIoU with the moved label map'}
    for marker, (name, agreements) in zip(MARKERS, results.items(), strict=False):
        axes.plot([*agreements], [agreement.kept for agreement in agreements.values()], marker=marker,
                  markersize=4, label=label(name))
    axes.set(title=title, xlabel='shift to the right and down, pixels', ylim=(0, 1.03), xticks=range(0, SPACE + 1, 8),
             ylabel=' or '.join(name for has_scores, name in measures.items() if has_scores in have_scores))
    axes.grid(alpha=0.3)
    axes.legend(fontsize='small', loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('images', type=Path, help='folder of images')
    parser.add_argument('--model', nargs=3, action='append', required=True, metavar=('NAME', 'CONFIG', 'CHECKPOINT'),
                        help='a name, the config and the weights of a detector or segmentor; may be repeated')
    parser.add_argument('--count', type=positive, default=10, help='number of images, spread evenly over the folder '
                        '(default: %(default)s)')
    parser.add_argument('--size', type=positive, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help='size in pixels to resize pictures to (default: no resizing)')
    parser.add_argument('--score-thr', type=float, default=0.3, help='detections with a lower score do not count '
                        '(default: %(default)s)')
    add_cfg_options(parser)
    parser.add_argument('--out', type=Path, default=Path('work_dirs/image_shifts.png'),
                        help='file of the figure (default: %(default)s)')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    paths = list_images(args.images)
    count = min(args.count, len(paths))
    pictures = [read_image(paths[i * len(paths) // count], args.size) for i in range(count)]
    results = {}
    for name, config, checkpoint in track(args.model, 'Shifting'):
        predict, mean = load_predict(config, checkpoint, args.score_thr, args.cfg_options)
        results[name] = measure(predict, pictures, mean)
    title = f'Predictions for {count} images that move by the same number of pixels to the right and down'
    rows = [dict(model=name, shift=shift, **asdict(agreement))
            for name, agreements in results.items() for shift, agreement in agreements.items()]
    table = f'{title}. Mean and worst of all shifts; mean of shifts by 8, 16 and 24 pixels:\n\n' + markdown_table(
        ['model', 'mean', 'worst', '8, 16, 24', 'change of scores'], map(_line, results, results.values()))
    print(write_report(args.out, rows, table, figure_of(results, title)))


def _line(name: str, agreements: dict[int, Agreement]) -> list[str]:
    shares = [agreement.kept for agreement in agreements.values()]
    whole = [agreements[shift].kept for shift in (8, 16, 24)]
    changes = [agreement.score_change for agreement in agreements.values() if agreement.score_change is not None]
    return [name, f'{np.mean(shares):.3f}', f'{min(shares):.3f}', f'{np.mean(whole):.3f}',
            f'{np.mean(changes):.3f}' if changes else '']
