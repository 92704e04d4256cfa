"""One line of a config, `data_preprocessor.type`, tells how large the images of a batch are, and which are one clip."""
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmdet.apis import DetInferencer
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import DefaultScope
from mmengine.structures import PixelData
from mmseg.apis import MMSegInferencer
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from cpvt_mm import PyramidCPVT
from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.batch_info import told_about
from openmmlab_tools.engine import load_config
from tests.backbones import MASK_RCNN, UPERNET, WITH_CP
from tests.helpers import ROOT, build_model

SIZES = [(96, 128), (50, 70), (64, 96)]


def exact(config: Path, options: dict[str, Any] = {}) -> Config:
    """With the option and the one line that it needs."""
    cfg = load_config(config, options)
    cfg.model.backbone.padding = 'exact'
    cfg.model.data_preprocessor.type = f'cpvt_mm.{cfg.model.data_preprocessor.type}'
    return cfg


CONFIGS = {
    'mask-rcnn': partial(exact, MASK_RCNN), 'upernet': partial(exact, UPERNET),
    'retinanet': partial(exact, ROOT / 'configs/pyramid_cpvt/retinanet_pyramid-cpvt-t_fpn_1x_coco.py', {
        'model.backbone.arch': 'nano', 'model.backbone.drop_path_rate': 0.,
        'model.neck.in_channels': [32, 64, 128, 192]})}
Calls = list[tuple[Tensor, tuple[Tensor, ...]]]


@contextmanager
def seen(model: nn.Module) -> Iterator[Calls]:
    """The batches that a model's backbone gets, and its outputs."""
    calls: Calls = []
    hook = model.backbone.register_forward_hook(lambda _, args, outs: calls.append((args[0], outs)))
    yield calls
    hook.remove()


def assert_features_are_those_of_alone(model: nn.Module, call: Calls, sizes: list = SIZES, atol: float = 1e-4) -> None:
    """In the only batch, each image has the features that it has without others."""
    (batch, outputs), = call
    plain = PyramidCPVT('nano')
    plain.load_state_dict(model.backbone.state_dict())
    plain.train(model.training)
    indices = getattr(model.backbone, 'out_indices', range(4))
    for image, (height, width), *outs in zip(batch, sizes, *outputs, strict=True):
        alone = F.pad(image[None, :, :height, :width], (0, -width % 32, 0, -height % 32))
        with torch.no_grad():
            expected = plain(alone)
        for out, index in zip(outs, indices, strict=True):
            rows, columns = expected[index].shape[2:]
            wanted = expected[index][0, :, :out.shape[1], :out.shape[2]]
            torch.testing.assert_close(out[:, :rows, :columns].float(), wanted, rtol=0, atol=atol)
            assert not out[:, rows:].any() and not out[..., columns:].any()


def detection_batch() -> dict[str, list]:
    return demo_mm_inputs(len(SIZES), [(3, *size) for size in SIZES], num_items=[2] * len(SIZES), num_classes=5,
                          with_mask=True, device='cpu')


def training_batch(model: nn.Module) -> dict[str, list]:
    if not hasattr(model, 'decode_head'):
        return detection_batch()
    samples = [SegDataSample(gt_sem_seg=PixelData(data=torch.randint(6, (1, *size))),
                             metainfo=dict(img_shape=size, ori_shape=size)) for size in SIZES]
    return dict(inputs=[torch.randint(256, (3, *size), dtype=torch.uint8) for size in SIZES], data_samples=samples)


@pytest.mark.parametrize('kind', CONFIGS)
def test_a_step_of_training_and_prediction(kind: str) -> None:
    model = build_model(CONFIGS[kind]()).train()
    data = model.data_preprocessor(training_batch(model), training=True)
    with seen(model) as calls:
        losses = model(**data, mode='loss')
    loss, _ = model.parse_losses(losses)
    loss.backward()
    assert_features_are_those_of_alone(model, calls)
    if kind == 'retinanet':
        with torch.no_grad(), seen(model.eval()) as calls:
            assert len(model.test_step(detection_batch())) == len(SIZES)
        assert_features_are_those_of_alone(model, calls)


