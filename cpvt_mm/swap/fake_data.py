"""A batch for one step of any model of mmdet or mmseg: random images with what the config's pipeline would load."""
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.structures import PixelData
from torch import Tensor

from .channels import walk

Batch = dict[str, Any]
# Some heads take the best of so many cells that there must be as many.
SIDE = 256
LARGER_SIDES = {'SingleStageDetector': 320, 'DDOD': 416}  # for their kernels on the smallest maps
PERSON = (256, 128)  # networks for re-identification pool maps of this size
BATCH_SIZE = 2
NUM_BOXES = 4


def fake_batch(cfg: Config, training: bool, size: tuple[int, int] | None = None, batch_size: int = BATCH_SIZE,
               num_boxes: int = NUM_BOXES) -> Batch:
    """Images with annotations, as a data loader of the config would collate them.

    Args:
        cfg: The config.
        training: Whether it is for a step of training.
        size: Height and width of the images of detectors and segmentors; others get their own. Defaults to None: small.
        batch_size: Number of these. Defaults to 2.
        num_boxes: On every other image, from the first; one less on the rest. Defaults to 4.
    """
    if cfg.default_scope == 'mmseg':
        return _segmentation(cfg, size or (SIDE, SIDE), batch_size)
    kind = cfg.model.type.rpartition('.')[2]
    side = LARGER_SIDES.get(kind, SIDE)
    detection = functools.partial(_detection, size=size or (side, side), batch_size=batch_size, num_boxes=num_boxes)
    if kind == 'SoftTeacher' and training:
        batch = detection(cfg)
        return {key: dict.fromkeys(('sup', 'unsup_teacher', 'unsup_student'), value) for key, value in batch.items()}
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if preprocessor.get('type') == 'TrackDataPreprocessor' and not (training and preprocessor.get('use_det_processor')):
        return _video(cfg)
    return OTHER_TASKS.get(kind, detection)(cfg)


def num_classes(cfg: Config) -> int:
    """The smallest number of classes that any head of the config has; 1 for proposals alone."""
    found = (node[key] for _, node in walk(cfg.model) for key in ('num_classes', 'num_things_classes')
             if isinstance(node.get(key), int))
    return min(found, default=1)


def _loads(cfg: Config, transform: str) -> bool:
    return any(str(node.get('type')).rpartition('.')[2] == transform for _, node in walk(cfg.get('train_dataloader')))


def _detection(cfg: Config, size: tuple[int, int], batch_size: int, num_boxes: int) -> Batch:
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals
    has_stuff = _loads(cfg, 'LoadPanopticAnnotations') or any(
        node.get('with_seg') for _, node in walk(cfg.get('train_dataloader')))
    # HTC's labels of stuff come at an eighth of the image's size.
    stride = 8 if _loads(cfg, 'SegRescale') and 'semantic_head' not in cfg.model else 1
    batch = demo_mm_inputs(batch_size, (3, *size), num_items=[num_boxes - i % 2 for i in range(batch_size)],
                           num_classes=max(num_classes(cfg), 2), sem_seg_output_strides=stride, with_mask=True,
                           with_semantic=has_stuff)
    proposals = demo_mm_proposals([(3, *size)] * batch_size, 20)
    for sample, of_sample in zip(batch['data_samples'], proposals, strict=True):
        if _loads(cfg, 'LoadProposals'):
            sample.proposals = of_sample
        sample.set_metainfo(dict(batch_input_shape=size, pad_shape=size, scale_factor=(1., 1.),
                                 homography_matrix=np.eye(3, dtype=np.float32)))
        sample.gt_instances.labels %= num_classes(cfg)
    return batch


def _video(cfg: Config) -> Batch:
    from mmdet.testing import demo_track_inputs
    return demo_track_inputs(1, 2, key_frames_inds=[0], image_shapes=(3, SIDE, SIDE), num_items=[4],
                             num_classes=num_classes(cfg), with_mask=True)


def _persons(cfg: Config) -> Batch:
    """Four pictures of each of two persons, as triplets need them."""
    from mmdet.structures import ReIDDataSample
    samples = [ReIDDataSample(metainfo=dict(img_shape=PERSON, ori_shape=PERSON)) for _ in range(8)]
    for index, sample in enumerate(samples):
        sample.set_gt_label(index // 4)
    return dict(inputs=_images(len(samples), PERSON), data_samples=samples)


def _classification(cfg: Config) -> Batch:
    from mmpretrain.structures import DataSample
    return dict(inputs=_images(BATCH_SIZE), data_samples=[DataSample().set_gt_label(i) for i in range(BATCH_SIZE)])


def _segmentation(cfg: Config, size: tuple[int, int], batch_size: int) -> Batch:
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    metainfo = dict(img_shape=size, ori_shape=size, pad_shape=size, img_path='image.jpg')
    samples = []
    for _ in range(batch_size):
        labels = torch.randint(num_classes(cfg), (1, 1, 4, 4), generator=generator, dtype=torch.float)
        labels = F.interpolate(labels, size)[0].long()
        samples.append(SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=labels)))
    return dict(inputs=_images(batch_size, size), data_samples=samples)


def _images(number: int, size: Sequence[int] = (SIDE, SIDE)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (3, *size), generator=generator, dtype=torch.uint8) for _ in range(number)]


OTHER_TASKS: dict[str, Callable[[Config], Batch]] = {
    'BaseReID': _persons,
    'ImageClassifier': _classification,
}
