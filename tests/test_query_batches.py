"""Heads that choose among queries or locations, in float64: an image has the same result alone and in any batch."""
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mmdet as installed_mmdet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmengine.logging import MMLogger
from torch import Tensor, nn

from cpvt_mm import make_batch_invariant
from cpvt_mm.swap import read_config
from cpvt_mm.tokens.batch_info import told_about
from tests.backbones import UPERNET
from tests.helpers import ROOT
from tests.test_batch_invariance import CONFIGS as STOCK
from tests.test_batch_invariance import PADS, SIZES, TWO_STAGE, built, predict
from tests.test_preprocessors import exact

CHANNELS = [32, 64, 128, 192]
QUERIES = {'encoder.num_layers': 1, 'decoder.num_layers': 2, 'num_queries': 30, 'test_cfg.max_per_img': 30,
           'bbox_head.num_classes': 5}
# Images have 85 to 321 locations.
MANY = {**QUERIES, 'num_queries': 200, 'test_cfg.max_per_img': 200, 'bbox_head.num_classes': 1}
MASKS = {f'panoptic_head.{key}': value for key, value in {
    'num_queries': 10, 'transformer_decoder.num_layers': 4, 'pixel_decoder.encoder.num_layers': 1,
    'transformer_decoder.layer_cfg.ffn_cfg.feedforward_channels': 64}.items()}
MASKS['train_cfg.num_points'] = 256
INSTANCES = {'test_cfg.instance_on': True, 'test_cfg.panoptic_on': False, 'test_cfg.max_per_image': 20}
Predictions = list[dict[str, Tensor]]


def mmdet(name: str, options: dict[str, Any] = {}) -> Config:
    """A config that mmdet ships, with the nano pyramid."""
    cfg = read_config(f'mmdet::{name}.py')
    model = cfg.model
    stages = (3,) if model.type == 'DETR' else (0, 1, 2, 3) if 'rcnn' in name or 'neck' not in model else (1, 2, 3)
    model.backbone = dict(type='cpvt_mm.PyramidCPVT', arch='nano', padding='exact', out_indices=stages)
    (model.neck if 'neck' in model else model.panoptic_head).in_channels = [CHANNELS[i] for i in stages]
    if 'start_level' in model.get('neck', {}):
        model.neck.start_level = 0
    model.data_preprocessor.update(type='cpvt_mm.DetDataPreprocessor', pad_size_divisor=32, batch_augments=None)
    cfg.merge_from_dict({f'model.{key.removeprefix("model.")}': value for key, value in options.items()})
    return cfg


def mmseg(name: str) -> Config:
    """mmseg's head with the options of mmdet's, and those of `MASKS`."""
    cfg, model = exact(UPERNET, PADS), mmdet(name, MASKS).model
    head = model.panoptic_head
    head.loss_cls.class_weight = [1., 0.5, 1., 1., 1., 0.1]
    cfg.model.decode_head = dict({key: value for key, value in head.items() if not key.endswith('ff_classes')},
                                 type=f'mmseg.{head.type}', num_classes=5, train_cfg=model.train_cfg)
    cfg.model.decode_head.pop('num_things_classes')
    cfg.model.auxiliary_head = None
    add_scope(cfg.model.decode_head)
    return cfg


