"""Predicts and paints boxes, masks and label maps of any images, with the inferencers of mmdet and mmseg."""
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.infer import BaseInferencer
from PIL import Image
from pycocotools import mask as coco_mask

from openmmlab_runs.registry import in_scope

from .checkpoints.comparing import check_fits, state_dict_of
from .checkpoints.reading import check_device, read_checkpoint, readable
from .data.datasets import build_unread
from .engine import load_config
from .engine.checks import trained_classes
from .engine.painting import are_legible, paint_boxes, paint_label_map
from .errors import UserError, did_you_mean, explain
from .files import write_image
from .images import MAX_PIXELS, check_regular, read_image, size_as_loaded
from .sources import Picture, Source, images_of, never_ends
from .texts import label as drawn_name

INFERENCERS = {'mmdet': 'DetInferencer', 'mmseg': 'MMSegInferencer'}
SCORE_THR = 0.3  # as in mmdet
# A score, or scores by the names of classes; classes that are not named have SCORE_THR.
ScoreThr: TypeAlias = float | Mapping[str, float]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image: boxes and perhaps masks of a detector, or the label map of a segmentor.

    Attributes:
        size: Height and width of the image, in pixels.
        classes: The names of the classes, in the order of their labels.
        boxes: `(N, 4)`, float32: left, top, right and bottom, in pixels; as the next two, None from a segmentor.
        labels: `(N,)`, int64: the index of each box in `classes`.
        scores: `(N,)`, float32, from 0 to 1.
        masks: A mask for each box as RLE, `dict(size=[H, W], counts='...')`, which `pycocotools.mask.decode(masks)`
            decodes to `(H, W, N)`, uint8. None from models without masks.
        label_map: `(H, W)`, whole numbers: the index in `classes` at each pixel. None from a detector.
        name: The name of the image; `clip.mp4_000001` for a frame.
        image: The path of the image, or its pixels, `(H, W, 3)`, RGB, uint8.
        palette: The RGB colour of each class, if the dataset has one.
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

    def above(self, score_thr: ScoreThr = SCORE_THR) -> 'Prediction':
        """Returns the prediction with only those boxes, and their masks, whose score is above a threshold.

        Args:
            score_thr: A score, or a dict with scores by the names of classes, in which a class that is not named has
                0.3. Defaults to 0.3. A label map has no scores, and stays.

        Raises:
            UserError: If the model has no class of a name.
        """
        if self.boxes is None or self.labels is None or self.scores is None:
            return self
        return self.take(np.flatnonzero(self.scores > least_scores(score_thr, self.classes)[self.labels]))

    def take(self, indices: np.ndarray) -> 'Prediction':
        """Returns the prediction of a detector with only some of its boxes, by their indices."""
        assert self.boxes is not None and self.labels is not None and self.scores is not None
        return replace(self, boxes=self.boxes[indices], labels=self.labels[indices], scores=self.scores[indices],
                       masks=None if self.masks is None else [self.masks[i] for i in indices])

    def plot(self, score_thr: ScoreThr = SCORE_THR, labels: bool = True) -> np.ndarray:
        """Paints the prediction on its image, which is read again if it is a file.

        Args:
            score_thr: Only boxes and masks with a score above it are painted; see `above`. Defaults to 0.3.
            labels: Whether to write class names and scores, if they are legible on the image. Defaults to True.

        Returns:
            `(H, W, 3)`, RGB, uint8.
        """
        assert self.image is not None, 'predict() sets it'
        image = self.image if isinstance(self.image, np.ndarray) else read_image(self.image)
        if self.label_map is not None:
            names = [drawn_name(name) if labels and are_legible(image) else '' for name in self.classes]
            return paint_label_map(image, self.label_map, names, self.palette)
        shown = self.above(score_thr)
        assert shown.boxes is not None and shown.labels is not None and shown.scores is not None
        texts = [f'{drawn_name(self.classes[label])}: {100 * score:.1f}' if labels else ''
                 for label, score in zip(shown.labels, shown.scores, strict=True)]
        return paint_boxes(image, shown.boxes, shown.labels, texts, shown.masks, self.palette)

    def save(self, path: str | Path, score_thr: ScoreThr = SCORE_THR, labels: bool = True) -> None:
        """Writes what `plot` paints, as JPEG if the path ends in .jpg, or as PNG if it ends in .png.

        Raises:
            UserError: If it ends in something else.
        """
        if Path(path).suffix not in ('.jpg', '.png'):
            raise UserError(f'{path} ends in neither .png nor .jpg: choose one of them.')
        write_image(Path(path), self.plot(score_thr, labels))

    def to_coco(self) -> dict[str, list[dict[str, Any]]]:
        """Returns all boxes of a detector, and their masks, in COCO's layout; see the function `to_coco`."""
        return to_coco({self.name: self})

    def to_supervision(self) -> Any:
        """Returns all boxes of a detector as `supervision.Detections`, with masks and, in `data`, `class_name`.

        Raises:
            UserError: If supervision is not installed, or this is a label map.
        """
        if self.boxes is None or self.labels is None:
            raise UserError(f'the prediction of {self.name} is a label map, which supervision does not hold: use '
                            'label_map.')
        try:
            from supervision import Detections
        except ImportError as error:
            raise UserError('Prediction.to_supervision needs a package that is not installed: pip install supervision.'
                            ) from error
        masks = coco_mask.decode(self.masks).transpose(2, 0, 1).astype(bool) if self.masks else None
        return Detections(self.boxes, mask=masks, confidence=self.scores, class_id=self.labels,
                          data=dict(class_name=np.array(self.classes)[self.labels]))


