"""Predictions of an image are the same alone and in any batch: boxes, scores, masks and label maps."""
import copy
import random
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mmengine
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from cpvt_mm import make_batch_invariant
from tests.backbones import UPERNET
from tests.helpers import ROOT, build_model, refusal, toy_overrides
from tests.test_preprocessors import exact
from tests.tools.conftest import Run

SIZES = [(64, 160), (100, 70), (160, 96), (90, 90), (33, 128), (128, 128), (65, 64)]
FOLDER = ROOT / 'configs'
# Proposals are kept, so that one from the padding would be seen. Detections are few, with scores apart, so that
# rounding does not decide which of two is kept.
TWO_STAGE = {'model.test_cfg.rcnn.score_thr': 0.01, 'model.test_cfg.rpn.nms_pre': 60,
             'model.test_cfg.rpn.max_per_img': 300, 'model.test_cfg.rcnn.max_per_img': 30}
PADS = {'model.data_preprocessor.test_cfg': dict(size_divisor=32)}
CONFIGS: dict[str, Callable[[], Config]] = {
    'mask-rcnn': partial(exact, FOLDER / 'nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py', TWO_STAGE),
    'mask-rcnn-sfp': partial(exact, FOLDER / 'toy/mask-rcnn_cpvt_sfp_toy-shapes.py', {
        **TWO_STAGE, 'model.neck.strides': [4, 8, 16, 32, 64],
        'model.rpn_head.anchor_generator.strides': [4, 8, 16, 32, 64]}),
    'retinanet': partial(exact, FOLDER / 'boxes/retinanet_pyramid-cpvt-nano_fpn_boxes.py', {
        'model.test_cfg.score_thr': 0.01, 'model.test_cfg.nms_pre': 60, 'model.bbox_head.num_classes': 5}),
    'upernet': partial(exact, UPERNET, PADS),
    'upernet-batch-norm': partial(exact, UPERNET, {
        **PADS, 'model.decode_head.norm_cfg': dict(_delete_=True, type='BN')}),
    'upernet-sfp': partial(exact, FOLDER / 'toy/upernet_cpvt_sfp_toy-shapes.py', PADS)}


def built(cfg: Config) -> nn.Module:
    """A model in eval mode with random weights, in which no bias is zero and no norm is the identity."""
    model = build_model(cfg)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.data += 0.3 * torch.randn_like(parameter)
        elif not name.startswith('backbone'):
            parameter.data = torch.randn_like(parameter) / parameter[0].numel()**0.5
        if name == 'rpn_head.rpn_cls.weight':  # zeros, as in the padding, have better scores than most other values
            parameter.data = -parameter.data.abs()
    return model.eval()


