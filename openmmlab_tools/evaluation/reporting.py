"""Writes a report of a test, compares it with another, and chooses a score that misses few objects."""
import json
import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import cv2
import numpy as np
from mmengine.dist import is_main_process
from torch import nn

from openmmlab_tools.errors import UserError, check_range, show
from openmmlab_tools.files import near, read_state, write_text
from openmmlab_tools.pictures.bands import read_view
from openmmlab_tools.pictures.painting import paint_boxes, paint_label_map
from openmmlab_tools.redaction import redact_text

from . import box_report, map_report
from .comparison import check_classes, compare
from .gathered import Gathered, LabelMaps
from .intervals import CONFIDENCE, FEWEST
from .matching import of_samples, predictions
from .page import render
from .report_file import read_report
from .risk import score_that_misses
from .sections import SHOWN, sections
from .thresholds import write_thresholds

ORANGE, BLUE = (230, 120, 20), (30, 110, 230)
CLOSE_UP = 400  # pixels, the longest side of the picture of a suspected box
DARK = 160  # pictures with fewer bright values are brightened
Entry = dict[str, Any]


class Report:
    """Writes a report of a test into a folder: `index.html`, `report.json`, and `suspects.json` in COCO's layout.

    Args:
        folder: The folder; None for no report.
        other: The `report.json` of another test to compare with (see `compare`).
        most: The share of objects that predictions may miss in new images. If given, the report also writes
            `thresholds.json`, which predictions read, into the folder of the test's logs (see `score_that_misses`).

    Raises:
        UserError: If the arguments contradict each other, or `other` does not exist.
    """

    def __init__(self, folder: str | Path | None, other: str | Path | None = None, most: float | None = None) -> None:
        self.folder, self.most = Path(folder) if folder else None, most
        if most is not None:
            check_range('--at-most-missed', most, 0, 1)
        if '://' in str(folder):
            raise UserError(f'--report {folder} is an address: pass a local folder, and copy the report later.')
        todo = 'give the report.json of a test with --report'
        self.other = read_state(Path(other), read_report, todo) if other else None
        if other and (not folder or self.other is None):
            raise UserError(f'--compare {other} ' + ('does not exist: correct the path.' if folder else
                                                     'is a part of a report: add --report FOLDER.'))

    def begin(self, gathered: Gathered, has_views: bool = False) -> None:
        """Raises a UserError if the report cannot be written, before the test instead of hours later."""
        dataset = gathered.dataset
        self.classes, self.palette = gathered.classes, dataset.metainfo.get('palette')
        if self.most is not None:
            if has_views:
                raise UserError('--at-most-missed and --tta cannot be used together, because the chosen scores are for '
                                'predictions without --tta: leave one out.')
            score_that_misses([np.ones(1)] * len(dataset), self.most)
        if self.other:
            check_classes(self.classes, self.other)
            paths = {dataset.get_data_info(index)['img_path'] for index in range(len(dataset))}
            if not {*short_names(sorted(paths))} & {*self.other['images']}:
                raise UserError('the report to compare with has no image of this test: compare with a test on the same '
                                'data.')
        if self.folder and is_main_process():
            self.folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=self.folder).close()

    def check(self, sample: Any, result: dict[str, Any] | LabelMaps | None) -> None:
        """Raises a UserError if a sample, of which a part is kept, cannot be in a report."""
        if 'img_path' not in sample:
            raise UserError('--report names images by their paths, but the samples of the test have none: add '
                            'img_path to meta_keys at the end of the test pipeline.')
        is_boxes = isinstance(result, dict)
        if self.other and ('bbox' in self.other['metrics']) != is_boxes:
            raise UserError(f'the report to compare with is for a {"segmentor" if is_boxes else "detector"}, but this '
                            'test is not: compare with a test on the same data.')
        if isinstance(result, dict):
            check_boxes(result, sample.img_path)
        elif result is None or self.most is not None:
            raise UserError('--at-most-missed is for detectors, and --report for detectors and segmentors with '
                            f'truth, but the test of {sample.img_path} has no boxes or label maps: leave them out.')

    def write(self, gathered: Gathered, is_exact: bool, hidden: Sequence[str], source: str, log_dir: Path,
              model: nn.Module | None) -> None:
        """Writes the files, after the gathered results of all processes have been merged.

        Args:
            gathered: The results.
            is_exact: Whether predictions do not depend on the batch.
            hidden: Sentences about the metric.
            source: What was tested: the config and the checkpoint.
            log_dir: Folder for `thresholds.json`.
            model: The model, which `thresholds.json` is for.
        """
        names = short_names(sorted(gathered.results))
        self.paths = dict(zip(names, sorted(gathered.results), strict=True))
        self.results: dict[str, Any] = {name: gathered.results[path] for name, path in self.paths.items()}
        is_boxes = isinstance(next(iter(self.results.values())), dict)
        if is_boxes:
            self.data = self._boxes(gathered.dataset)
        report = (box_report.summarize(self.data) if is_boxes else
                  map_report.summarize({name: maps.counts for name, maps in self.results.items()}, self.classes))
        if self.folder:
            self._write(self.folder, report, is_boxes, is_exact, hidden, source)
        if self.most is not None:
            self._write_thresholds(report, self.most, log_dir, model)

    def _boxes(self, dataset: Any) -> box_report.Boxes:
        """Returns the objects of the data set, in pixels of the images as they are, and the boxes that are found."""
        infos = {info['img_path']: info for info in map(dataset.get_data_info, range(len(dataset)))}
        rows = []
        for number, (name, path) in enumerate(self.paths.items(), start=1):
            if 'instances' not in infos[path]:
                raise UserError(f'--report compares boxes with truth, but image {path} has no annotations: test on '
                                'data that has them.')
            rows.append(dict(self.results[name], img_id=number, instances=infos[path]['instances']))
        has_masks = all('masks' in row and all(true.get('mask') for true in row['instances']) for row in rows)
        truth = of_samples(rows, self.classes)
        objects, boxes = ([dict(entry, id=number, category_id=entry['category_id'] + 1,
                                area=entry['bbox'][2] * entry['bbox'][3])
                           for number, entry in enumerate(entries, start=1)]
                          for entries in (truth['annotations'], predictions(rows, 'segm' if has_masks else 'bbox')))
        images = [dict(image, file_name=name) for image, name in zip(truth['images'], self.paths, strict=True)]
        return box_report.Boxes(self.classes, images, objects, boxes, ('bbox', 'segm')[:1 + has_masks])

    def _write(self, folder: Path, report: Entry, is_boxes: bool, is_exact: bool, hidden: Sequence[str], source: str
               ) -> None:
        names = [*self.paths]
        for suspect in report['suspects']:
            suspect['file_name'] = names[suspect['image_id'] - 1]
        count = sum(any(image['objects']) for image in report['images'].values())
        few = (f'Too few images for intervals: {count} with objects. In simulations with fewer than {FEWEST} images, '
               'intervals contain the true value too rarely.')
        report = dict(report, is_exact=is_exact, notes=[
            'AP counts all boxes that the model predicts. The metric in the config may count fewer.' if is_boxes else
            'Pixels with labels that are no class do not count.', *hidden, *[few] * (count < FEWEST),
            'Predictions do not depend on the batch: tests can be compared image by image.' if is_exact else
            'Predictions may depend on the batch: to compare tests, use batch_size=1 or BatchInvariantHook.'],
                      summary=redact_text(f'{len(names)} images, {source}'))
        if self.other:
            show('Comparing the two tests.')
            report['comparison'] = compare(report, self.other)
            show(f'Compared with the other report, this test is {report["comparison"]["verdict"]}.')
        worst = sorted(names, key=lambda name: -report['images'][name]['wrong'])[:SHOWN]
        paint = self._paint_errors if is_boxes else self._paint_maps
        wrong = [report['images'][name]['wrong'] for name in worst]
        painted = [(f'{name}: {f"{count} wrong" if is_boxes else f"{count:.1%} of pixels wrong"}', paint(name, report))
                   for name, count in zip(worst, wrong, strict=True)]
        page = render('Evaluation', sections(report, painted, self._suspect_box if is_boxes else self._suspect_map))
        suspects = [dict(suspect, id=number, iscrowd=0) for number, suspect in enumerate(report['suspects'], start=1)]
        shortened = {key: value for key, value in report.items() if key not in ('suspects', 'missed', 'wrong')}
        write_text(folder / 'index.html', page)
        write_text(folder / 'report.json', json.dumps(shortened))
        write_text(folder / 'suspects.json', json.dumps(dict(
            images=[dict(id=number, file_name=name) for number, name in enumerate(names, start=1)],
            annotations=suspects,
            categories=[dict(id=number, name=name) for number, name in enumerate(report['classes'], start=1)])))
        show(f'The report is in {near(folder / "index.html")}.')

    def _paint_errors(self, name: str, report: Entry) -> np.ndarray:
        image = next(entry['id'] for entry in self.data.images if entry['file_name'] == name)
        return self._paint_boxes(name, *([entry for entry in report[key] if entry['image_id'] == image]
                                         for key in ('missed', 'wrong')))

    def _paint_boxes(self, name: str, true: Sequence[Entry], predicted: Sequence[Entry]) -> np.ndarray:
        return paint_boxes(read_view(self.paths[name]), _corners([*true, *predicted]),
                           np.repeat([0, 1], [len(true), len(predicted)]), palette=[ORANGE, BLUE])

    def _paint_maps(self, name: str, report: Entry | None = None, alpha: float = 0.7) -> np.ndarray:
        image = read_view(self.paths[name])
        return np.concatenate([paint_label_map(image, label_map, self.classes, False, self.palette, alpha)
                               for label_map in self.results[name].unpacked()], axis=1)

    def _suspect_box(self, suspect: Entry) -> np.ndarray:
        true = [entry for entry in self.data.objects if entry['image_id'] == suspect['image_id']]
        image = read_view(self.paths[suspect['file_name']])
        rows, columns = _around(image.shape[:2], suspect['bbox'])
        part = brightened(image[rows, columns])
        factor = max(1, CLOSE_UP // max(part.shape[:2]))
        close = cv2.resize(part, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC)
        boxes = (_corners([*true, suspect]) - [columns.start, rows.start] * 2) * factor
        return paint_boxes(close, boxes, np.repeat([0, 1], [len(true), 1]), palette=[ORANGE, BLUE])

    def _suspect_map(self, suspect: Entry) -> np.ndarray:
        halves = np.split(self._paint_maps(suspect['file_name'], alpha=0.4), 2, axis=1)
        rows, columns = _around(halves[0].shape[:2], suspect['bbox'])
        return np.concatenate([half[rows, columns] for half in halves], axis=1)

    def _write_thresholds(self, report: Entry, most: float, log_dir: Path, model: nn.Module | None) -> None:
        assert model
        scores = [np.array([score for _, score in image['found']]) for image in report['images'].values()]
        score = score_that_misses(scores, most)
        best = [(curve['score'], curve['f1']) if curve['f1'] else None for curve in report['curves']]
        file = write_thresholds(log_dir, model, self.classes, best, (score, most))
        show(f'{near(file)} now has the score {score:.4f} for each class, and predictions with this checkpoint use it. '
             f'On average, boxes above this score miss at most {most:.1%} of the objects in new images from the '
             f'same source, with a confidence of {CONFIDENCE:.0%}.')


def check_boxes(arrays: Entry, path: str) -> None:
    """Raises a UserError for boxes and scores with which there is no report."""
    scores = arrays['scores']
    if not (np.isfinite(arrays['bboxes']).all() and np.isfinite(scores).all()):
        raise UserError(f'the model predicts boxes that are no numbers for {path}: its training has diverged; use an '
                        'earlier checkpoint.')
    if len(scores) and not 0 <= scores.min() <= scores.max() <= 1:
        raise UserError(f'the model predicts scores from {scores.min():g} to {scores.max():g} for {path}, but a report '
                        'needs scores from 0 to 1: let the head apply a sigmoid or softmax, or test without --report '
                        'and --at-most-missed.')


def short_names(paths: Sequence[str]) -> list[str]:
    """Returns paths without the folders that all share, by which images of two tests are paired."""
    parts = [path.replace(os.sep, '/').split('/') for path in paths]
    levels = zip(*(folders[:-1] for folders in parts), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len({*names}) == 1, levels))
    return ['/'.join(folders[shared:]) for folders in parts]


def _corners(entries: Sequence[Entry]) -> np.ndarray:
    """Returns left, top, right and bottom of boxes in COCO's layout, `(N, 4)`."""
    boxes = np.array([entry['bbox'] for entry in entries], float).reshape(-1, 4)
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def _around(shape: Sequence[int], box: Sequence[float]) -> tuple[slice, slice]:
    """Returns the rows and columns around a box, `(left, top, width, height)`, of an image `(height, width)`.

    They are a square of three times the longer side and at least 48 pixels, moved into the image, or cut if the image
    is smaller.
    """
    left, top, width, height = box
    side = int(max(3 * max(width, height), 48))

    def part(centre: float, length: int) -> slice:
        start = int(min(max(centre - side / 2, 0), max(length - side, 0)))
        return slice(start, min(start + side, length))

    return part(top + height / 2, shape[0]), part(left + width / 2, shape[1])


def brightened(image: np.ndarray) -> np.ndarray:
    """Returns an image, uint8, brightened if 99 % of its values are below `DARK`, so that these reach it."""
    bright = max(float(np.quantile(image, 0.99)), 1)
    return image if bright >= DARK else np.minimum(image * (DARK / bright), 255).astype(np.uint8)
