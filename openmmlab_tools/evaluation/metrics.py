"""The metric of COCO for any ids, and a model of mmdet that merges boxes of several views."""
import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from hotcoco import COCO, COCOeval
from mmengine.evaluator import BaseMetric
from mmengine.fileio import dump
from mmengine.logging import print_log

from openmmlab_tools.data.areas import wrong_areas
from openmmlab_tools.data.coco import Coco, Entry, read_coco, to_id
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import write_text
from openmmlab_tools.libraries import require
from openmmlab_tools.registry import METRICS, MODELS

from .matching import arrays_of, of_samples, predictions
from .ties import by_score, precision_of

require('mmdet')

from mmdet.models import DetTTAModel  # noqa: E402

AP = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
KINDS = ('bbox', 'segm', 'proposal')


@METRICS.register_module(name=['CocoMetric', 'FastCocoMetric'])  # earlier releases used the second name
class CocoMetric(BaseMetric):
    """COCO's metric with the arguments and results of mmdet's CocoMetric, for any ids. hotcoco computes it.

    It differs from mmdet's metric in these points:

    - Only the images that were tested count, each image once. mmdet also counts the objects in all other images of
      `ann_file`. `untested` is the number of these images.
    - If the `area` of an object in the file is impossible, the area of its mask or box is used; see `wrong_areas`. A
      warning gives the number of such objects.
    - `proposal_nums` can have any length. The names of AR contain these numbers, also in `metric_items`. If they do not
      include 100, mAP uses the largest number of boxes; mmdet returns -1.
    - The order of boxes with equal scores has no effect; see `ties`. Without such boxes, the values are equal to
      pycocotools' values.
    - Without any prediction, all values are 0; mmdet returns nothing.
    - There is no 'proposal_fast', which fails in mmdet with numpy 1.24 and newer.
    - `use_mp_eval` has no effect, because hotcoco computes with threads.
    """
    default_prefix = 'coco'

    def __init__(self, ann_file: str | None = None, metric: str | list[str] = 'bbox', classwise: bool = False,
                 proposal_nums: Sequence[int] = (100, 300, 1000), iou_thrs: float | Sequence[float] | None = None,
                 metric_items: Sequence[str] | None = None, format_only: bool = False,
                 outfile_prefix: str | None = None, backend_args: dict[str, Any] | None = None,
                 collect_device: str = 'cpu', prefix: str | None = None, sort_categories: bool = False,
                 use_mp_eval: bool = False) -> None:
        super().__init__(collect_device, prefix)
        self.metrics = [metric] if isinstance(metric, str) else metric
        self.ann_file, self.backend_args, self.sort_categories = ann_file, backend_args, sort_categories
        self.classwise, self.metric_items, self.proposal_nums = classwise, metric_items, _limits(proposal_nums)
        self.iou_thrs = np.linspace(.5, .95, 10) if iou_thrs is None else np.atleast_1d(iou_thrs)
        self.format_only, self.outfile_prefix = format_only, outfile_prefix
        self.compared: tuple[COCO, COCO] | None = None  # boxes that are annotated and predicted, by classes
        self.ap_by_class: dict[str, list[float]] = {}  # of 'bbox' and 'segm', with `classwise`
        self.untested = 0
        for name, given, known in (('metric', self.metrics, KINDS), ('metric_items', metric_items or (), self.names)):
            if unknown := [item for item in given if item not in known]:
                raise UserError(f'{name} of CocoMetric has {unknown[0]!r}: choose from {", ".join(known)}.')
        if format_only and not outfile_prefix:
            raise UserError('CocoMetric has format_only, but no outfile_prefix: set the path that files begin with.')

    def process(self, data_batch: Any, data_samples: Sequence[Mapping[str, Any]]) -> None:
        for sample in data_samples:
            self.results.append(dict(
                arrays_of(sample['pred_instances']), img_id=sample['img_id'], ori_shape=sample['ori_shape'],
                img_path=sample.get('img_path') or '',
                instances=None if self.ann_file else sample['instances']))  # they are large

    def compute_metrics(self, results: list[dict[str, Any]]) -> dict[str, float]:
        results = self._once(results)
        coco = self._annotated if self.ann_file else of_samples(results, self.dataset_meta['classes'])
        images = {image['id']: image for image in coco['images']}
        self._check_images(results, images)
        tested = {self._id(result['img_id']) for result in results}
        self.untested = len(images) - len(tested)
        numbers = {id: index for index, id in enumerate(sorted(tested, key=in_order), start=1)}
        true, ids = with_numbers(coco, numbers, self.dataset_meta['classes'], self.sort_categories)
        self._check(results, ids)
        predicted = {kind: predictions(results, kind) for kind in ('bbox', 'segm')
                     if kind == 'bbox' or (results and 'masks' in results[0])}
        if self.outfile_prefix:
            files = {kind: [dict(box, category_id=ids[box['category_id']]) for box in boxes]
                     for kind, boxes in predicted.items()}
            for kind, content in {**files, **({} if self.ann_file else dict(gt=coco))}.items():
                path = f'{self.outfile_prefix}.{kind}.json'
                if '://' in path:
                    dump(content, path)
                else:  # never half of it
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                    write_text(Path(path), json.dumps(content))
        if self.format_only:
            return {}
        annotated = COCO(true)
        loaded = {kind: annotated.load_res([
            {key: value for key, value in box.items() if kind == 'bbox' or key != 'bbox'}  # areas come from masks
            | dict(image_id=numbers[self._id(box['image_id'])], category_id=box['category_id'] + 1)
            for box in by_score(boxes)]) for kind, boxes in predicted.items()}
        if {'bbox', 'segm'} & {*self.metrics}:
            self.compared = annotated, loaded['bbox']
        return {name: value for metric in self.metrics
                for name, value in self._values(metric, annotated, loaded).items()}

    @cached_property
    def _annotated(self) -> Coco:  # only the main process reads it
        coco = read_coco(str(self.ann_file), self.backend_args)
        areas = wrong_areas(coco['annotations'])
        for index, (area, _) in areas.items():
            coco['annotations'][index]['area'] = area
        if areas:
            print_log(f'{self.ann_file} has an impossible area in {len(areas)} of {len(coco["annotations"])} '
                      'annotations: the metric uses the area of the mask or box instead (the command check finds all).',
                      'current', logging.WARNING)
        return coco

    @property
    def names(self) -> tuple[str, ...]:
        """The names of AP and AR, which contain the numbers of boxes."""
        most = self.proposal_nums[-1]
        return (*AP, *(f'AR@{limit}' for limit in self.proposal_nums), *(f'AR_{size}@{most}' for size in 'sml'))

    def _once(self, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns one result for each image; wrappers such as RepeatDataset test an image several times."""
        first: dict[Any, dict[str, Any]] = {}
        for result in results:
            other = first.setdefault(self._id(result['img_id']), result)
            if other['img_path'] != result['img_path']:
                raise UserError(f'two images in the test have the id {result["img_id"]!r}: {other["img_path"]} and '
                                f'{result["img_path"]}. Test these datasets separately, or join their annotations in '
                                'one file with different ids.')
        return [*first.values()]

    def _id(self, written: Any) -> Any:
        with suppress(ValueError):  # other datasets may have ids of any kind
            return to_id(written) if self.ann_file else written
        return written

    def _check_images(self, results: Sequence[Mapping[str, Any]], images: Mapping[Any, Entry]) -> None:
        for result in results:
            annotated = images.get(self._id(result['img_id']))
            if annotated is None:
                raise UserError(f'the metric has predictions for the image with id {result["img_id"]!r}, but its '
                                f'ann_file {self.ann_file} has no such image: set ann_file to the annotations of the '
                                'dataset.')
            name = annotated['file_name']
            if result['img_path'] and name and PurePath(result['img_path']).name != PurePath(name).name:
                raise UserError(f'the image with id {result["img_id"]!r} is {result["img_path"]} in the test, but '
                                f'{name} in {self.ann_file}, the ann_file of the metric: set ann_file to the '
                                'annotations of the dataset.')

    def _check(self, results: Sequence[Mapping[str, Any]], ids: Sequence[Any]) -> None:
        for result in results:
            if 'segm' in self.metrics and 'masks' not in result:
                raise UserError('the metric is segm, but the model predicts no masks: set metric to bbox.')
            if np.isnan(result['scores']).any() or np.isnan(result.get('mask_scores', 0.)).any():
                raise UserError(f'the model predicts scores that are no numbers (NaN) for the image with id '
                                f'{result["img_id"]!r}: its training has diverged; use an earlier checkpoint.')
            if (label := result['labels'].max(initial=-1)) >= len(ids):
                raise UserError(f'the model predicts class {label}, but the annotations have {len(ids)} classes of the '
                                f"dataset: set num_classes of the model's head to {len(ids)}.")

    def _values(self, metric: str, true: COCO, predicted: Mapping[str, COCO]) -> dict[str, float]:
        kind = 'segm' if metric == 'segm' else 'bbox'
        evaluation = COCOeval(true, predicted[kind], kind)
        params, limits = evaluation.params, self.proposal_nums
        params.max_dets, params.iou_thrs, params.use_cats = limits, self.iou_thrs.tolist(), metric in ('bbox', 'segm')
        evaluation.evaluate()
        evaluation.accumulate()
        # By threshold of IoU, recall (precision only), class, range of areas, and limit.
        arrays: Any = evaluation.eval
        recall, precision = arrays['recall'], (
            precision_of(evaluation) if params.use_cats else arrays['precision'])
        usual = limits.index(100) if 100 in limits else -1
        means = [mean(part) for part in (
            precision[..., 0, usual], *(precision[self.iou_thrs == iou][..., 0, -1] for iou in (.5, .75)),
            *(precision[..., area, -1] for area in (1, 2, 3)),
            *(recall[..., 0, limit] for limit in range(len(limits))), *(recall[..., area, -1] for area in (1, 2, 3)))]
        values = dict(zip(self.names, means, strict=True))
        print_log(f'{metric}: ' + ', '.join(f'{name} {value:.3f}' for name, value in values.items()), 'current')
        if metric == 'proposal':
            return {name: round(values[name], 3) for name in self.metric_items or self.names[len(AP):]}
        if self.classwise:
            self.ap_by_class[metric] = [mean(precision[:, :, index, 0, -1], math.nan)
                                        for index in range(len(true.dataset['categories']))]
        by_class = {f'{category["name"]}_precision': round(value, 3) for category, value in zip(
            true.dataset['categories'], self.ap_by_class.get(metric, ()), strict=False)}
        return by_class | {f'{metric}_{name}': round(values[name], 3) for name in self.metric_items or AP}


def _limits(proposal_nums: Sequence[int]) -> list[int]:
    given = [*proposal_nums] if isinstance(proposal_nums, list | tuple) else []
    if not given or not all(isinstance(limit, int) and limit >= 1 for limit in given):
        raise UserError(f'proposal_nums of CocoMetric is {proposal_nums!r}, but must be a list of numbers of boxes, '
                        'each at least 1, such as (1, 10, 100).')
    return sorted({*given})


def in_order(id: Any) -> tuple[bool, Any]:
    """Returns the key that sorts ids: numbers, then text."""
    return isinstance(id, str), id


def mean(values: np.ndarray, default: float = -1.) -> float:
    """Returns the mean of the values that COCO's metric has; -1 stands for classes and areas without objects."""
    values = values[values > -1]
    return float(values.mean()) if values.size else default


def with_numbers(coco: Coco, numbers: Mapping[Any, int], classes: Sequence[str], is_sorted: bool
                 ) -> tuple[dict[str, list[Entry]], list[Any]]:
    """Returns annotations for hotcoco, with numbers as ids, and the written ids of the categories, by label.

    Images have their `numbers`; images without a number, and their objects, are left out. Objects have 1 and so on, and
    categories that are classes the label + 1, in the order of the file, as in mmdet's datasets. Objects of other
    categories have one more, which only proposals count.
    """
    written = coco.texts.get(('categories', 'id'), {})
    pairs = [(category, written.get(index, category['id'])) for index, category in enumerate(coco['categories'])
             if category['name'] in classes]
    if is_sorted:
        pairs.sort(key=lambda pair: in_order(pair[0]['id']))
    labels = {category['id']: label for label, (category, _) in enumerate(pairs)}
    keys = ('bbox', 'area', 'iscrowd', 'segmentation')
    annotations = [annotation for annotation in coco['annotations'] if annotation['image_id'] in numbers]
    return dict(
        images=[dict(id=numbers[image['id']], height=image['height'], width=image['width'], file_name='')
                for image in coco['images'] if image['id'] in numbers],
        categories=[dict(id=label + 1, name=category['name']) for label, (category, _) in enumerate(pairs)],
        annotations=[{key: annotation[key] for key in keys if key in annotation} | dict(
            id=index, image_id=numbers[annotation['image_id']],
            category_id=labels.get(annotation['category_id'], len(labels)) + 1)
            for index, annotation in enumerate(annotations, start=1)]), [id for _, id in pairs]


@MODELS.register_module()
class BoxTTAModel(DetTTAModel):
    """mmdet's model, which also takes predictions with masks, and leaves the masks out."""

    def merge_preds(self, data_samples_list: Sequence[Sequence[Any]]) -> list[Any]:
        for sample in chain.from_iterable(data_samples_list):
            sample.pred_instances.pop('masks', None)
        return super().merge_preds(data_samples_list)
