"""Builds the model, the optimizer and a small batch of a config, and runs a training step and a prediction with them.
"""
import copy
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import set_random_seed
from mmengine.structures import PixelData
from torch import Tensor, nn

from cpvt_mm.models.backbone import Backbone
from openmmlab_tools.config_walk import walk
from openmmlab_tools.registry import in_scope

Batch = dict[str, Any]
# Some heads select a fixed number of the best cells, so the maps need at least as many.
SIDE = 256
LARGER_SIDES = {'SingleStageDetector': 320, 'DDOD': 416}  # needed by their kernels on the smallest maps
PERSON = (256, 128)  # re-identification networks pool maps of images of this size
BATCH_SIZE = 2
MOST_CLASSES = 1300


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


def random_batch(cfg: Config, size: tuple[int, int]) -> Batch:
    """Makes two images of `size` (height, width) with annotations, as a data loader of a detector's or segmentor's
    config would collate them.
    """
    if cfg.default_scope == 'mmseg':
        return _segmentation(cfg, size)
    from mmdet.testing import demo_mm_inputs, demo_mm_proposals
    has_stuff = _loads(cfg, 'LoadPanopticAnnotations') or any(
        node.get('with_seg') for _, node in walk(cfg.get('train_dataloader')))
    # HTC's labels of stuff come at an eighth of the image's size.
    stride = 8 if _loads(cfg, 'SegRescale') and 'semantic_head' not in cfg.model else 1
    batch: Batch = demo_mm_inputs(
        BATCH_SIZE, (3, *size), num_items=[4, 3], num_classes=max(_num_classes(cfg), 2),
        sem_seg_output_strides=stride, with_mask=True, with_semantic=has_stuff)
    proposals = demo_mm_proposals([(3, *size)] * BATCH_SIZE, 20)
    for sample, of_sample in zip(batch['data_samples'], proposals, strict=True):
        if _loads(cfg, 'LoadProposals'):
            sample.proposals = of_sample
        sample.set_metainfo(dict(batch_input_shape=size, pad_shape=size, scale_factor=(1., 1.),
                                 homography_matrix=np.eye(3, dtype=np.float32)))
        sample.gt_instances.labels %= _num_classes(cfg)
    return batch


def _segmentation(cfg: Config, size: tuple[int, int]) -> Batch:
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    metainfo = dict(img_shape=size, ori_shape=size, pad_shape=size, img_path='image.jpg')
    samples = []
    for _ in range(BATCH_SIZE):
        labels = torch.randint(_num_classes(cfg), (1, 1, 4, 4), generator=generator, dtype=torch.float)
        labels = F.interpolate(labels, size)[0].long()
        samples.append(SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=labels)))
    return dict(inputs=_images(BATCH_SIZE, size), data_samples=samples)


