"""The metric of COCO for any ids, and a model of mmdet that merges boxes of several views."""
import json
import os.path
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from mmengine.fileio import dump, load

from openmmlab_runs.data.coco import FIELDS, Coco, Entry, read_coco, to_id
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import write_text
from openmmlab_runs.libraries import require
from openmmlab_runs.registry import METRICS, MODELS

require('mmdet')

from mmdet.evaluation import CocoMetric  # noqa: E402
from mmdet.evaluation.metrics import coco_metric  # noqa: E402
from mmdet.models import DetTTAModel  # noqa: E402
from pycocotools.cocoeval import COCOeval  # noqa: E402


def summarize(evaluation: COCOeval) -> None:
    """Prints pycocotools' summary, with a heading: it is the same text for boxes and for masks."""
    print(dict(bbox='boxes:', segm='masks:').get(evaluation.params.iouType, ''))
    COCOeval.summarize(evaluation)


def own_evaluation() -> AbstractContextManager[Any]:
    """Lets mmdet summarize as above, and evaluate in C++, if faster-coco-eval is installed, whose summary has another
    mAP, of the most boxes in `proposal_nums` instead of 100.
    """
    kinds: dict[str, Any] = {name: getattr(coco_metric, name) for name in ('COCOeval', 'COCOevalMP')}
    if find_spec('faster_coco_eval'):
        from faster_coco_eval import COCOeval_faster
        kinds = dict.fromkeys(kinds, COCOeval_faster)
    kinds = {name: type(name, (kind,), dict(summarize=summarize)) for name, kind in kinds.items()}
    return patch.multiple(coco_metric, **kinds)


def number(ids: Iterable[Hashable]) -> dict[Any, int]:
    """Returns a number for each id: 1 for the first one, and so on."""
    return {id: index for index, id in enumerate(dict.fromkeys(ids), start=1)}


def with_numbers(coco: Coco, has_masks: bool) -> dict[str, list[Entry]]:
    """Returns annotations whose ids are numbers from 1 on, in the same order, and masks only if they are wanted."""
    images = number([*(one['id'] for one in coco['images']), *(one['image_id'] for one in coco['annotations'])])
    # Objects of an image or category that is not listed have numbers that are not listed either.
    categories = number([*(one['id'] for one in coco['categories']),
                         *(one['category_id'] for one in coco['annotations'])])
    keys = (*FIELDS['annotations'],) if has_masks else [key for key in FIELDS['annotations'] if key != 'segmentation']
    return dict(
        images=[dict(image, id=images[image['id']]) for image in coco['images']],
        categories=[dict(category, id=categories[category['id']]) for category in coco['categories']],
        annotations=[{**{key: one[key] for key in keys if key in one}, 'id': index, 'image_id': images[one['image_id']],
                      'category_id': categories[one['category_id']]}
                     for index, one in enumerate(coco['annotations'], start=1)])


@METRICS.register_module()
class FastCocoMetric(CocoMetric):
    """mmdet's CocoMetric, with the same arguments and results, for any ids; in C++ if faster-coco-eval is installed.

    pycocotools takes an object whose id is 0 for one that was not found. So the metric counts with numbers from 1 on.
    The files that `outfile_prefix` asks for have the ids of the annotations.
    """

    def __init__(self, ann_file: str | None = None, *, backend_args: dict[str, Any] | None = None,
                 sort_categories: bool = False, **kwargs: Any) -> None:
        if kwargs.get('iou_thrs') is not None:
            kwargs['iou_thrs'] = np.atleast_1d(kwargs['iou_thrs'])  # pycocotools fails with a list
        self.ann_file = ann_file
        # The numbers of images, by ids; and ids as they are written, by numbers.
        self.numbers: dict[Any, int] = {}
        self.image_ids: dict[int, Any] = {}
        self.category_ids: dict[int, Any] = {}
        if ann_file is None:
            super().__init__(**kwargs)
            return
        coco = read_coco(ann_file, backend_args)
        written = coco.texts.get(('categories', 'id'), {})
        categories = [(one, written.get(index, one['id'])) for index, one in enumerate(coco['categories'])]
        if sort_categories:
            categories.sort(key=lambda pair: (isinstance(pair[0]['id'], str), pair[0]['id']))
        coco['categories'] = [one for one, _ in categories]
        self.category_ids = {index: text for index, (_, text) in enumerate(categories, start=1)}
        self.numbers = number(image['id'] for image in coco['images'])
        with TemporaryDirectory() as folder:
            path = os.path.join(folder, 'annotations.json')
            with open(path, 'w') as file:
                json.dump(with_numbers(coco, 'segm' in kwargs.get('metric', 'bbox')), file)
            super().__init__(path, **kwargs)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        if 'segm' in self.metrics and results and 'masks' not in results[0][1]:
            raise UserError('the metric is segm, but the model predicts no masks: set metric to bbox.')
        results = [(dict(true, img_id=image), dict(found, img_id=image))
                   for true, found in results for image in [self._number(found['img_id'])]]
        with TemporaryDirectory() as self.folder, own_evaluation():
            return super().compute_metrics(results)

    def _number(self, id: Any) -> int:
        """Returns the number of an image. Without an annotation file, those of the data samples are numbered."""
        written = id
        with suppress(ValueError):  # other datasets may have ids of any kind
            id = to_id(id) if self.ann_file else id
        image = self.numbers.get(id) if self.ann_file else self.numbers.setdefault(id, len(self.numbers) + 1)
        if image is None:
            raise UserError(f'the metric has predictions for the image with id {id!r}, but its ann_file '
                            f'{self.ann_file} has no such image: set ann_file to the annotations of the dataset.')
        self.image_ids[image] = written
        return image

    def results2json(self, results: Sequence[dict[str, Any]], outfile_prefix: str) -> dict[str, str]:
        """Writes predictions: with numbers, as mmdet reads them, and with ids where `outfile_prefix` asks for it."""
        files = super().results2json(results, os.path.join(self.folder, 'results'))
        for file in {*files.values()} if self.outfile_prefix else ():
            self._write_with_ids(file, outfile_prefix)
        return files

    def gt_to_coco_json(self, gt_dicts: Sequence[dict[str, Any]], outfile_prefix: str) -> str:
        file = super().gt_to_coco_json(gt_dicts, os.path.join(self.folder, 'results'))
        if self.outfile_prefix:
            self._write_with_ids(file, outfile_prefix)
        return file

    def _write_with_ids(self, file: str, outfile_prefix: str) -> None:
        content = load(file)
        is_true = isinstance(content, dict)
        for image in content['images'] if is_true else ():
            image['id'] = self.image_ids[image['id']]
        for one in content.get('annotations', []) if is_true else content:
            one['image_id'] = self.image_ids[one['image_id']]
            one['category_id'] = self.category_ids.get(one['category_id'], one['category_id'])
        path = f'{outfile_prefix}{os.path.basename(file).removeprefix("results")}'
        if '://' in path:
            dump(content, path)
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_text(Path(path), json.dumps(content))


@MODELS.register_module()
class BoxTTAModel(DetTTAModel):
    """mmdet's model, which also takes predictions with masks, and leaves the masks out."""

    def merge_preds(self, data_samples_list: Sequence[Sequence[Any]]) -> list[Any]:
        for sample in chain.from_iterable(data_samples_list):
            sample.pred_instances.pop('masks', None)
        return super().merge_preds(data_samples_list)
