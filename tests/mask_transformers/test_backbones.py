"""Plain mask transformers: equal to the code of their authors, at any sizes, with heads that learn."""
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmdet.testing import demo_mm_inputs
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from cpvt_mm import load_pretrained
from cpvt_mm.mask_transformers.backbones import FrozenMaskTransformer, PlainMaskTransformer
from cpvt_mm.mask_transformers.heads import PlainMaskHead
from cpvt_mm.mask_transformers.masked_attention import MaskAnnealingHook
from cpvt_mm.mask_transformers.predicting import extend
from openmmlab_tools.engine import load_config
from tests.backbones import GOLDEN
from tests.helpers import ROOT, build_model, refusal

ARCH = dict(embed_dims=16, depth=4, num_heads=2, num_register_tokens=2, layer_scale=1e-5)
NARROW = dict(arch=ARCH, num_queries=5, num_query_blocks=2)
# Their weights, image and outputs, at random weights, are in tests/golden. In training, all attention is masked.
MODELS = {
    'eomt': partial(PlainMaskTransformer, img_size=64, position_encoding=dict(type='LearnablePE'), **NARROW),
    'pmt': partial(FrozenMaskTransformer, mlp_ratio=2, out_indices=(1, 3), position_encoding=dict(
        type='RotaryPE', form='dinov3'), **{**NARROW, 'arch': dict(ARCH, norm_eps=1e-5)})}


