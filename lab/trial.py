"""Runs a training step and a prediction with the model of any config of mmdet or mmseg, on small batches."""
import copy
import warnings

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.registry import DefaultScope
from mmengine.runner import set_random_seed
from torch import nn

from cpvt_mm.models.backbone import Backbone
from lab import from_config
from openmmlab_runs.config_walk import walk

# Some heads select a fixed number of the best cells, so the maps need at least as many.
SIDE = 256
LARGER_SIDES = {'SingleStageDetector': 320, 'DDOD': 416}  # needed by their kernels on the smallest maps
PERSON = (256, 128)  # re-identification networks pool maps of images of this size
BATCH_SIZE = 2
NUM_BOXES = 4
MOST_CLASSES = 1300


def small_batch(cfg: Config, training: bool) -> from_config.Batch:
    """Makes a few small images with annotations, as a data loader of the config would collate them."""
    if cfg.default_scope == 'mmseg':
        return from_config.segmentation_batch(cfg, (SIDE, SIDE), BATCH_SIZE)
    kind = cfg.model.type.rpartition('.')[2]
    if kind == 'BaseReID':
        return _persons()
    if kind == 'ImageClassifier':
        return _classification()
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if preprocessor.get('type') == 'TrackDataPreprocessor' and not (training and preprocessor.get('use_det_processor')):
        return _video(cfg)
    side = LARGER_SIDES.get(kind, SIDE)
    batch = from_config.detection_batch(cfg, (side, side), BATCH_SIZE, NUM_BOXES)
    if kind == 'SoftTeacher' and training:
        return {key: dict.fromkeys(('sup', 'unsup_teacher', 'unsup_student'), value) for key, value in batch.items()}
    return batch


def _video(cfg: Config) -> from_config.Batch:
    from mmdet.testing import demo_track_inputs
    return demo_track_inputs(1, 2, key_frames_inds=[0], image_shapes=(3, SIDE, SIDE), num_items=[4],
                             num_classes=from_config.num_classes(cfg), with_mask=True)


def _persons() -> from_config.Batch:
    """Makes four images of each of two persons, as the triplet loss needs them."""
    from mmdet.structures import ReIDDataSample
    samples = [ReIDDataSample(metainfo=dict(img_shape=PERSON, ori_shape=PERSON)) for _ in range(8)]
    for index, sample in enumerate(samples):
        sample.set_gt_label(index // 4)
    return dict(inputs=from_config.random_images(len(samples), PERSON), data_samples=samples)


def _classification() -> from_config.Batch:
    from mmpretrain.structures import DataSample
    return dict(inputs=from_config.random_images(BATCH_SIZE, (SIDE, SIDE)),
                data_samples=[DataSample().set_gt_label(i) for i in range(BATCH_SIZE)])


def try_out(cfg: Config) -> None:
    """Runs a training step on two small images with the config's optimizer, if it has one, and predicts, on the CPU.

    Raises any error of the model, also if the loss or a weight of the backbone is not finite, or a stage or block does
    not learn.
    """
    cfg = _made_small(cfg)
    set_random_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = revert_sync_batchnorm(from_config.build_model(cfg))
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
    optim_wrapper = from_config.build_plain_optim_wrapper(model, cfg, weight_decay=0.)
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
