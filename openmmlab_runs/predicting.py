"""Predicts and paints boxes, masks and label maps of any images, with the inferencers of mmdet and mmseg."""
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

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
from .engine.painting import are_legible, hide_texts_at_will, labelled, size_to_image
from .errors import UserError, explain
from .images import check_regular, read_image, size_as_loaded

INFERENCERS = {'mmdet': 'DetInferencer', 'mmseg': 'MMSegInferencer'}
# A photo of most cameras. A segmentor needs memory for all classes at all pixels of the file: 10 GB for the 150 classes
# of ADE20K, also in windows (mode 'slide').
MAX_PIXELS = 16_000_000


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
    """
    size: tuple[int, int]
    classes: tuple[str, ...]
    boxes: np.ndarray | None = None
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    masks: list[dict[str, Any]] | None = None
    label_map: np.ndarray | None = None


def predict(images: str | Path | np.ndarray | Iterable[str | Path | np.ndarray], config: str | Path,
            checkpoint: str | Path, device: str | None = None, batch_size: int = 1) -> list[Prediction]:
    """Predicts with a detector of mmdet, all boxes, also those with low scores, or with a segmentor of mmseg.

    For several calls with one model, call `build_inferencer` once, and `infer` for each. Threads take turns.

    Args:
        images: An image, or any number of them: paths, or arrays of `(H, W, 3)`, RGB, uint8, of any sizes.
        config: The file that the model was trained with.
        checkpoint: Path or URL.
        device: A device such as 'cpu' or 'cuda:1'. Defaults to None: the one that mmengine finds.
        batch_size: How many images are predicted together. Defaults to 1.

    Raises:
        UserError: If the model cannot be built, or an image cannot be read or predicted.
    """
    if isinstance(images, str | Path | np.ndarray):
        images = [images]
    return list(infer(build_inferencer(load_config(config), checkpoint, device), images, batch_size))


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
        visualize = inferencer.visualize  # it would paint on BGR what it predicts for BGR
        inferencer.visualize = lambda inputs, *args, **kwargs: visualize(
            [mmcv.bgr2rgb(one) if isinstance(one, np.ndarray) else one for one in inputs], *args, **kwargs)
        if not trained_classes(content):  # it would take those of COCO or of Cityscapes
            metainfo = build_unread(cfg.test_dataloader.dataset).metainfo
            # mmdet reads the one, mmseg the other.
            inferencer.visualizer.dataset_meta = inferencer.model.dataset_meta = {
                key: metainfo.get(key) for key in ('classes', 'palette')}
    if scope == 'mmdet':
        inferencer.visualizer.dataset_meta = labelled(inferencer.model.dataset_meta)
        hide_texts_at_will(inferencer.visualizer)
    return inferencer


def infer(inferencer: BaseInferencer, images: Iterable[str | Path | np.ndarray], batch_size: int = 1
          ) -> Iterator[Prediction]:
    """Yields the prediction of each image, in their order; see `predict`. Only neighbours of one size are predicted
    together, without padding, so that predictions do not depend on `batch_size`.
    """
    if batch_size < 1:
        raise UserError(f'batch_size is {batch_size}, but must be at least 1.')
    sized = ((image, _size(image)) for image in images)
    for size, neighbours in groupby(sized, key=lambda pair: pair[1]):
        while batch := [image for image, _ in islice(neighbours, batch_size)]:
            inputs = [_input(inferencer, image) for image in batch]
            yield from _run(inferencer, batch, inputs, size)[0]


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


def _input(inferencer: BaseInferencer, image: str | Path | np.ndarray, pixels: np.ndarray | None = None
           ) -> np.ndarray | str:
    """Returns the pixels of an image, BGR, or its path if the config's loader wants more, as a fourth channel."""
    if isinstance(image, np.ndarray):
        return mmcv.rgb2bgr(image)
    loaders = [part.from_file for part in inferencer.pipeline.transforms if hasattr(part, 'from_file')]
    if any((loader.color_type, loader.imdecode_backend) != ('color', 'cv2') for loader in loaders):
        return str(image)
    return mmcv.rgb2bgr(read_image(image) if pixels is None else pixels)


def _run(inferencer: BaseInferencer, images: list[str | Path | np.ndarray], inputs: list[np.ndarray | str],
         size: tuple[int, int], **options: Any) -> tuple[list[Prediction], list[np.ndarray]]:
    try:
        with in_scope(inferencer.scope):
            found = inferencer(inputs, batch_size=len(inputs), **options)
        # mmseg returns a single image without a list.
        found, painted = (value if isinstance(value, list) else [value]
                          for value in (found['predictions'], found['visualization']))
        classes = trained_classes(dict(meta=dict(dataset_meta=inferencer.model.dataset_meta)))
        return [_to_prediction(one, size, tuple(classes)) for one in found], painted
    except UserError:
        raise
    except Exception as error:  # models can raise any error, such as for a line of one pixel
        array = f'of {size[0]} x {size[1]} pixels (height x width)'
        names = ', '.join(dict.fromkeys(array if isinstance(image, np.ndarray) else str(image) for image in images))
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


def paint(inferencer: BaseInferencer, path: str | Path, labels: bool = True, score_thr: float = 0.3,
          max_pixels: int = MAX_PIXELS) -> tuple[np.ndarray, Prediction]:
    """Paints the prediction on an image file; returns `(H, W, 3)` RGB, uint8, and the whole prediction.

    Args:
        inferencer: See `build_inferencer`.
        path: The image.
        labels: Whether to write class names and scores, if they are legible on the image. Defaults to True.
        score_thr: Only boxes and masks with a score above it are painted. Defaults to 0.3, as in mmdet.
        max_pixels: An image with more is a UserError. Defaults to 16 million.
    """
    image, visualizer = read_image(path, max_pixels=max_pixels), inferencer.visualizer
    is_detector = inferencer.scope == 'mmdet'
    options = dict(pred_score_thr=score_thr) if is_detector else dict(with_labels=labels and are_legible(image))
    with in_scope(inferencer.scope):
        if is_detector:
            size_to_image(visualizer, image)
            visualizer.hides_texts = not labels
        predictions, painted = _run(inferencer, [path], [_input(inferencer, path, image)], image.shape[:2],
                                    return_vis=True, **options)
    return painted[0], predictions[0]
