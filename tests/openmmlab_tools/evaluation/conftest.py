"""Annotations and predictions for metrics of mmdet."""
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.evaluator import BaseMetric
from pycocotools import mask as rle

CLASSES = ('cat', 'dog', 'emu')
SIDE = 300


@pytest.fixture(scope='module')
def annotations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boxes and masks of all area ranges, crowds, an image without an object, and a class without one."""
    generator = np.random.default_rng(0)
    boxes = np.rint(generator.uniform([0, 0, 4, 4], [150, 150, 140, 140], (60, 4))).tolist()
    objects = [dict(id=index + 1, image_id=1 + index % 9, category_id=5 + index % 2, bbox=[x, y, w, h], area=w * h,
                    iscrowd=int(index % 17 == 0), segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]])
               for index, (x, y, w, h) in enumerate(boxes)]
    for labelled in objects:
        if labelled['iscrowd']:
            labelled['segmentation'] = rle.frPyObjects(labelled['segmentation'], SIDE, SIDE)[0]
            labelled['segmentation']['counts'] = labelled['segmentation']['counts'].decode()
    path = tmp_path_factory.mktemp('coco') / 'annotations.json'
    path.write_text(json.dumps(dict(
        images=[dict(id=index, width=SIDE, height=SIDE, file_name=f'{index}.png') for index in range(1, 11)],
        categories=[dict(id=5 + index, name=name) for index, name in enumerate(CLASSES)], annotations=objects)))
    return path


def predict(annotations: Path, seed: int = 0, share: float = .9) -> list[dict]:
    """Data samples with the objects, each twice and shifted a little, with random scores and some wrong classes."""
    generator = np.random.default_rng(seed)
    coco = json.loads(annotations.read_text())
    samples = []
    for image in coco['images']:
        labelled = [annotation for annotation in coco['annotations'] if annotation['image_id'] == image['id']] * 2
        labelled = [annotation for annotation in labelled if generator.random() < share]
        given = np.array([annotation['bbox'] for annotation in labelled]).reshape(-1, 4)
        moved = given + generator.normal(0, 2, (len(labelled), 4))
        boxes = np.concatenate([moved[:, :2], moved[:, :2] + moved[:, 2:].clip(1)], axis=1).clip(0, SIDE)
        masks = [rle.frPyObjects([[a, b, c, b, c, d, a, d]], SIDE, SIDE)[0] for a, b, c, d in boxes]
        labels = [annotation['category_id'] - 5 if generator.random() < .9 else 2 for annotation in labelled]
        scores = generator.random(len(labelled))
        samples.append(dict(img_id=image['id'], ori_shape=(SIDE, SIDE), pred_instances=dict(
            bboxes=torch.tensor(boxes, dtype=torch.float32), masks=masks, labels=torch.tensor(labels, dtype=torch.long),
            scores=torch.tensor(scores, dtype=torch.float32))))
    return samples


def evaluated(kind: type[BaseMetric], annotations: Path | None, samples: list[dict], **kwargs: Any) -> Any:
    """Returns the metric after an evaluation, with its `values`."""
    metric = kind(ann_file=annotations and str(annotations), **kwargs)
    metric.dataset_meta = dict(classes=CLASSES)
    metric.process({}, copy.deepcopy(samples))
    metric.values = metric.evaluate(len(samples))
    return metric


def compute(kind: type[BaseMetric], annotations: Path | None, samples: list[dict], **kwargs: Any) -> dict[str, float]:
    return evaluated(kind, annotations, samples, **kwargs).values
