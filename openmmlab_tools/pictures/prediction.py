"""Predictions for images, and what people make of them: pictures, COCO's layout, supervision."""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from mmengine.structures import BaseDataElement
from pycocotools import mask as coco_mask
from torch import Tensor

from openmmlab_tools.choices import SCORE_THR as SCORE_THR
from openmmlab_tools.errors import UserError, check_range, did_you_mean
from openmmlab_tools.files import write_image

from .bands import read_view, to_view
from .painting import ALPHA, paint_boxes, paint_label_map

Picture: TypeAlias = str | Path | np.ndarray  # a file, or pixels
# A score, or scores by class name. The key '' is the score for classes that are not named; its default is SCORE_THR.
ScoreThr: TypeAlias = float | Mapping[str, float]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image: boxes (and masks, if the detector has them), or the label map of a segmentor.

    Attributes:
        size: Height and width of the image, in pixels.
        classes: The names of the classes, in the order of their labels.
        boxes: `(N, 4)`, float32: left, top, right and bottom, in pixels. None from a segmentor.
        labels: `(N,)`, int64: the index of each box's class in `classes`. None from a segmentor.
        scores: `(N,)`, float32, from 0 to 1. None from a segmentor, and for annotations.
        masks: A mask for each box as RLE, `dict(size=[H, W], counts='...')`, which `pycocotools.mask.decode(masks)`
            decodes to `(H, W, N)`, uint8. None from models without masks.
        label_map: `(H, W)`, whole numbers: the index in `classes` at each pixel. None from a detector.
        name: The name of the image; `clip.mp4_000001` for a frame.
        image: The path of the image, or its pixels, `(H, W, 3)`, RGB, uint8, or `(H, W, C)` of more channels or bits.
        palette: The RGB colour of each class, if the dataset has one.
        score_thr: Boxes with a score above this value are drawn. A number, or a dict by class name (see `above`). If
            a test of the checkpoint has written scores with the best F1, `predict` sets these. Defaults to 0.3.
    """
    size: tuple[int, int]
    classes: tuple[str, ...]
    boxes: np.ndarray | None = None
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    masks: list[dict[str, Any]] | None = None
    label_map: np.ndarray | None = None
    name: str = 'image'
    image: Picture | None = field(default=None, repr=False)
    palette: Any = field(default=None, repr=False)
    score_thr: ScoreThr = SCORE_THR

    def above(self, score_thr: ScoreThr | None = None) -> 'Prediction':
        """Returns the prediction with only the boxes (and their masks) whose score is above a threshold.

        Args:
            score_thr: A score, or a dict of scores by class name. In a dict, the key '' is the score for all other
                classes; without it, their score is 0.3. Defaults to None: the attribute `score_thr`. Label maps have no
                scores and stay unchanged.

        Raises:
            UserError: If the model has no class with a name in the dict.
        """
        if self.labels is None or self.scores is None:
            return self
        least = least_scores(self.score_thr if score_thr is None else score_thr, self.classes)
        return self.take(np.flatnonzero(self.scores > least[self.labels]))

    def take(self, indices: np.ndarray) -> 'Prediction':
        """Returns the prediction of a detector with only some of its boxes, by their indices."""
        assert self.boxes is not None and self.labels is not None and self.scores is not None
        return replace(self, boxes=self.boxes[indices], labels=self.labels[indices], scores=self.scores[indices],
                       masks=None if self.masks is None else [self.masks[i] for i in indices])

    def plot(self, score_thr: ScoreThr | None = None, labels: bool = True, alpha: float = ALPHA) -> np.ndarray:
        """Paints the prediction on its image, which is read again if it is a file; see `to_view`.

        Args:
            score_thr: Only boxes and masks with a score above it are painted; see `above`. Defaults to None: the
                attribute `score_thr`.
            labels: Whether to write class names and scores, if they are legible on the image. Defaults to True.
            alpha: How much of a label map covers the image, from 0 to 1. Defaults to 0.8.

        Returns:
            `(H, W, 3)`, RGB, uint8.
        """
        if self.image is None:
            raise UserError(f'the prediction {self.name} has no image to draw on: set its image, as predict() does.')
        check_range('alpha', alpha, 0, 1)
        image = to_view(self.image) if isinstance(self.image, np.ndarray) else read_view(self.image)
        if self.label_map is not None:
            return paint_label_map(image, self.label_map, self.classes, labels, self.palette, alpha)
        shown = self.above(score_thr)
        assert shown.boxes is not None and shown.labels is not None
        return paint_boxes(image, shown.boxes, shown.labels, self.classes if labels else (), shown.scores, shown.masks,
                           self.palette)

    def save(self, path: str | Path, score_thr: ScoreThr | None = None, labels: bool = True) -> None:
        """Writes what `plot` paints, as JPEG if the path ends in .jpg, or as PNG if it ends in .png.

        Raises:
            UserError: If it ends in something else.
        """
        if Path(path).suffix not in ('.jpg', '.png'):
            raise UserError(f'{path} ends in neither .png nor .jpg: choose one of them.')
        write_image(Path(path), self.plot(score_thr, labels))

    def to_coco(self) -> dict[str, list[dict[str, Any]]]:
        """Returns all boxes and masks in COCO's layout; see the function `to_coco`."""
        return to_coco({self.name: self})

    def to_supervision(self) -> Any:
        """Returns all boxes as `supervision.Detections`, with masks, and with `class_name` in `data`.

        Raises:
            ImportError: If supervision is not installed.
            UserError: If this is a label map.
        """
        from supervision import Detections
        if self.boxes is None or self.labels is None:
            raise UserError(f'the prediction of {self.name} is a label map, which supervision does not support: use '
                            'its label_map.')
        masks = coco_mask.decode(self.masks).transpose(2, 0, 1).astype(bool) if self.masks else None
        return Detections(self.boxes, mask=masks, confidence=self.scores, class_id=self.labels,
                          data=dict(class_name=np.array(self.classes)[self.labels]))


