"""Checks what reports of tests promise, with truth and predictions: suspects, intervals, and scores that miss little.

Labels are removed, shifted by half of their size, or given to another class, and the precision of the first suspects is
compared with the precision of boxes or regions at random. Images are drawn from all, whose AP is the true value then,
to see how often intervals contain it. Scores are chosen on half of the images, and tried on the other half. With
--simulate, images are simulated instead: see `lab.simulated_reports`.
"""
import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hotcoco.mask import iou
from PIL import Image
from rich.progress import track

from lab.simulated_reports import HEADER, table
from openmmlab_tools.errors import UserError, exit_on_error, say
from openmmlab_tools.evaluation import box_report, map_report
from openmmlab_tools.evaluation.average_precision import box_metrics
from openmmlab_tools.evaluation.comparison import compare
from openmmlab_tools.evaluation.intervals import Draws
from openmmlab_tools.evaluation.matching import match_pixels
from openmmlab_tools.evaluation.risk import score_that_misses
from openmmlab_tools.files import list_images
from openmmlab_tools.texts import markdown_table

SHARE, FIRST = 0.05, 50  # of the labels, and of the suspects
IGNORED = 255


def read_boxes(annotations: Path, predictions: Path) -> box_report.Boxes:
    """Reads an annotation file in COCO's layout, and results as `test --out` writes them."""
    truth, predicted = json.loads(annotations.read_text()), json.loads(predictions.read_text())
    images = {image['id']: number for number, image in enumerate(truth['images'], start=1)}
    classes = {category['id']: number for number, category in enumerate(truth['categories'], start=1)}
    objects, boxes = ([dict(id=number, image_id=images[entry['image_id']], category_id=classes[entry['category_id']],
                            bbox=entry['bbox'], area=entry['bbox'][2] * entry['bbox'][3],
                            iscrowd=entry.get('iscrowd', 0), score=entry.get('score', 0))
                       for number, entry in enumerate(entries, start=1)]
                      for entries in (truth['annotations'], predicted))
    return box_report.Boxes([category['name'] for category in truth['categories']], [
        dict(image, id=images[image['id']]) for image in truth['images']], objects, boxes)


def damaged_boxes(data: box_report.Boxes, random: np.random.Generator) -> Iterator[tuple[str, float, float]]:
    """Yields the kind of a fault, and the precision of the suspects and of boxes at random."""
    for kind in ('removed', 'shifted', 'renamed')[:2 + (len(data.classes) > 1)]:
        objects = copy.deepcopy(data.objects)
        chosen = random.choice(len(objects), round(SHARE * len(objects)), replace=False)
        for labelled in (objects[index] for index in chosen):
            left, top, width, height = labelled['bbox']
            signs = random.choice([-0.5, 0.5], 2)
            if kind == 'shifted':
                labelled['bbox'] = [left + signs[0] * width, top + signs[1] * height, width, height]
            elif kind == 'renamed':
                labelled['category_id'] = (labelled['category_id'] + random.integers(1, len(data.classes)) - 1) % len(
                    data.classes) + 1
        remaining = [labelled for index, labelled in enumerate(objects) if kind != 'removed' or index not in {*chosen}]
        worse = box_report.Boxes(data.classes, data.images, remaining, data.boxes)
        least = [curve['score'] for curve in box_report.curves(worse, worse.evaluate(worse.boxes))]
        suspects = box_report.judge(worse, least)[1][:FIRST]
        above = [box for box in data.boxes if box['score'] > least[box['category_id'] - 1]]
        at_random = [above[index] for index in random.choice(len(above), 2000)]
        hits = [[bool(same) and np.array(iou([box['bbox']], same, [0] * len(same))).max() >= 0.5 for box in boxes
                 for same in [[data.objects[index]['bbox'] for index in chosen
                               if data.objects[index]['image_id'] == box['image_id']]]]
                for boxes in (suspects, at_random)]
        yield kind, float(np.mean(hits[0])), float(np.mean(hits[1]))


