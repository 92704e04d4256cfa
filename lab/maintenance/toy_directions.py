"""Tests the models of a study on the toy videos: counts correct directions, and draws one video.

For each run, it prints the share of balls and kites that are found, and the share of found ones with the right
direction.
"""
import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from matplotlib.figure import Figure
from mmengine.hooks import Hook
from pycocotools import mask as coco_mask

from lab.datasets.toy_video import CLASSES, HEIGHT, WIDTH
from lab.study import Run, read_study
from openmmlab_runs.engine import test
from openmmlab_runs.errors import exit_on_error
from openmmlab_runs.files import write_figure

NAMES = list(CLASSES)
LOOKS = [name.split()[0] for name in NAMES]  # 'ball', 'kite' or 'square'
Instance = tuple[float, int, np.ndarray]  # score, label and masks (T, H, W)
Frames = Sequence[Any]  # mmdet's samples of the frames of one video, with predictions


class Collect(Hook):
    """Keeps the predictions of a test."""

    def __init__(self) -> None:
        self.videos: list[Frames] = []

    def after_test_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.videos += [sample.video_data_samples for sample in outputs]


def truth(frames: Frames) -> dict[int, tuple[int, np.ndarray]]:
    """Returns the label and the masks `(T, H, W)` of each instance."""
    found: dict[int, tuple[int, np.ndarray]] = {}
    for index, frame in enumerate(frames):
        for one in frame.instances:
            empty = np.zeros((len(frames), *frame.ori_shape[:2]), bool)
            _, masks = found.setdefault(one['instance_id'], (one['bbox_label'], empty))
            masks[index] = coco_mask.decode(one['mask'])
    return found


def predictions(frames: Frames) -> list[Instance]:
    """Returns score, label and masks `(T, H, W)` of each prediction, the best one first."""
    masks = np.stack([frame.pred_track_instances.masks.numpy() for frame in frames], 1)
    first = frames[0].pred_track_instances
    found = zip(first.scores.tolist(), first.labels.tolist(), masks, strict=True)
    return sorted(found, key=lambda one: -one[0])


def distinct(instances: Sequence[Instance], least: float = 0.5) -> list[Instance]:
    """Returns instances with a score of at least `least`; of instances that overlap, only the first."""
    chosen: list[Instance] = []
    for one in instances:
        if one[0] >= least and all(iou(one[2], other) < 0.3 for _, _, other in chosen):
            chosen.append(one)
    return chosen


def iou(first: np.ndarray, second: np.ndarray) -> float:
    return float((first & second).sum() / max((first | second).sum(), 1))


def directions(videos: Sequence[Frames]) -> tuple[int, int, int]:
    """Returns the number of balls and kites, of found ones (same shape, IoU above 0.5), and of right directions."""
    all_of_them = found = right = 0
    for frames in videos:
        candidates = predictions(frames)
        for label, masks in truth(frames).values():
            if LOOKS[label] == 'square':
                continue
            all_of_them += 1
            best = next((guess for _, guess, guessed in candidates
                         if LOOKS[guess] == LOOKS[label] and iou(masks, guessed) > 0.5), None)
            found += best is not None
            right += best == label
    return all_of_them, found, right


def paint(frames: Frames, rows: Mapping[str, Sequence[tuple[str, np.ndarray]]], shown: Sequence[int]) -> Figure:
    """Draws frames of one video side by side, once for each row, with the labels and outlines of its instances."""
    width = 3.2  # inches of a frame
    figure = Figure(figsize=(width * len(shown), (width * HEIGHT / WIDTH + 0.15) * len(rows)), layout='constrained')
    panels = figure.subplots(len(rows), len(shown), squeeze=False)
    for (name, instances), row in zip(rows.items(), panels, strict=True):
        row[0].set_ylabel(name)
        for axes, index in zip(row, shown, strict=True):
            axes.imshow(mmcv.imread(frames[index].img_path, channel_order='rgb'))
            axes.set(xticks=[], yticks=[])
            for label, masks in instances:
                if masks[index].any():
                    axes.contour(masks[index], [0.5], colors='white', linewidths=1.5)
                    y, x = np.argwhere(masks[index]).T
                    above = y.min() > HEIGHT / 4
                    axes.text(np.clip(x.mean(), 14, WIDTH - 14), y.min() - 1 if above else y.max() + 1,
                              label, color='white', fontsize=8, ha='center',
                              va='bottom' if above else 'top',
                              bbox=dict(facecolor='black', alpha=0.6, pad=1, linewidth=0))
    return figure


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--study', type=Path, default=Path('configs/_base_/studies/space_time_toy.py'))
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1])
    parser.add_argument('--video', type=int, default=22, help='index of the validation video to draw, from 0')
    parser.add_argument('--frames', type=int, nargs='+', default=[1, 3, 5], help='frames of the video to draw')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/toy_video.png'),
                        help='the figure, for the first seed')
    args = parser.parse_args()
    study = read_study(args.study)
    drawn: dict[str, Frames] = {}
    for seed in args.seeds:
        for name, variant in study.variants.items():
            run = Run(name, variant, seed, Path('work_dirs') / args.study.stem)
            for kind, options in study.tests.items():
                collected = Collect()
                test(run.load(options), run.folder / run.results()['checkpoint']['name'], hooks=[collected])
                count, found, right = directions(collected.videos)
                print(f'{run}, {kind}: {count} balls and kites, {found / count:.1%} found, of these '
                      f'{right / max(found, 1):.1%} with the right direction')
                drawn.setdefault(name, collected.videos[args.video])
    first = next(iter(drawn.values()))
    rows = {'truth': [(NAMES[label], masks) for label, masks in truth(first).values()]}
    rows.update({name: [(f'{NAMES[label]} {score:.2f}', masks) for score, label, masks in distinct(predictions(frames))]
                 for name, frames in drawn.items()})
    write_figure(args.out, paint(first, rows, args.frames))


if __name__ == '__main__':
    main()