def least_scores(score_thr: ScoreThr, classes: Sequence[str]) -> np.ndarray:
    """Returns the threshold of each class, `(C,)`; see `Prediction.above`."""
    thresholds = score_thr if isinstance(score_thr, Mapping) else dict.fromkeys(classes, score_thr)
    for name in thresholds:
        if name not in classes:
            raise UserError(f'score_thr has a score for {name}, which is no class of the model'
                            f'{did_you_mean(name, classes)}: name one of its classes, or give a number.')
    # Of the type of scores, so that none is above itself.
    return np.array([thresholds.get(name, SCORE_THR) for name in classes], np.float32)


@overload
def predict(images: Source, config: str | Path, checkpoint: str | Path, device: str | None = None,
            batch_size: int = 1, *, score_thr: ScoreThr | None = None, urls: bool = False,
            stream: Literal[False] = False) -> list[Prediction]: ...
@overload
def predict(images: Source, config: str | Path, checkpoint: str | Path, device: str | None = None,
            batch_size: int = 1, *, score_thr: ScoreThr | None = None, urls: bool = False,
            stream: Literal[True]) -> Iterator[Prediction]: ...
def predict(images: Source, config: str | Path, checkpoint: str | Path, device: str | None = None, batch_size: int = 1,
            *, score_thr: ScoreThr | None = None, urls: bool = False, stream: bool = False
            ) -> list[Prediction] | Iterator[Prediction]:
    """Predicts with a detector of mmdet or a segmentor of mmseg.

    For several calls with one model, call `build_inferencer` once, and `infer` for each. Threads take turns.

    Args:
        images: A path, a folder, a pattern, an address, a video, the number of a camera, an image of Pillow, an array,
            a tensor, or any number of them; see `openmmlab_runs.sources.images_of`.
        config: The file that the model was trained with.
        checkpoint: Path or URL.
        device: A device such as 'cpu' or 'cuda:1'. Defaults to None: the one that mmengine finds.
        batch_size: How many images are predicted together. Defaults to 1.
        score_thr: Boxes with a score above it are returned; see `Prediction.above`. Defaults to None: all.
        urls: Whether to fetch images from addresses. Defaults to False.
        stream: Whether to return an iterator, which reads and predicts only what is asked for, such as the frames of a
            camera or of a long video. Defaults to False: a list.

    Raises:
        UserError: If the model cannot be built, or an image cannot be read or predicted.
    """
    if never_ends(images) and not stream:
        raise UserError(f'the images of camera {images} do not end: pass stream=True.')
    found = infer(build_inferencer(load_config(config), checkpoint, device), images, batch_size, score_thr, urls)
    return found if stream else list(found)


