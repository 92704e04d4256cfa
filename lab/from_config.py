"""Builds the model, the optimizer and a random batch of a config, for single steps without a runner."""
import copy
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from torch import Tensor

from openmmlab_runs.config_walk import walk
from openmmlab_runs.errors import UserError
from openmmlab_runs.registry import in_scope

Batch = dict[str, Any]
# Their samples have several images, or several views of an image.
OF_SEVERAL = ('MultiBranchDataPreprocessor', 'ReIDDataPreprocessor', 'TrackDataPreprocessor')


def build_model(cfg: Config) -> BaseModel:
    """Builds the model of a config, without any pretrained weights."""
    model_cfg = copy.deepcopy(cfg.model)
    for _, node in walk(model_cfg):
        for key in ('init_cfg', 'pretrained', 'teacher_ckpt'):
            if isinstance(node.get(key), str) or 'Pretrained' in str(node.get(key)):
                node[key] = None
    if cfg.get('data_preprocessor') and not model_cfg.get('data_preprocessor'):
        model_cfg['data_preprocessor'] = cfg.data_preprocessor
    with in_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return MODELS.build(model_cfg)


def build_plain_optim_wrapper(model: BaseModel, cfg: Config, **optimizer: float) -> OptimWrapper:
    """Builds the config's optimizer, without mixed precision and gradient accumulation."""
    wrapper = {key: value for key, value in cfg.optim_wrapper.items()
               if key not in ('type', 'loss_scale', 'dtype', 'accumulative_counts')}
    wrapper['optimizer'] = {**wrapper['optimizer'], **optimizer}
    with in_scope(cfg.get('default_scope')):
        return build_optim_wrapper(model, ConfigDict(type='OptimWrapper', **wrapper))


def random_batch(cfg: Config, size: tuple[int, int], batch_size: int, num_boxes: int) -> Batch:
    """Makes images of `size` (height, width) with annotations, as a data loader of a detector's or segmentor's config
    would collate them.

    The first, third, ... image has `num_boxes` boxes; the others have one less.
    """
    if cfg.default_scope == 'mmseg':
        return segmentation_batch(cfg, size, batch_size)
    preprocessor = str((cfg.model.get('data_preprocessor') or {}).get('type'))
    if cfg.default_scope != 'mmdet' or preprocessor.rpartition('.')[2] in OF_SEVERAL:
        raise UserError(f'the config (scope {cfg.default_scope}, preprocessor {preprocessor}) is not for a detector or '
                        'segmentor of single images: choose another.')
    return detection_batch(cfg, size, batch_size, num_boxes)


def detection_batch(cfg: Config, size: tuple[int, int], batch_size: int, num_boxes: int) -> Batch:
    """Makes a batch for a detector; see `random_batch`."""
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals
    has_stuff = _loads(cfg, 'LoadPanopticAnnotations') or any(
        node.get('with_seg') for _, node in walk(cfg.get('train_dataloader')))
    # HTC's labels of stuff come at an eighth of the image's size.
    stride = 8 if _loads(cfg, 'SegRescale') and 'semantic_head' not in cfg.model else 1
    batch: Batch = demo_mm_inputs(
        batch_size, (3, *size), num_items=[num_boxes - i % 2 for i in range(batch_size)],
        num_classes=max(num_classes(cfg), 2), sem_seg_output_strides=stride, with_mask=True, with_semantic=has_stuff)
    proposals = demo_mm_proposals([(3, *size)] * batch_size, 20)
    for sample, of_sample in zip(batch['data_samples'], proposals, strict=True):
        if _loads(cfg, 'LoadProposals'):
            sample.proposals = of_sample
        sample.set_metainfo(dict(batch_input_shape=size, pad_shape=size, scale_factor=(1., 1.),
                                 homography_matrix=np.eye(3, dtype=np.float32)))
        sample.gt_instances.labels %= num_classes(cfg)
    return batch


def segmentation_batch(cfg: Config, size: tuple[int, int], batch_size: int) -> Batch:
    """Makes a batch for a segmentor; see `random_batch`."""
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    metainfo = dict(img_shape=size, ori_shape=size, pad_shape=size, img_path='image.jpg')
    samples = []
    for _ in range(batch_size):
        labels = torch.randint(num_classes(cfg), (1, 1, 4, 4), generator=generator, dtype=torch.float)
        labels = F.interpolate(labels, size)[0].long()
        samples.append(SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=labels)))
    return dict(inputs=random_images(batch_size, size), data_samples=samples)


def random_images(number: int, size: tuple[int, int]) -> list[Tensor]:
    """Makes images `(3, *size)`, uint8, the same in each call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (3, *size), generator=generator, dtype=torch.uint8) for _ in range(number)]


def num_classes(cfg: Config) -> int:
    """Returns the smallest number of classes of all heads in the config; 1 if there are only proposals."""
    found = (node[key] for _, node in walk(cfg.model) for key in ('num_classes', 'num_things_classes')
             if isinstance(node.get(key), int))
    return min(found, default=1)


def _loads(cfg: Config, transform: str) -> bool:
    return any(str(node.get('type')).rpartition('.')[2] == transform for _, node in walk(cfg.get('train_dataloader')))