@pytest.mark.parametrize('mode', ['eval', 'train'])
@pytest.mark.parametrize('kind', MODELS)
def test_equals_the_code_of_its_authors(kind: str, mode: str) -> None:
    golden = torch.load(GOLDEN / f'{kind}.pth', weights_only=True)
    model, head = MODELS[kind](), PlainMaskHead(16, 3, 0)
    model.load_state_dict(golden['weights'])
    model.train(mode == 'train').mask_probs = [1.] * 2
    head.cls_embed.load_state_dict(golden['head'])
    with torch.no_grad():
        scores, masks = head(model(golden['image']), None)
    for found, wanted in zip((masks, scores), golden[mode], strict=True):
        assert wanted.std() > 0.5
        torch.testing.assert_close(torch.stack(found), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize('training', [False, True])
def test_each_image_of_a_batch_has_the_masks_that_it_has_alone(training: bool, float64: None) -> None:
    encodings = [dict(type='PEG'), dict(type='RelativePE'), dict(type='RotaryPE')]
    model: Any = PlainMaskTransformer(padding='exact', position_encoding=encodings, **NARROW)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.train(training).mask_probs = [1.] * 2
    images = [torch.randn(3, *size) for size in ((64, 96), (50, 33), (128, 64), (64, 96))]
    together = model.forward_packed(images)
    for image, found in zip(images, together, strict=True):
        alone, = model.forward_packed([image])
        assert len(found) == (3 if training else 1)
        assert found[0][1].shape == (1, 5, -(-image.shape[1] // 4), -(-image.shape[2] // 4))
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-9)
    if training:
        model.mask_probs = [0.] * 2
        assert (model.forward_packed(images)[0][-1][1] - together[0][-1][1]).abs().max() > 1e-3


def test_masks_go_on_beside_an_image_without_a_gradient() -> None:
    masks = torch.randn(1, 1, 2, 3, requires_grad=True)
    whole = extend(masks, 4, 4)
    torch.testing.assert_close(whole[0, 0, 3], masks[0, 0, 1, [0, 1, 2, 2]])
    whole.sum().backward()
    assert masks.grad is not None and bool((masks.grad == 1).all())


@pytest.mark.parametrize('name, frozen', [('nuclei', False), ('camvid-192x256', True)])
def test_a_model_of_mmdet_and_one_of_mmseg_train_and_predict(name: str, frozen: bool) -> None:
    head, mmdet = ('panoptic_head', True) if name == 'nuclei' else ('decode_head', False)
    cfg = load_config(ROOT / f'configs/eomt/eomt_cpvt-ti_{name}.py', {
        f'model.{head}.in_channels': 16, 'model.test_cfg.max_per_image': 5})
    cfg.model.backbone.update(arch=dict(ARCH, patch_size=10), num_queries=5)
    if frozen:
        cfg.model.backbone.update(type='cpvt_mm.FrozenMaskTransformer', out_indices=(1, 3))
    model: Any = build_model(cfg).train()
    model.backbone.mask_probs = [0.5] * 3
    data = demo_mm_inputs(2, [(3, 50, 70), (3, 64, 44)], num_items=[2, 2], num_classes=2, with_mask=True, device='cpu')
    for sample in data['data_samples']:
        sample.gt_instances.labels.fill_(0)
    if not mmdet:
        data = dict(inputs=data['inputs'][:1], data_samples=[SegDataSample(
            metainfo=dict(img_shape=(50, 70), ori_shape=(50, 70)), gt_sem_seg=PixelData(
                data=torch.randint(11, (1, 50, 70))))])
    losses = model(**model.data_preprocessor(data, True), mode='loss')
    assert len(losses) == 3 * 4
    sum(losses.values()).backward()
    for key, parameter in model.named_parameters():
        assert (parameter.grad is None) == (frozen and 'decoder' not in key and 'head' not in key), key
    out = model.eval().test_step(data)[0]
    assert (out.pred_instances.masks if mmdet else out.pred_sem_seg.data).shape[1:] == out.ori_shape


@pytest.mark.parametrize('preprocessor', ['SegDataPreProcessor', 'cpvt_mm.SegDataPreProcessor'])
def test_windows_get_the_scores_that_they_get_as_images(preprocessor: str) -> None:
    cfg = load_config(ROOT / 'configs/eomt/eomt_cpvt-ti_camvid-192x256.py', {'model.decode_head.in_channels': 16})
    cfg.model.backbone.update(arch=dict(ARCH, patch_size=10), num_queries=5)
    cfg.model.data_preprocessor.type = preprocessor
    cfg.model.data_preprocessor.test_cfg = dict(size_divisor=32)
    cfg.model.test_cfg = dict(mode='slide', crop_size=(40, 48), stride=(24, 48))
    model: Any = build_model(cfg).eval()
    image, sizes = torch.randint(256, (3, 50, 90), dtype=torch.uint8), dict(img_shape=(50, 90), ori_shape=(50, 90))
    with torch.no_grad():
        sample, = model.test_step(dict(inputs=[image], data_samples=[SegDataSample(
            metainfo=dict(sizes, pad_shape=(50, 90)))]))
        batch = model.data_preprocessor(dict(inputs=[image], data_samples=[SegDataSample()]))['inputs']
        assert batch.shape[2:] == (64, 96)
        summed, count = torch.zeros(11, 64, 96), torch.zeros(64, 96)
        for top in (0, 24):
            for left in (0, 48):
                window = batch[:, :, top:top + 40, left:left + 48].clone()
                model.test_cfg.mode = 'whole'
                summed[:, top:top + 40, left:left + 48] += model.encode_decode(window, [dict(img_shape=(40, 48))])[0]
                count[top:top + 40, left:left + 48] += 1
    assert sample.seg_logits.data.std() > 1e-3
    torch.testing.assert_close(sample.seg_logits.data, (summed / count)[:, :50, :90], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('step, wanted', [  # eomt_small_640.yaml of the authors, for COCO
    (14782, [1, 1, 1]), (36955, [0, 1, 1]), (44346, [0, 0.5**0.9, 1]), (51737, [0, 0, 1]), (73910, [0, 0, 0])])
def test_masked_attention_ends_where_it_does_in_the_authors_configs(step: int, wanted: list[float]) -> None:
    backbone = SimpleNamespace(mask_probs=[0.] * 3)
    runner: Any = SimpleNamespace(model=SimpleNamespace(backbone=backbone), iter=step, max_iters=88692)
    MaskAnnealingHook().before_train_iter(runner, 0)
    assert backbone.mask_probs == pytest.approx(wanted, abs=1e-4)


def test_weights_of_a_vit_fill_all_but_the_decoder_which_learns_at_the_full_rate(tmp_path: Path) -> None:
    model, vit = (PlainMaskTransformer(**NARROW) for _ in range(2))
    torch.save({name: value for name, value in vit.state_dict().items() if 'decoder' not in name}, tmp_path / 'vit.pth')
    assert 'decoder.queries' in refusal(load_pretrained, model, tmp_path / 'vit.pth')
    load_pretrained(model, tmp_path / 'vit.pth', allow_missing='decoder')
    assert torch.equal(model.blocks[3].attn.q.weight, vit.blocks[3].attn.q.weight)
    assert [model.get_layer_depth(name) for name in (
        'decoder.queries', 'norm.weight', *(f'blocks.{i}.attn.q.weight' for i in range(4)), 'patch_embed.proj.weight')
            ] == [(layer, 4) for layer in (3, 3, 0, 1, 2, 3, 0)]


@pytest.mark.parametrize('arguments, words', [
    (dict(out_type='raw'), "out_type is 'raw', but a PlainMaskTransformer does not accept it"),
    (dict(drop_path_rate=0.1), 'drop_path_rate is 0.1'), (dict(num_query_blocks=4), 'must be from 1 to 3')])
def test_mistakes(arguments: dict[str, Any], words: str) -> None:
    assert words in refusal(lambda: PlainMaskTransformer(**{**NARROW, **arguments}), error=ValueError)