def predict(model: nn.Module, images: list[Tensor]) -> list[dict[str, Tensor]]:
    """Predictions of each image, by name."""
    segments = hasattr(model, 'decode_head')
    samples = [(SegDataSample if segments else DetDataSample)(metainfo=dict(
        img_shape=tuple(image.shape[1:]), ori_shape=tuple(image.shape[1:]), scale_factor=(1., 1.))) for image in images]
    with torch.no_grad():
        outs = model.test_step(dict(inputs=images, data_samples=samples))
    return [dict(logits=out.seg_logits.data, labels=out.pred_sem_seg.data) if segments
            else dict(out.pred_instances.items()) for out in outs]


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Predictions of an image are equal to 1e-4: scores, logits, boxes in parts of the image, and shares of pixels."""
    assert all(len(found[name]) == len(value) for name, value in wanted.items())
    if 'bboxes' in wanted:  # rounding may change the order of two detections
        rows = [torch.cat([p['bboxes'] / 160, p['scores'][:, None], p['labels'][:, None]], 1) for p in (found, wanted)]
        order = torch.cdist(rows[1], rows[0]).argmin(1)
        assert len(order.unique()) == len(order) > 10
        torch.testing.assert_close(rows[0][order], rows[1], rtol=0, atol=1e-4)
        found = {name: value[order] for name, value in found.items()}
    if 'logits' in wanted:
        torch.testing.assert_close(found['logits'], wanted['logits'], rtol=0, atol=1e-4)
    for name in {'masks', 'labels'} & {*wanted}:
        assert (found[name] != wanted[name]).float().mean() < 1e-3


@pytest.fixture
def images() -> list[Tensor]:
    return [torch.randint(256, (3, *size), dtype=torch.uint8) for size in SIZES]


@pytest.mark.parametrize('kind', CONFIGS)
def test_an_image_has_the_predictions_that_it_has_alone(kind: str, images: list[Tensor]) -> None:
    model = built(CONFIGS[kind]())
    with pytest.raises(AssertionError):  # without, they differ
        for found, image in zip(predict(model, images), images, strict=True):
            assert_equal(found, *predict(model, [image]))
    make_batch_invariant(model)
    alone = [predict(model, [image])[0] for image in images]
    draw = random.Random(0)
    for _ in range(10):
        batch = draw.sample(range(len(images)), draw.randint(2, 4))
        for i, found in zip(batch, predict(model, [images[i] for i in batch]), strict=True):
            assert_equal(found, alone[i])


def test_an_image_alone_and_training_are_as_without_it(images: list[Tensor]) -> None:
    model = built(CONFIGS['mask-rcnn-sfp']())
    data = demo_mm_inputs(2, [(3, *size) for size in SIZES[:2]], num_items=[2, 2], num_classes=5, with_mask=True,
                          device='cpu')

    def run() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.no_grad(), torch.random.fork_rng():
            losses = model.train()(**model.data_preprocessor(copy.deepcopy(data), True), mode='loss')
        return predict(model.eval(), images[:1])[0], losses

    before, losses_before = run()
    make_batch_invariant(model)
    after, losses_after = run()
    torch.testing.assert_close((before, losses_before), (after, losses_after), rtol=0, atol=0)


def test_losses_in_eval_mode_are_finite() -> None:
    model = built(CONFIGS['retinanet']())
    make_batch_invariant(model)
    data = demo_mm_inputs(3, [(3, *size) for size in SIZES[:3]], num_items=[2] * 3, num_classes=5, device='cpu')
    losses = model(**model.data_preprocessor(data), mode='loss')
    assert all(torch.stack(values).isfinite().all() for values in losses.values())


def test_a_copy_of_a_model_has_a_batch_of_its_own(images: list[Tensor]) -> None:
    model = built(CONFIGS['upernet']())
    make_batch_invariant(model)
    copied = copy.deepcopy(model)
    predict(model, images)
    assert_equal(predict(copied, images[:2])[1], predict(model, images[1:2])[0])


@pytest.mark.parametrize('options, words', [
    ({'backbone.padding': None}, "is a PyramidCPVT with padding=None, but .* need a .* with padding='exact'"),
    ({'backbone': dict(_delete_=True, type='mmdet.ResNet', depth=18)}, 'model.backbone is a ResNet, but')])
def test_another_backbone_is_refused(options: dict[str, object], words: str) -> None:
    cfg = CONFIGS['mask-rcnn']()
    cfg.merge_from_dict({f'model.{key}': value for key, value in options.items()})
    assert re.search(words, refusal(make_batch_invariant, build_model(cfg, 'meta')))
    assert 'the model is a Linear, but BatchInvariantHook supports only' in refusal(
        make_batch_invariant, nn.Linear(1, 1))


def test_images_of_one_size_are_predicted_alone_too(images: list[Tensor]) -> None:
    """So a head may depend on the batch: this one rolls channels by the number of images."""
    model = built(CONFIGS['retinanet']())
    model.bbox_head.register_forward_pre_hook(lambda _, args: ([level.roll(len(level), 1) for level in args[0]],))
    make_batch_invariant(model)
    both = predict(model, [images[0], images[0].flip(2)])
    assert_equal(both[0], *predict(model, images[:1]))


def test_a_backbone_computes_all_images_in_one_pass_and_again_afterwards(images: list[Tensor]) -> None:
    model, batches = built(CONFIGS['retinanet']()), []
    make_batch_invariant(model)
    model.backbone.stages[0].register_forward_hook(lambda _, args, out: batches.append(out.shape))
    predict(model, images)
    assert len(batches) == 1
    predict(model, images[:2])
    assert len(batches) == 2 and batches[1] != batches[0] and 'forward' not in vars(model.backbone)


@pytest.mark.parametrize('name', ['BatchInvariantHook', 'MaskAnnealingHook'])
def test_a_config_finds_a_hook_in_a_new_process(name: str) -> None:
    code = f"from mmengine.registry import HOOKS; assert HOOKS.get('cpvt_mm.{name}').__name__ == '{name}'"
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)


def test_one_key_turns_it_on_in_test_py(toy_shapes: Path, tmp_path: Path, run_tool: Run) -> None:
    cfg = CONFIGS['mask-rcnn-sfp']()
    torch.save(dict(state_dict=built(cfg).state_dict()), tmp_path / 'model.pth')
    cfg.dump(tmp_path / 'config.py')

    def predictions(batch_size: int) -> list[dict[str, Tensor]]:
        file = tmp_path / f'{batch_size}.pkl'
        options = toy_overrides(toy_shapes, **{
            'default_hooks.batch.type': 'cpvt_mm.BatchInvariantHook', 'test_dataloader.batch_size': batch_size,
            'test_evaluator.type': 'DumpDetResults', 'test_evaluator.out_file_path': file,
            'test_evaluator._delete_': True})
        assert run_tool('test.py', tmp_path / 'config.py', tmp_path / 'model.pth', '--work-dir', tmp_path / 'work',
                        '--cfg-options', *(f'{key}={value}' for key, value in options.items())) == ''
        return [{name: result['pred_instances'][name] for name in ('bboxes', 'scores', 'labels')}
                for result in mmengine.load(file)]

    for found, wanted in zip(predictions(4), predictions(1), strict=True):
        assert_equal(found, wanted)