def of_sample(sample: BaseDataElement, size: tuple[int, int], metainfo: Mapping[str, Any], kind: str = 'pred',
              **more: Any) -> Prediction | None:
    """Returns what a data sample of mmdet or mmseg has for an image of a height and width: predictions, or annotations
    for the kind 'gt'; None if there are neither boxes nor a label map. `more` are further attributes.
    """
    made = partial(Prediction, size, tuple(metainfo.get('classes') or ()), palette=metainfo.get('palette'), **more)
    part = sample.get(f'{kind}_sem_seg')
    if part is not None and 'data' in part:  # mmdet's has none
        label_map = part.data[0].numpy(force=True)
        return made(label_map=label_map.astype(np.min_scalar_type(int(label_map.max()))))
    part = sample.get(f'{kind}_track_instances', sample.get(f'{kind}_instances'))
    if part is None or 'bboxes' not in part:
        return None
    masks, scores = part.get('masks'), part.get('scores')
    if masks is not None:
        bits = masks.numpy(force=True) if isinstance(masks, Tensor) else masks.to_ndarray()
        masks = [coco_mask.encode(np.asfortranarray(mask, np.uint8)) for mask in bits]
        masks = [dict(mask, counts=mask['counts'].decode()) for mask in masks]
    boxes = getattr(part.bboxes, 'tensor', part.bboxes)
    return made(boxes=boxes.float().numpy(force=True), labels=part.labels.numpy(force=True), masks=masks,
                scores=None if scores is None else scores.float().numpy(force=True))


def check_score_thr(score_thr: ScoreThr) -> None:
    """Raises a UserError unless a threshold, or all thresholds by class, are numbers from 0 to 1."""
    for name, score in score_thr.items() if isinstance(score_thr, Mapping) else [('', score_thr)]:
        if not isinstance(name, str):
            raise UserError(f'score_thr has the key {name!r}, but its keys must be names of classes: correct it.')
        check_range(f'score_thr of {name}' if name else 'score_thr', score, 0, 1)


def least_scores(score_thr: ScoreThr, classes: Sequence[str]) -> np.ndarray:
    """Returns the threshold of each class, `(C,)`; see `Prediction.above`."""
    check_score_thr(score_thr)
    thresholds = score_thr if isinstance(score_thr, Mapping) else {'': score_thr}
    for name in thresholds:
        if name and name not in classes:
            raise UserError(f'score_thr contains {name}, but the model has no such class'
                            f'{did_you_mean(name, classes)}: name a class of the model, or pass a number.')
    # The same dtype as the scores, so that a score equal to the threshold is not above it.
    return np.array([thresholds.get(name, thresholds.get('', SCORE_THR)) for name in classes], np.float32)


def to_coco(predictions: Mapping[str, Prediction]) -> dict[str, list[dict[str, Any]]]:
    """Converts a detector's predictions, by image name, to COCO's layout, with a `score` in each annotation.

    Ids begin with 1. Images have the order of `predictions`, and categories the order of the labels. `loadRes` of
    pycocotools can read the annotations. Raises a UserError for a label map.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    classes: tuple[str, ...] = ()
    masks: Sequence[dict[str, Any] | None]
    for index, (name, prediction) in enumerate(predictions.items(), start=1):
        if prediction.boxes is None or prediction.labels is None or prediction.scores is None:
            raise UserError(f"the prediction of {name} is a label map, which COCO's layout does not contain: pass "
                            'predictions of a detector.')
        classes = prediction.classes
        masks = [None] * len(prediction.boxes) if prediction.masks is None else prediction.masks
        images.append(dict(id=index, file_name=name, height=prediction.size[0], width=prediction.size[1]))
        for box, label, score, mask in zip(prediction.boxes.astype(float), prediction.labels.tolist(),
                                           prediction.scores.tolist(),
                                           masks, strict=True):
            left, top, width, height = [round(value, 2) for value in (*box[:2], *(box[2:] - box[:2]))]
            annotations.append(dict(
                id=len(annotations) + 1, image_id=index, category_id=label + 1, bbox=[left, top, width, height],
                area=round(width * height, 2) if mask is None else int(coco_mask.area(mask)), iscrowd=0,
                score=round(score, 5), **({} if mask is None else dict(segmentation=mask))))
    return dict(images=images, annotations=annotations,
                categories=[dict(id=index, name=name) for index, name in enumerate(classes, start=1)])
