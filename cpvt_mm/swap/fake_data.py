"""A batch for one step of any model of mmdet or mmseg: random images with what the config's pipeline would load."""
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import PixelData

from .channels import walk

SIDE = 128
BATCH_SIZE = 2
TRACKERS_OF_VIDEO = ('MaskTrackRCNN', 'Mask2FormerVideo', 'QDTrack')


def fake_batch(cfg: Config) -> dict[str, Any]:
    """Two images of 128 x 128 pixels with annotations, as a data loader of the config would collate them."""
    if cfg.default_scope == 'mmseg':
        return _segmentation(cfg)
    model = cfg.model.type.rpartition('.')[2]
    if model == 'SoftTeacher':
        batch = _detection(cfg)
        return {key: {branch: batch[key] for branch in ('sup', 'unsup_teacher', 'unsup_student')} for key in batch}
    if model == 'BaseReID':
        return _identities()
    if model in TRACKERS_OF_VIDEO:
        return _video(cfg)
    return _detection(cfg)


def _num_classes(cfg: Config) -> int:
    return min(node[key] for _, node in walk(cfg.model) for key in ('num_classes', 'num_things_classes')
               if isinstance(node.get(key), int))


def _loads(cfg: Config, transform: str) -> bool:
    return any(str(node.get('type')).rpartition('.')[2] == transform for _, node in walk(cfg.get('train_dataloader')))


def _detection(cfg: Config) -> dict[str, Any]:
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals
    has_stuff = _loads(cfg, 'LoadPanopticAnnotations') or any(
        node.get('with_seg') for _, node in walk(cfg.get('train_dataloader')))
    # HTC's labels of stuff come at an eighth of the image's size.
    stride = 8 if _loads(cfg, 'SegRescale') and 'semantic_head' not in cfg.model else 1
    batch = demo_mm_inputs(BATCH_SIZE, (3, SIDE, SIDE), num_items=[4, 3], num_classes=max(_num_classes(cfg), 2),
                           sem_seg_output_strides=stride, with_mask=True, with_semantic=has_stuff)
    samples = batch['data_samples']
    shapes = [(3, SIDE, SIDE)] * BATCH_SIZE
    for sample, proposals in zip(samples, demo_mm_proposals(shapes, 20), strict=True):
        sample.set_metainfo(dict(batch_input_shape=(SIDE, SIDE), pad_shape=(SIDE, SIDE), scale_factor=(1., 1.),
                                 homography_matrix=np.eye(3)))
        sample.gt_instances.labels %= _num_classes(cfg)
        sample.proposals = proposals
    return batch


def _video(cfg: Config) -> dict[str, Any]:
    from mmdet.testing import demo_track_inputs
    return demo_track_inputs(1, 2, key_frames_inds=[0], image_shapes=(3, SIDE, SIDE), num_items=[4],
                             num_classes=_num_classes(cfg), with_mask=True)


def _identities() -> dict[str, Any]:
    """Four pictures of each of two persons, as triplets need them."""
    from mmdet.structures import ReIDDataSample
    generator = torch.Generator().manual_seed(0)
    samples = [ReIDDataSample(metainfo=dict(img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE))) for _ in range(8)]
    for index, sample in enumerate(samples):
        sample.set_gt_label(index // 4)
    return dict(inputs=[_image(generator) for _ in samples], data_samples=samples)


def _segmentation(cfg: Config) -> dict[str, Any]:
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    metainfo = dict(img_shape=(SIDE, SIDE), ori_shape=(SIDE, SIDE), pad_shape=(SIDE, SIDE), img_path='image.jpg')
    samples = []
    for _ in range(BATCH_SIZE):
        labels = np.kron(torch.randint(_num_classes(cfg), (4, 4), generator=generator), np.ones((32, 32), np.int64))
        samples.append(SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=torch.from_numpy(labels)[None])))
    return dict(inputs=[_image(generator) for _ in samples], data_samples=samples)


def _image(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(256, (3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