def damaged_maps(truth: Path, predictions: Path, classes: int, random: np.random.Generator
                 ) -> Iterator[tuple[str, float, float]]:
    """Gives regions of label maps to another class; yields as `damaged_boxes` does."""
    counts, renamed, regions = {}, set(), 0
    for path in list_images(truth):
        labels, predicted = (np.array(Image.open(file)) for file in (path, predictions / f'{path.stem}.png'))
        for number, (left, top, *size), cells in [*map_report.regions(labels, classes)]:
            regions += 1
            if random.random() < SHARE:
                labels[cells] = (number + random.integers(1, classes)) % classes
                renamed.add((path.name, left, top, *size))
        pairs = match_pixels(labels, predicted, classes, IGNORED)
        counts[path.name] = map_report.count(labels, predicted, pairs, IGNORED)
    names = [*counts]
    suspects = map_report.summarize(counts, [*map(str, range(classes))])['suspects'][:FIRST]
    hits = [(names[suspect['image_id'] - 1], *suspect['bbox']) in renamed for suspect in suspects]
    yield 'renamed', float(np.mean(hits)), len(renamed) / regions


def coverage(rows: list[box_report.Entry], trials: int, images: int, random: np.random.Generator) -> float:
    """Returns how often the interval of images that are drawn has the AP of all images in it."""
    value = box_metrics(rows, 'bbox', np.ones((1, len(rows)), int))['AP'][0]
    covered = []
    for seed in range(trials):
        part, draws = [rows[index] for index in random.integers(0, len(rows), images)], Draws(images, seed, 200)
        _, low, high = draws.interval(box_metrics(part, 'bbox', draws.weights)['AP'], images)
        covered.append(low is not None and high is not None and low <= value <= high)
    return float(np.mean(covered))


def missed(rows: list[box_report.Entry], most: float, trials: int, random: np.random.Generator) -> str:
    """Returns in how many halves a score is chosen, and what share of the objects of the other half it misses."""
    shares = [np.array([score for _, score in image['found']]) for image in rows if image['found']]
    means = []
    for order in (random.permutation(len(shares)) for _ in range(trials)):
        half = len(order) // 2
        try:
            score = score_that_misses([shares[index] for index in order[:half]], most)
        except UserError:
            continue
        means.append(np.mean([(shares[index] <= score).mean() for index in order[half:]]))
    text = f'at most {most:.2f} missed: a score in {len(means)} of {trials} halves'
    return text + (f', which misses {np.mean(means):.4f} in the other half' if means else '')


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('truth', type=Path, nargs='?', help="annotation file in COCO's layout, or folder of label maps")
    parser.add_argument('predictions', type=Path, nargs='?', help='predictions.bbox.json, or folder of label maps')
    parser.add_argument('--simulate', type=int, nargs='?', const=200, metavar='TRIALS',
                        help='simulate so many sets of images of each source (default: 200) instead of reading files')
    parser.add_argument('--images', type=int, nargs='+', default=[6, 10, 15, 25, 50, 100],
                        help='numbers of images to simulate')
    parser.add_argument('--classes', type=int, default=11, help='number of classes of label maps')
    parser.add_argument('--most', type=float, nargs='+', default=[0.15, 0.2, 0.3], help='shares that may be missed')
    parser.add_argument('--trials', type=int, nargs=2, default=[500, 200], help='draws of images, and splits')
    args = parser.parse_args()
    if args.simulate:
        rows = track(table(args.images, args.simulate), 'Simulating', 2 * len(args.images))
        say(markdown_table(HEADER, rows))
    elif args.predictions:
        check(args)
    else:
        parser.error('give truth and predictions, or --simulate')


def check(args: argparse.Namespace) -> None:
    """Prints the checks of labels, intervals and scores on given files."""
    random = np.random.default_rng(0)
    is_maps = args.truth.is_dir()
    data = None if is_maps else read_boxes(args.truth, args.predictions)
    checks = damaged_boxes(data, random) if data else damaged_maps(args.truth, args.predictions, args.classes, random)
    say(markdown_table(['labels', f'precision of {FIRST} suspects', 'at random'],
                       ([kind, f'{first:.2f}', f'{second:.3f}'] for kind, first, second in checks)))
    if data:
        report = dict(box_report.summarize(data), is_exact=True)
        rows = [*report['images'].values()]
        say(f'against itself: {compare(report, report)["verdict"]}')
        for most in args.most:
            say(missed(rows, most, args.trials[1], random))
        say(f'95 % intervals cover: {coverage(rows, args.trials[0], len(rows), random):.3f}')
