"""A batch for one step of any model of mmdet or mmseg: random images with what the config's pipeline would load."""
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
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


def fake_batch(cfg: Config, training: bool) -> Batch:
    """Two small images with annotations, as a data loader of the config would collate them."""
    if cfg.default_scope == 'mmseg':
        return _segmentation(cfg)
    kind = cfg.model.type.rpartition('.')[2]
    if kind == 'SoftTeacher' and training:
        batch = _detection(cfg)
        return {key: dict.fromkeys(('sup', 'unsup_teacher', 'unsup_student'), value) for key, value in batch.items()}
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if preprocessor.get('type') == 'TrackDataPreprocessor' and not (training and preprocessor.get('use_det_processor')):
        return _video(cfg)
    return OTHER_TASKS.get(kind, _detection)(cfg)


def num_classes(cfg: Config) -> int:
    """The smallest number of classes that any head of the config has; 1 for proposals alone."""
    found = (node[key] for _, node in walk(cfg.model) for key in ('num_classes', 'num_things_classes')
             if isinstance(node.get(key), int))
    return min(found, default=1)


def _loads(cfg: Config, transform: str) -> bool:
    return any(str(node.get('type')).rpartition('.')[2] == transform for _, node in walk(cfg.get('train_dataloader')))


def _detection(cfg: Config) -> Batch:
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals
    side = LARGER_SIDES.get(cfg.model.type.rpartition('.')[2], SIDE)
    has_stuff = _loads(cfg, 'LoadPanopticAnnotations') or any(
        node.get('with_seg') for _, node in walk(cfg.get('train_dataloader')))
    # HTC's labels of stuff come at an eighth of the image's size.
    stride = 8 if _loads(cfg, 'SegRescale') and 'semantic_head' not in cfg.model else 1
    batch = demo_mm_inputs(BATCH_SIZE, (3, side, side), num_items=[4, 3], num_classes=max(num_classes(cfg), 2),
                           sem_seg_output_strides=stride, with_mask=True, with_semantic=has_stuff)
    proposals = demo_mm_proposals([(3, side, side)] * BATCH_SIZE, 20)
    for sample, of_sample in zip(batch['data_samples'], proposals, strict=True):
        if _loads(cfg, 'LoadProposals'):
            sample.proposals = of_sample
        sample.set_metainfo(dict(batch_input_shape=(side, side), pad_shape=(side, side), scale_factor=(1., 1.),
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


def _segmentation(cfg: Config) -> Batch:
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    metainfo = dict(img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE), pad_shape=(SIDE, SIDE), img_path='image.jpg')
    samples = []
    for _ in range(BATCH_SIZE):
        labels = torch.randint(num_classes(cfg), (1, 4, 4), generator=generator)
        labels = labels.repeat_interleave(SIDE // 4, 1).repeat_interleave(SIDE // 4, 2)
        samples.append(SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=labels)))
    return dict(inputs=_images(BATCH_SIZE), data_samples=samples)


def _images(number: int, size: Sequence[int] = (SIDE, SIDE)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (3, *size), generator=generator, dtype=torch.uint8) for _ in range(number)]


OTHER_TASKS: dict[str, Callable[[Config], Batch]] = {
    'BaseReID': _persons,
    'ImageClassifier': _classification,
}