def build_inferencer(cfg: Config, checkpoint: str | Path, device: str | None = None) -> BaseInferencer:
    """Builds the inferencer of a config's library, without a progress bar; `cfg` from `load_config` is changed in
    place. Classes are named as in the checkpoint, or else as in the config's test dataset.

    Raises:
        UserError: If the config is for another library, the device cannot be used, or the checkpoint does not fit.
    """
    scope, device = cfg.default_scope, device or get_device()
    if scope not in INFERENCERS:
        raise UserError(f'config {cfg.filename} is for {scope}, but only predictions of {" and ".join(INFERENCERS)} '
                        'can be made here: run cpvt_mm test with --show-dir.')
    check_device('device', device)
    if cfg.get('visualizer'):
        cfg.visualizer.vis_backends = None  # only the caller writes files
    with in_scope(scope):
        content = read_checkpoint(checkpoint)
        state_dict_of(content, checkpoint)  # the inferencer would fail in other words
        cls = getattr(importlib.import_module(f'{scope}.apis'), INFERENCERS[scope])
        with readable(checkpoint) as local:
            inferencer = cls(cfg, local, device=device)
        check_fits(inferencer.model, checkpoint, content)  # it has loaded the weights that fit, and ignored the others
        inferencer.show_progress = False
        if not trained_classes(content):  # it would take those of COCO or of Cityscapes
            metainfo = build_unread(cfg.test_dataloader.dataset).metainfo
            # mmdet reads the one, mmseg the other.
            inferencer.visualizer.dataset_meta = inferencer.model.dataset_meta = {
                key: metainfo.get(key) for key in ('classes', 'palette')}
    take_sizes = getattr(inferencer.model.data_preprocessor, 'take_several_sizes', None)
    inferencer.takes_several_sizes = bool(take_sizes and take_sizes(inferencer.model))
    return inferencer


class _Sized(NamedTuple):
    name: str
    image: Picture
    size: tuple[int, int]
    pixels: np.ndarray | None = None  # of a file that is read already


def infer(inferencer: BaseInferencer, images: Source, batch_size: int = 1, score_thr: ScoreThr | None = None,
          urls: bool = False) -> Iterator[Prediction]:
    """Yields the prediction of each image, in their order; see `predict`.

    Predictions do not depend on `batch_size`: images of several sizes are predicted together only if the model can do
    so without a difference (`padding='exact'`, a data preprocessor of cpvt_mm, and parts that
    `cpvt_mm.make_batch_invariant` knows), and else neighbours of one size.
    """
    if batch_size < 1:
        raise UserError(f'batch_size is {batch_size}, but must be at least 1.')
    sized = (_Sized(*named, _size(named.image)) for named in images_of(images, urls))
    for _, neighbours in groupby(sized, key=lambda one: None if inferencer.takes_several_sizes else one.size):
        while batch := [*islice(neighbours, batch_size)]:
            for found in _run(inferencer, batch):
                yield found if score_thr is None else found.above(score_thr)


def _size(image: str | Path | np.ndarray) -> tuple[int, int]:
    if not isinstance(image, np.ndarray):
        try:
            check_regular(image)
            with Image.open(image) as header:
                return size_as_loaded(header)
        except Exception:  # `read_image` says why
            return read_image(image).shape[:2]
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise UserError(f'an image has shape {image.shape} and type {image.dtype}, but must be (H, W, 3), RGB, uint8: '
                        'convert it.')
    return image.shape[:2]


def _input(inferencer: BaseInferencer, one: _Sized) -> np.ndarray | str:
    """Returns the pixels of an image, BGR, or its path if the config's loader wants more, as a fourth channel."""
    if isinstance(one.image, np.ndarray):
        return mmcv.rgb2bgr(one.image)
    loaders = [part.from_file for part in inferencer.pipeline.transforms if hasattr(part, 'from_file')]
    if any((loader.color_type, loader.imdecode_backend) != ('color', 'cv2') for loader in loaders):
        return str(one.image)
    return mmcv.rgb2bgr(read_image(one.image) if one.pixels is None else one.pixels)


