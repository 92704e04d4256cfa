"""Every kind of head that mmseg registers trains, validates, tests, predicts and writes a report."""
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmengine.config import Config
from mmseg.models import decode_heads
from mmseg.registry import MODELS
from PIL import Image

from cpvt_mm.swap import read_config
from openmmlab_tools import engine
from openmmlab_tools.libraries import shipped_configs
from openmmlab_tools.predict.predicting import predict
from tests.backbones import UPERNET
from tests.helpers import toy_overrides

SIZE, CHANNELS = (64, 96), [32, 64, 128, 192]  # height and width; of the maps of the nano pyramid
NORM = dict(type='BN')
LAST, ALL = dict(in_channels=192, in_index=3), dict(in_channels=CHANNELS, in_index=[0, 1, 2, 3])
FCN = dict(type='FCNHead', **LAST, channels=16, num_convs=1)
UPDATE = dict(type='KernelUpdateHead', num_ffn_fcs=2, num_heads=2, num_mask_fcs=1, feedforward_channels=16,
              in_channels=16, out_channels=16, conv_kernel_size=1, ffn_act_cfg=dict(type='ReLU', inplace=True),
              with_ffn=True, feat_transform_cfg=dict(conv_cfg=dict(type='Conv2d'), act_cfg=None),
              kernel_updator_cfg=dict(type='KernelUpdator', in_channels=16, feat_channels=16, out_channels=16,
                                      act_cfg=dict(type='ReLU', inplace=True), norm_cfg=dict(type='LN')))
VIT = dict(type='VisionTransformer', img_size=SIZE, patch_size=16, embed_dims=32, num_layers=4, num_heads=2,
           out_indices=(0, 1, 2, 3), output_cls_token=True)
DDR = dict(type='DDRNet', channels=8, ppm_channels=8, norm_cfg=NORM)
PID = dict(type='PIDNet', channels=8, ppm_channels=8, num_stem_blocks=1, num_branch_blocks=1)
SOFT, OHEM = dict(type='CrossEntropyLoss'), dict(type='OhemCrossEntropy', min_kept=100)

# Options of each head beside those of all, and of its model; a list is a cascade, whose last head is the kind.
HEADS: dict[str, dict[str, Any] | list[dict[str, Any]]] = {
    'ANNHead': dict(in_channels=CHANNELS[2:], in_index=[2, 3], project_channels=16), 'APCHead': LAST,
    'ASPPHead': LAST, 'CCHead': LAST, 'DAHead': dict(LAST, pam_channels=8),
    'DepthwiseSeparableASPPHead': dict(LAST, c1_in_channels=32, c1_channels=8),
    'DepthwiseSeparableFCNHead': LAST, 'DMHead': LAST, 'DNLHead': LAST,
    'EMAHead': dict(LAST, ema_channels=16, num_bases=8, num_stages=2), 'EncHead': dict(ALL, num_codes=4),
    'FCNHead': LAST, 'FPNHead': dict(ALL, feature_strides=[4, 8, 16, 32]), 'GCHead': LAST,
    'ISAHead': dict(LAST, isa_channels=8),
    'IterativeDecodeHead': dict(num_stages=1, kernel_generate_head=FCN, kernel_update_head=[UPDATE]),
    'LightHamHead': dict(ALL, ham_channels=16, ham_kwargs=dict(MD_R=4)), 'LRASPPHead': dict(
        in_channels=CHANNELS[2::-1], in_index=[2, 1, 0], branch_channels=(8, 8), input_transform='multiple_select'),
    'NLHead': LAST, 'OCRHead': [FCN, dict(LAST, ocr_channels=8)],
    'PointHead': [dict(ALL, type='FPNHead', channels=16, feature_strides=[4, 8, 16, 32]),
                  dict(in_channels=[32], in_index=[0], norm_cfg=None)],
    'PSAHead': dict(LAST, mask_size=(5, 5)), 'PSPHead': LAST, 'SegformerHead': ALL,
    'SegmenterMaskTransformerHead': dict(LAST, channels=192, num_layers=1, num_heads=2, embed_dims=192,
                                         norm_cfg=dict(type='LN')),
    'SETRMLAHead': dict(ALL, in_channels=[32] * 4, mla_channels=4), 'SETRUPHead': LAST,
    'STDCHead': LAST, 'UPerHead': ALL,
    'DDRHead': dict(in_channels=32, loss_decode=[OHEM, OHEM]),
    'DPTHead': dict(in_channels=[32] * 4, in_index=[0, 1, 2, 3], embed_dims=32, post_process_channels=[8, 8, 8, 8],
                    readout_type='project', input_transform='multiple_select'),
    'PIDHead': dict(in_channels=32, loss_decode=[SOFT, OHEM, dict(type='BoundaryLoss'), OHEM]),
    'MaskFormerHead': {}, 'Mask2FormerHead': {}}
BACKBONES = dict(DDRHead=DDR, DPTHead=VIT, PIDHead=PID, SETRMLAHead=dict(VIT, output_cls_token=False))
# These are no heads of label maps by themselves: parts of IterativeDecodeHead, depth, and one that needs CLIP's text.
OTHERS = {'KernelUpdateHead', 'KernelUpdator', 'VPDDepthHead', 'SideAdapterCLIPHead'}
# Their points, losses, queries or cascades need a channel for each class.
NEVER_BINARY = {'DDRHead', 'IterativeDecodeHead', 'Mask2FormerHead', 'MaskFormerHead', 'OCRHead', 'PIDHead',
                'PointHead'}
QUICK = {('FCNHead', 1), ('UPerHead', 1), ('SegformerHead', 2)}