@pytest.mark.parametrize('with_cp', WITH_CP)
def test_wrapped_in_mixed_precision_with_checkpointing(with_cp: bool | str, tmp_path: Path) -> None:
    cfg = CONFIGS['retinanet']()
    cfg.model.backbone.with_cp = with_cp
    model = build_model(cfg).train()
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/group', rank=0, world_size=1)
    try:
        wrapped = MMDistributedDataParallel(model, device_ids=None, broadcast_buffers=False)
        optimizer = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.))
        with seen(model) as calls, torch.autocast('cpu', torch.bfloat16):
            wrapped.train_step(training_batch(model), optimizer)
    finally:
        torch.distributed.destroy_process_group()
    assert_features_are_those_of_alone(model, calls, atol=0.2)


def test_the_inferencers() -> None:
    inferencer = DetInferencer(CONFIGS['mask-rcnn'](), device='cpu', palette='random', show_progress=False)
    with seen(inferencer.model) as calls:
        inferencer([np.random.randint(0, 256, (*size, 3), dtype=np.uint8) for size in ((96, 160), (160, 60))],
                   batch_size=2)
    assert calls[0][0].shape == (2, 3, 160, 160)
    assert_features_are_those_of_alone(inferencer.model, calls, [(96, 160), (160, 60)])

    cfg = CONFIGS['upernet']()
    cfg.model.data_preprocessor.test_cfg = dict(size_divisor=64)
    inferencer = MMSegInferencer(cfg, classes=('a',) * 6, palette=[[0, 0, 0]] * 6, device='cpu')
    inferencer.show_progress = False
    with seen(inferencer.model) as calls:
        inferencer(np.random.randint(0, 256, (90, 150, 3), dtype=np.uint8))
    assert calls[0][0].shape == (1, 3, 128, 192)
    assert_features_are_those_of_alone(inferencer.model, calls, [(96, 160)])


def test_batch_augmentations_that_resize_are_followed() -> None:
    with DefaultScope.overwrite_default_scope('mmdet'):
        preprocessor = MODELS.build(dict(type='cpvt_mm.DetDataPreprocessor', pad_size_divisor=32,
                                         batch_augments=[dict(type='BatchResize', scale=(256, 192))]))
    data: dict[str, Any] = preprocessor(detection_batch(), training=True)
    assert data['inputs'].shape[2:] == (192, 256)
    assert list(told_about(data['inputs']).sizes) == [sample.img_shape for sample in data['data_samples']] == [
        (192, 256), (100, 140), (128, 192)]


def test_images_to_segment_may_have_several_sizes_in_tests() -> None:
    cfg = exact(UPERNET, {'model.data_preprocessor.test_cfg': dict(size_divisor=32)})
    model = build_model(cfg).eval()
    images = [torch.randint(256, (3, *size), dtype=torch.uint8) for size in SIZES]
    samples = [SegDataSample(metainfo=dict(ori_shape=size, img_shape=size)) for size in SIZES]
    data = model.data_preprocessor(dict(inputs=images, data_samples=samples))
    assert data['inputs'].shape == (3, 3, 96, 128) and told_about(data['inputs']).sizes == tuple(SIZES)
    for image, found, (height, width) in zip(images, data['inputs'], SIZES, strict=True):
        alone = model.data_preprocessor(dict(inputs=[image], data_samples=[SegDataSample()]))['inputs'][0]
        torch.testing.assert_close(found[:, :height, :width], alone[:, :height, :width], rtol=0, atol=0)
        assert not found[:, height:].any() and not found[..., width:].any()
    with torch.no_grad(), seen(model) as calls:
        outs = model.predict(**data)
    assert [out.pred_sem_seg.shape for out in outs] == SIZES
    assert_features_are_those_of_alone(model, calls)
    assert len(model.data_preprocessor(dict(inputs=images))['data_samples']) == 3