def _run(inferencer: BaseInferencer, batch: Sequence[_Sized]) -> list[Prediction]:
    """Predicts a batch of images, of one size unless the model takes several."""
    inputs = [_input(inferencer, one) for one in batch]
    meta = inferencer.model.dataset_meta
    classes = tuple(trained_classes(dict(meta=dict(dataset_meta=meta))))
    try:
        with in_scope(inferencer.scope):
            found = inferencer(inputs, batch_size=len(inputs))['predictions']
        found = found if isinstance(found, list) else [found]  # mmseg returns a single image without a list
        return [replace(_to_prediction(result, one.size, classes), name=one.name, image=one.image,
                        palette=meta.get('palette')) for result, one in zip(found, batch, strict=True)]
    except UserError:
        raise
    except Exception as error:  # models can raise any error, such as for a line of one pixel
        names = ', '.join(dict.fromkeys(
            f'of {one.size[0]} x {one.size[1]} pixels (height x width)' if isinstance(one.image, np.ndarray)
            else str(one.image) for one in batch))
        raise UserError(f'image {names} cannot be predicted ({explain(error)}): scale it, or leave '
                        'it out.') from error


def _to_prediction(found: Any, size: tuple[int, int], classes: tuple[str, ...]) -> Prediction:
    """Converts what the inferencer of mmseg (an array) or of mmdet (a dict of lists) returns for an image."""
    if isinstance(found, np.ndarray):
        return Prediction(size, classes, label_map=found.astype(np.min_scalar_type(int(found.max()))))
    return Prediction(size, classes, np.array(found['bboxes'], np.float32).reshape(-1, 4), np.array(
        found['labels'], np.int64), np.array(found['scores'], np.float32), found.get('masks'))


def to_coco(predictions: Mapping[str, Prediction]) -> dict[str, list[dict[str, Any]]]:
    """Returns predictions of a detector by names of images in COCO's layout, with a `score` for each annotation.

    Ids count from 1: images as given, categories as the labels. `loadRes` of pycocotools reads the annotations.
    """
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    classes: tuple[str, ...] = ()
    masks: Sequence[dict[str, Any] | None]
    for index, (name, found) in enumerate(predictions.items(), start=1):
        if found.boxes is None or found.labels is None or found.scores is None:
            raise UserError(f'the prediction of {name} is a label map, which COCO does not hold: pass predictions of a '
                            'detector.')
        classes = found.classes
        masks = [None] * len(found.boxes) if found.masks is None else found.masks
        images.append(dict(id=index, file_name=name, height=found.size[0], width=found.size[1]))
        for box, label, score, mask in zip(found.boxes.astype(float), found.labels.tolist(), found.scores.tolist(),
                                           masks, strict=True):
            left, top, width, height = [round(value, 2) for value in (*box[:2], *(box[2:] - box[:2]))]
            annotations.append(dict(
                id=len(annotations) + 1, image_id=index, category_id=label + 1, bbox=[left, top, width, height],
                area=round(width * height, 2) if mask is None else int(coco_mask.area(mask)), iscrowd=0,
                score=round(score, 5), **({} if mask is None else dict(segmentation=mask))))
    return dict(images=images, annotations=annotations,
                categories=[dict(id=index, name=name) for index, name in enumerate(classes, start=1)])


def paint(inferencer: BaseInferencer, image: Picture, labels: bool = True, score_thr: ScoreThr = SCORE_THR,
          max_pixels: int = MAX_PIXELS) -> tuple[np.ndarray, Prediction]:
    """Paints the prediction on an image; returns `(H, W, 3)`, RGB, uint8, and the whole prediction.

    Args:
        inferencer: See `build_inferencer`.
        image: The path, or pixels as in `predict`.
        labels: Whether to write class names and scores, if they are legible on the image. Defaults to True.
        score_thr: Only boxes and masks with a score above it are painted; see `Prediction.above`. Defaults to 0.3.
        max_pixels: A file with more is a UserError. Defaults to 16 million.
    """
    pixels = image if isinstance(image, np.ndarray) else read_image(image, max_pixels=max_pixels)
    name = 'image' if isinstance(image, np.ndarray) else Path(image).name
    found, = _run(inferencer, [_Sized(name, image, pixels.shape[:2], pixels)])
    return replace(found, image=pixels).plot(score_thr, labels), found