def test_no_head_is_left_out() -> None:
    registered = {name for name, kind in MODELS.module_dict.items() if kind.__module__.startswith(
        f'{decode_heads.__name__}.')}
    assert registered == HEADS.keys() | OTHERS
    assert not HEADS.keys() & OTHERS and HEADS.keys() > NEVER_BINARY


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of two classes for each split, with pixels that are not labelled."""
    root, random = tmp_path_factory.mktemp('binary'), np.random.default_rng(0)
    for split in ('training', 'validation'):
        for name in ('a', 'b'):
            label_map = np.zeros(SIZE, np.uint8)
            label_map[8:40, 16:80], label_map[:4] = 1, 255
            for folder, pixels, suffix in (('images', random.integers(256, size=(*SIZE, 3), dtype=np.uint8), 'jpg'),
                                           ('annotations', label_map, 'png')):
                file = root / folder / split / f'{name}.{suffix}'
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)
    return root


def queries(name: str) -> dict[str, Any]:
    """A head of mmseg's own config, with few queries and layers."""
    folder, stem = ('maskformer', 'maskformer_r50-d32') if name == 'MaskFormerHead' else (
        'mask2former', 'mask2former_r50')
    config = shipped_configs('mmseg') / folder / f'{stem}_8xb2-160k_ade20k-512x512.py'
    head = read_config(str(config)).model.decode_head.to_dict()
    head['transformer_decoder']['num_layers'] = 2
    if name == 'Mask2FormerHead':
        head['pixel_decoder']['encoder']['num_layers'] = 1
    head['loss_cls']['class_weight'] = [1., 1., 0.1]
    return dict(head, in_channels=CHANNELS, num_queries=8)


def with_head(name: str, out_channels: int) -> dict[str, Any]:
    """A model with a head for two classes; with one channel, it predicts the second one above a threshold."""
    loss = dict(type='CrossEntropyLoss', use_sigmoid=out_channels == 1)
    usual = dict(channels=16, num_classes=2, out_channels=out_channels, dropout_ratio=0.1, norm_cfg=NORM,
                 loss_decode=loss)
    if name == 'IterativeDecodeHead':
        del usual['out_channels']
        given = HEADS[name]
        return dict(decode_head=dict(
            given, type=name, kernel_generate_head={**usual, **given['kernel_generate_head']},
            kernel_update_head=[dict(one, num_classes=2) for one in given['kernel_update_head']]))
    if not HEADS[name]:
        return dict(decode_head=dict(queries(name), num_classes=2))
    *first, last = HEADS[name] if isinstance(HEADS[name], list) else [HEADS[name]]
    heads = [{**usual, **options} for options in (*first, dict(type=name) | last)]
    if name == 'STDCHead':
        return dict(decode_head={**usual, **FCN}, auxiliary_head=dict(heads[0], loss_decode=[
            dict(type='CrossEntropyLoss', loss_name='loss_ce', use_sigmoid=True),
            dict(type='DiceLoss', loss_name='loss_dice')], num_classes=2, out_channels=1))
    return dict(type='CascadeEncoderDecoder', num_stages=2, decode_head=heads) if first else dict(decode_head=heads[0])


def config_of(name: str, out_channels: int, data: Path, folder: Path) -> Config:
    cfg = engine.load_config(UPERNET, toy_overrides(data, **{
        'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'param_scheduler': []}), str(folder))
    model = cfg.model
    model.pop('decode_head')
    model.auxiliary_head = None
    model.update(with_head(name, out_channels))
    if name in BACKBONES:
        model.backbone = BACKBONES[name]
    if name == 'PointHead':
        model.train_cfg = dict(num_points=64, oversample_ratio=3, importance_sample_ratio=0.75)
        model.test_cfg = dict(mode='whole', subdivision_steps=2, subdivision_num_points=64, scale_factor=2)
    scale = (300, 200) if name == 'LRASPPHead' else SIZE[::-1]  # it pools 49 x 49 cells
    for split in ('train', 'val', 'test'):
        resize, = (step for step in cfg[f'{split}_dataloader'].dataset.pipeline if step.type == 'Resize')
        resize.scale = scale
        cfg[f'{split}_dataloader'].dataset.metainfo = dict(classes=('ground', 'object'), palette=[[0] * 3, [255] * 3])
    if name == 'PIDHead':
        cfg.train_dataloader.dataset.pipeline.insert(-1, dict(type='GenerateEdge', edge_width=4))
    return cfg


@pytest.mark.parametrize('name, out_channels', [
    pytest.param(name, channels, marks=[] if (name, channels) in QUICK else pytest.mark.slow)
    for name in HEADS for channels in (1, 2) if channels == 2 or name not in NEVER_BINARY])
def test_a_head_trains_validates_tests_predicts_and_writes_a_report(name: str, out_channels: int, data: Path,
                                                                 tmp_path: Path) -> None:
    engine.train(config_of(name, out_channels, data, tmp_path))
    validated = json.loads((tmp_path / 'validations.json').read_text())['1']
    checkpoint = tmp_path / 'iter_1.pth'
    tested = engine.test(config_of(name, out_channels, data, tmp_path / 'test'), checkpoint, report=tmp_path / 'report')
    if name != 'LightHamHead':  # which draws random numbers in each forward pass
        assert tested['mIoU'] == validated['mIoU']
    report = json.loads((tmp_path / 'report/report.json').read_text())
    assert 100 * report['metrics']['regions']['mIoU'][0] == pytest.approx(tested['mIoU'], abs=0.005)
    assert np.sum(report['confusion']) == 2 * (SIZE[0] - 4) * SIZE[1]
    actual, = predict(data / 'images/validation/a.jpg', tmp_path / UPERNET.name, checkpoint, 'cpu')
    assert actual.label_map.shape == SIZE and {*np.unique(actual.label_map)} <= {0, 1}
