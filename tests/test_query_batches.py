"""Heads that choose among queries or locations, in float64: an image has the same result alone and in any batch."""
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from cpvt_mm import make_batch_invariant
from cpvt_mm.batch_layers import Batch
from cpvt_mm.swap import read_config
from cpvt_mm.tokens.batch_info import told_about
from tests.conftest import ROOT, UPERNET, refusal
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
    model: Any = built(CONFIGS[kind]()).double()

    def double(_: nn.Module, args: object, data: dict[str, Any]) -> dict[str, Any]:
        told = told_about(data['inputs'])
        assert told
        return dict(data, inputs=told.attach(data['inputs'].double()))

    model.data_preprocessor.register_forward_hook(double)
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


def test_a_query_that_may_attend_to_padding_only_attends_to_its_image() -> None:
    batch = Batch()
    batch.sizes, batch.whole, batch.masks = ((32, 32), (64, 64)), (64, 64), {}
    padding = batch.padding((2, 2), torch.device('cpu')).flatten(1)
    _, kwargs = batch.mask_attention(nn.Identity(), (), dict(cross_attn_mask=~padding[:, None]))
    assert torch.equal(kwargs['cross_attn_mask'][:, 0], padding)


def objects(model: Any, i: int) -> int:
    """How many objects image `i` has; where masks are compared, one has none, and one more than there are queries."""
    most = 12 if hasattr(model, 'panoptic_head') else 4  # mmseg has one object of each class
    return 1 + i % 2 if hasattr(model, 'bbox_head') else (2, 3, 1, most, 1, 2, 0)[i]


def sample_of(model: Any, i: int, height: int, width: int) -> DetDataSample | SegDataSample:
    """Describes image `i`, with boxes, masks or a label map."""
    number, metainfo = objects(model, i), dict(img_shape=(height, width), ori_shape=(height, width))
    sides = torch.rand(2 * number, 2).sort(0)[0] * torch.tensor([width, height])
    boxes = torch.cat([sides[:number], sides[number:]], 1)
    masks = np.zeros((number, height, width), np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.round().int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    if hasattr(model, 'decode_head'):
        label_map = torch.full((1, height, width), 255)
        for label in range(number):
            label_map[0, label * 8:label * 8 + 8, ::2] = label
        return SegDataSample(metainfo=metainfo, gt_sem_seg=PixelData(data=label_map))
    return DetDataSample(metainfo=metainfo, gt_instances=InstanceData(
        bboxes=boxes, labels=torch.zeros(number, dtype=torch.int64), masks=BitmapMasks(masks, height, width)))


def losses(model: Any, images: list[Tensor], batch: Sequence[int]) -> dict[str, Tensor]:
    """Losses of images of a batch, without those of denoising queries, which are random."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        samples = [sample_of(model, i, *image.shape[1:]) for i, image in enumerate(images)]
    data = model.data_preprocessor(dict(inputs=[images[i] for i in batch], data_samples=[samples[i] for i in batch]),
                                   True)
    return {name: value for name, value in model(**data, mode='loss').items() if 'dn_' not in name}


@pytest.mark.parametrize('kind', [
    'deformable-detr', 'two-stage', 'dino', 'dino-small', 'mask2former', 'eomt', *(
        pytest.param(kind, marks=pytest.mark.slow) for kind in (
            'mask2former-mmseg', 'maskformer', 'maskformer-mmseg', 'eomt-mmseg'))])
def test_an_image_teaches_the_same_alone_and_in_a_batch(kind: str, float64: None,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, 'float', Tensor.double)  # mmdet compares masks with targets in float32
    model, images = in_float64(kind).train(), random_images(SIZES)
    for layer in model.modules():
        for name in {'p', 'dropout'} & {*vars(layer)}:  # nn.Dropout and nn.MultiheadAttention
            setattr(layer, name, 0.)
    batches, head = ([0, 1, 2], [3, 6]), getattr(model, 'panoptic_head', getattr(model, 'decode_head', None))
    if kind != 'dino-small' and '2former' not in kind:  # top-k has too few locations, and points of masks are random
        name = 'loss_bbox' if head is None else 'decode.loss_cls' if 'mmseg' in kind else 'loss_cls'
        single = [losses(model, images, [i])[name] for i in batches[0]]
        assert (torch.stack(single).mean() - losses(model, images, batches[0])[name]).abs() > 1e-3
    make_batch_invariant(model, training=True)
    for batch in batches:
        torch.manual_seed(0)  # each image has the points that it has alone
        alone = [losses(model, images, [i]) for i in batch]
        torch.manual_seed(0)
        numbers = torch.tensor([objects(model, i) for i in batch])
        for name, value in losses(model, images, batch).items():
            share = numbers if head is None else numbers.clamp(max=head.num_queries)
            if head and 'loss_cls' in name:
                weights = head.class_weight if 'mmseg' in kind else [1.] * 20  # there are objects of one class
                share = torch.tensor([sum(weights[:n]) for n in share]) + 0.1 * (head.num_queries - share)
            # mmdet adds 1.2e-7 to the number of objects by which it divides, which is at least 1.
            mean = torch.cat([one[name].reshape(1) for one in alone]) @ (share / share.sum())
            torch.testing.assert_close(mean, value.sum(), rtol=2e-7, atol=1e-9)
    sum(losses(model, images, [0, 1]).values(), torch.zeros(())).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_ranks_reduce_equally_often_with_and_without_padding(monkeypatch: pytest.MonkeyPatch, float64: None) -> None:
    monkeypatch.setattr(Tensor, 'float', Tensor.double)
    reduce = Mock(side_effect=lambda tensor: tensor)
    monkeypatch.setattr('mmdet.models.dense_heads.mask2former_head.reduce_mean', reduce)
    model, counts = in_float64('mask2former').train(), []
    make_batch_invariant(model, training=True)
    for sizes in ([(64, 64)] * 2, [(64, 96), (96, 64)]):
        losses(model, random_images(sizes), [0, 1])
        counts.append(reduce.call_count)
    assert counts[1] == 2 * counts[0] > 0


def test_a_second_call_adds_no_hooks_and_a_third_trains() -> None:
    model = in_float64('mask2former')

    def count() -> int:
        return sum(len(hooks) for module in model.modules() for name, hooks in vars(module).items() if 'hooks' in name)

    make_batch_invariant(model)
    hooks, losses = count(), model.panoptic_head.loss_by_feat
    for training, wanted in ((False, False), (True, True), (False, True)):  # the last is what predicts during a run
        make_batch_invariant(model, training)
        assert (count(), model.panoptic_head.loss_by_feat) == (hooks, losses)
        assert model.batch_invariance.training == wanted


def test_few_locations_are_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    logger = MMLogger('queries')  # one whose handler has the stream of now
    monkeypatch.setattr(MMLogger, 'get_current_instance', lambda: logger)
    model = in_float64('dino-small')
    make_batch_invariant(model)
    for size, locations in (((64, 64), 85), ((64, 96), 128)):
        assert len(predict(model, random_images([size]))[0]['scores']) == locations
    assert capsys.readouterr().out.count('fewer locations than num_queries=200') == 1


@pytest.mark.parametrize('kind, words', [
    ('ddq', 'the losses of a DDQDETR depend on the batch'), ('rtmdet', 'the losses of a RTMDet depend on the batch')])
def test_losses_that_depend_on_the_batch_are_refused(kind: str, words: str) -> None:
    assert words in refusal(partial(make_batch_invariant, training=True), in_float64(kind))