def add_scope(node: Any) -> None:
    """Names the library of types without one."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(value, dict) and '.' not in value.get('type', '.'):
            value['type'] = f'mmdet.{value["type"]}'
        add_scope(value)


EOMT = {'model.backbone.arch.depth': 5, 'model.backbone.num_queries': 10, 'model.test_cfg.max_per_image': 10}
MASK2FORMER = 'mask2former/mask2former_r50_8xb2-lsj-50e_coco'
MASKFORMER = 'maskformer/maskformer_r50_ms-16xb1-75e_coco'
TWO = 'deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco'
CONFIGS: dict[str, Callable[[], Config]] = {
    'detr': partial(mmdet, 'detr/detr_r50_8xb2-150e_coco', QUERIES),
    'deformable-detr': partial(mmdet, 'deformable_detr/deformable-detr_r50_16xb2-50e_coco', QUERIES),
    'two-stage': partial(mmdet, TWO, QUERIES),
    'two-stage-small': partial(mmdet, TWO, MANY),
    'dino': partial(mmdet, 'dino/dino-4scale_r50_8xb2-12e_coco', QUERIES),
    'dino-small': partial(mmdet, 'dino/dino-4scale_r50_8xb2-12e_coco', MANY),
    'ddq': partial(mmdet, 'ddq/ddq-detr-4scale_r50_8xb2-12e_coco', {**QUERIES, 'test_cfg.max_per_img': 3}),
    'ddq-small': partial(mmdet, 'ddq/ddq-detr-4scale_r50_8xb2-12e_coco', {**MANY, 'test_cfg.max_per_img': 3}),
    'mask2former': partial(mmdet, MASK2FORMER, {**MASKS, **INSTANCES}),
    'mask2former-mmseg': partial(mmseg, MASK2FORMER),
    'maskformer': partial(mmdet, MASKFORMER, {**MASKS, **INSTANCES, 'test_cfg.max_per_image': 100}),
    'maskformer-mmseg': partial(mmseg, MASKFORMER),
    'eomt': partial(exact, ROOT / 'configs/eomt/eomt_cpvt-ti_nuclei.py', EOMT),
    'eomt-mmseg': partial(exact, ROOT / 'configs/eomt/eomt_cpvt-ti_camvid-192x256.py', {**PADS, **EOMT}),
    'rtmdet': partial(mmdet, 'rtmdet/rtmdet_l_8xb32-300e_coco', {'test_cfg.max_per_img': 30}),
    'fcos': partial(mmdet, 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco', {'test_cfg.max_per_img': 30}),
    'atss': partial(mmdet, 'atss/atss_r50_fpn_1x_coco', {'test_cfg.max_per_img': 30}),
    'cascade': partial(mmdet, 'cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco', TWO_STAGE)}


def in_float64(kind: str) -> nn.Module:
    """A model with random weights, and its preprocessor, in float64."""
    return double(built(CONFIGS[kind]()))


def double(model: Any) -> nn.Module:
    model = model.double()

    def double_images(_: nn.Module, args: object, data: dict[str, Any]) -> dict[str, Any]:
        told = told_about(data['inputs'])
        assert told
        return dict(data, inputs=told.attach(data['inputs'].double()))

    model.data_preprocessor.register_forward_hook(double_images)
    return model


def random_images(sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    return [torch.randint(256, (3, *size), dtype=torch.uint8) for size in sizes]


def assert_same(found: Predictions, wanted: Predictions, kind: str) -> None:
    """They differ by what float64 rounds; three heads compute the sides of boxes in float32, of at most 160 pixels."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for name, value in other.items():
            atol = 1e-4 if name == 'bboxes' and kind in ('rtmdet', 'fcos', 'atss') else 1e-9
            torch.testing.assert_close(one[name], value, rtol=0, atol=atol if value.is_floating_point() else 0)


@pytest.mark.parametrize('kind', CONFIGS)
def test_an_image_has_the_result_that_it_has_alone(kind: str) -> None:
    model, images, draw = in_float64(kind), random_images(SIZES), random.Random(0)
    if 'eomt' not in kind and kind != 'detr':  # without hooks, results differ, or top-k has too few locations
        with pytest.raises((AssertionError, RuntimeError)):
            assert_same(predict(model, images[:3]), [predict(model, [image])[0] for image in images[:3]], kind)
    make_batch_invariant(model)
    alone = [predict(model, [image])[0] for image in images]
    assert all(value.numel() for one in alone for value in one.values())
    for batch in (range(len(images)), draw.sample(range(len(images)), 3)):
        assert_same(predict(model, [images[i] for i in batch]), [alone[i] for i in batch], kind)
    if 'small' not in kind:
        return
    numbers = [len(one['scores']) for one in alone]
    assert numbers == [3] * 7 if kind == 'ddq-small' else numbers == [200, 200, 200, 193, 170, 200, 128]


SLIDE = dict(mode='slide', crop_size=(64, 64), stride=(48, 48))