def _images(number: int, size: tuple[int, int]) -> list[Tensor]:
    """Makes images `(3, *size)`, uint8, the same in each call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (3, *size), generator=generator, dtype=torch.uint8) for _ in range(number)]


def _num_classes(cfg: Config) -> int:
    """Returns the smallest number of classes of all heads in the config; 1 if there are only proposals."""
    numbers = (node[key] for _, node in walk(cfg.model) for key in ('num_classes', 'num_things_classes')
               if isinstance(node.get(key), int))
    return min(numbers, default=1)


def _loads(cfg: Config, transform: str) -> bool:
    return any(str(node.get('type')).rpartition('.')[2] == transform for _, node in walk(cfg.get('train_dataloader')))


def small_batch(cfg: Config, training: bool) -> Batch:
    """Makes a few small images with annotations, as a data loader of the config would collate them."""
    kind = cfg.model.type.rpartition('.')[2]
    if kind == 'BaseReID':
        return _persons()
    if kind == 'ImageClassifier':
        from mmpretrain.structures import DataSample
        return dict(inputs=_images(BATCH_SIZE, (SIDE, SIDE)),
                    data_samples=[DataSample().set_gt_label(i) for i in range(BATCH_SIZE)])
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if preprocessor.get('type') == 'TrackDataPreprocessor' and not (training and preprocessor.get('use_det_processor')):
        from mmdet.testing import demo_track_inputs
        return demo_track_inputs(1, 2, key_frames_inds=[0], image_shapes=(3, SIDE, SIDE), num_items=[4],
                                 num_classes=_num_classes(cfg), with_mask=True)
    side = LARGER_SIDES.get(kind, SIDE)
    batch = random_batch(cfg, (side, side))
    if kind == 'SoftTeacher' and training:
        return {key: dict.fromkeys(('sup', 'unsup_teacher', 'unsup_student'), value) for key, value in batch.items()}
    return batch


def _persons() -> Batch:
    """Makes four images of each of two persons, as the triplet loss needs them."""
    from mmdet.structures import ReIDDataSample
    samples = [ReIDDataSample(metainfo=dict(img_shape=PERSON, ori_shape=PERSON)) for _ in range(8)]
    for index, sample in enumerate(samples):
        sample.set_gt_label(index // 4)
    return dict(inputs=_images(len(samples), PERSON), data_samples=samples)


def try_out(cfg: Config) -> None:
    """Runs a training step on two small images with the config's optimizer, if it has one, and predicts, on the CPU.

    Raises any error of the model, also if the loss or a weight of the backbone is not finite, or a stage or block does
    not learn.
    """
    cfg = _made_small(cfg)
    set_random_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = revert_sync_batchnorm(build_model(cfg))
        model.init_weights()
        for count in ('iter', 'epoch'):  # a runner does the same
            MessageHub.get_current_instance().update_info(count, 0)
        if cfg.get('optim_wrapper'):
            _train_step(model, cfg)
        model.eval()
        with torch.no_grad():
            predictions = model.test_step(small_batch(cfg, training=False))
    if not predictions:
        raise RuntimeError('The model predicts nothing, not even an empty result.')


def _train_step(model: BaseModel, cfg: Config) -> None:
    model.train()
    # Decay moves weights that learn nothing.
    optim_wrapper = build_plain_optim_wrapper(model, cfg, weight_decay=0.)
    parts = _backbone_parts(model)
    before = {name: [p.detach().clone() for p in parameters] for name, parameters in parts.items()}
    losses = model.train_step(small_batch(cfg, training=True), optim_wrapper)
    if not torch.isfinite(losses['loss']):
        raise FloatingPointError(f'The loss is {losses["loss"]}.')
    if not parts:
        raise RuntimeError('Nothing of the backbone learns.')
    for name, parameters in parts.items():
        if all(torch.equal(p, was) for p, was in zip(parameters, before[name], strict=True)):
            raise RuntimeError(f'The step leaves {name} as it is.')
        if not all(torch.isfinite(p).all() for p in parameters):
            raise FloatingPointError(f'The step leaves weights in {name} that are not finite.')


def _backbone_parts(model: BaseModel) -> dict[str, list[nn.Parameter]]:
    """Returns the parameters that must learn, for each stage or block of the new backbone, or for the whole old one."""
    modules = dict(model.named_modules())
    parts = {f'{name}.{module.parts}.{i}': part for name, module in modules.items() if isinstance(module, Backbone)
             for i, part in enumerate(module.get_submodule(module.parts).children())}
    if not parts:
        parts = {name: module for name, module in modules.items() if name.endswith('backbone') and 'reid' not in name}
    learning = {name: [p for p in part.parameters() if p.requires_grad] for name, part in parts.items()}
    return {name: parameters for name, parameters in learning.items() if parameters}


def _made_small(cfg: Config) -> Config:
    """Copies the config, with small images, and at most as many classes as NMS of random scores can handle."""
    cfg = copy.deepcopy(cfg)
    for _, node in walk(cfg.model):
        if isinstance(node.get('num_classes'), int):
            node['num_classes'] = min(node['num_classes'], MOST_CLASSES)
        if 'batch_augments' in node:
            node['batch_augments'] = None
        if str(node.get('type')).rpartition('.')[2] == 'SegDataPreProcessor' and node.get('size'):
            node['size'] = (SIDE, SIDE)
    return cfg