@pytest.mark.parametrize('kind, options', [
    ('mask-rcnn', {'neck.type': 'mmdet.PAFPN'}), ('mask-rcnn', {'neck.norm_cfg': dict(_delete_=True, type='IN')}),
    ('mask-rcnn', {'roi_head.bbox_roi_extractor.roi_layer.aligned': False}),
    ('mask-rcnn', {'rpn_head.loss_cls.use_sigmoid': False}), ('mask-rcnn', {'test_cfg.rpn.min_bbox_size': -1}),
    ('mask-rcnn', {'data_preprocessor.pad_size_divisor': 48}), ('mask-rcnn-sfp', {'backbone.arch.patch_size': 14}),
    ('retinanet', {'data_preprocessor.pad_size_divisor': 1}), ('upernet', {'decode_head.align_corners': True}),
    ('upernet', {'test_cfg': SLIDE}), ('upernet', {'data_preprocessor.test_cfg': dict(_delete_=True, size=(200, 180))}),
    pytest.param('upernet', {'data_preprocessor.test_cfg': None}, marks=pytest.mark.xfail(
        not hasattr(installed_mmdet, 'mmcv_minimum_version'), strict=True,
        reason='with the forks (onedl), a batch without test_cfg is not predicted as its images alone'))])
def test_any_parts_and_any_padding(kind: str, options: dict[str, object]) -> None:
    cfg = STOCK[kind]()
    cfg.merge_from_dict({f'model.{key}': value for key, value in options.items()})
    if 'roi_head' in cfg.model:
        cfg.model.roi_head.mask_head = None  # mmdet pastes masks in float32
    model, images = double(built(cfg)), random_images(SIZES[:3])
    make_batch_invariant(model)
    alone = [predict(model, [image])[0] for image in images]
    assert_same(predict(model, images), alone, kind)


@pytest.mark.parametrize('kind', ['dino-small', 'mask2former', 'mask2former-mmseg', 'eomt'])
def test_any_sizes(kind: str) -> None:
    model = in_float64(kind)
    make_batch_invariant(model)

    @settings(max_examples=6, deadline=None)
    @given(st.lists(st.tuples(st.integers(33, 200), st.integers(33, 200)), min_size=2, max_size=3))
    def check(sizes: list[tuple[int, int]]) -> None:
        images = random_images(sizes)
        assert_same(predict(model, images)[:1], predict(model, images[:1]), kind)

    check()


@pytest.mark.parametrize('kind, name', [('dino', 'scores'), ('mask2former', 'scores'), ('mask2former-mmseg', 'logits')])
def test_in_float32_the_batch_changes_no_more_than_rounding_does(kind: str, name: str) -> None:
    """Rounded sums of n products are exact for weights that differ by about `n**0.5 * 2**-24` (Higham & Mary 2019)."""
    model, images = built(CONFIGS[kind]()), random_images(SIZES[:3])
    make_batch_invariant(model)

    def run(batch: list[Tensor]) -> Tensor:
        return predict(model, batch)[0][name]

    alone, together = run(images[:1]), run(images)
    longest = max(parameter[0].numel() for parameter in model.parameters() if parameter.dim() > 1)
    for parameter in model.parameters():
        parameter.data *= 1 + longest**0.5 * 2**-24 * torch.randn_like(parameter).sign()
    rounding = (run(images[:1]) - alone).abs().max()
    assert (together - alone).abs().max() <= 2 * rounding < 0.02 * alone.abs().max()  # each of two runs is rounded


def test_few_locations_are_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    logger = MMLogger('queries')  # one whose handler has the stream of now
    monkeypatch.setattr(MMLogger, 'get_current_instance', lambda: logger)
    model = in_float64('dino-small')
    make_batch_invariant(model)
    for size, locations in (((64, 64), 85), ((64, 96), 128)):
        assert len(predict(model, random_images([size]))[0]['scores']) == locations
    assert capsys.readouterr().out.count('fewer locations than num_queries=200') == 1


def test_a_batch_of_small_images_can_be_learnt_from() -> None:
    """mmdet fails if there are fewer locations than queries; the config keeps its number of boxes."""
    cfg = mmdet('dino/dino-4scale_r50_8xb2-12e_coco', {**MANY, 'bbox_head.num_classes': 2})
    model: Any = built(cfg).train()
    make_batch_invariant(model)
    data = demo_mm_inputs(2, [(3, 64, 64)] * 2, num_items=[2, 1], num_classes=2, device='cpu')
    losses = model(**model.data_preprocessor(data, True), mode='loss')
    assert all(value.isfinite().all() for value in losses.values())
    assert model.bbox_head.test_cfg.max_per_img == 170 and cfg.model.test_cfg.max_per_img == 200
