import re
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import nn

from cpvt_mm.swap import read_config, swap_backbone
from cpvt_mm.swap.writing import shipped_configs
from stock_configs import matrix
from stock_configs.matrix import Record, check, list_configs, run
from stock_configs.trial import try_out

pytestmark = pytest.mark.slow

SAMPLE = {
    'mmdet': [
        'fast_rcnn/fast-rcnn_r50_fpn_1x_coco.py',  # proposals from a file
        'mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py',  # a head without a neck, stuff
        'qdtrack/qdtrack_faster-rcnn_r50_fpn_4e_base.py',  # a detector within a tracker
    ],
    'mmseg': [
        'ocrnet/ocrnet_hr18s_4xb2-40k_cityscapes-512x1024.py',  # cascaded heads
        'fastfcn/fastfcn_r50-d32_jpu_psp_4xb4-80k_ade20k-512x512.py',  # a neck that hands maps on
    ],
}
NANO = {'PyramidCPVT': 'nano', 'CPVT': 'tiny'}
RETINANET = 'retinanet/retinanet_r50_fpn_1x_coco.py'


@pytest.mark.parametrize(('library', 'config'), [(name, config) for name in SAMPLE for config in SAMPLE[name]])
def test_a_sample_of_the_matrix(library: str, config: str) -> None:
    record = check(library, config, NANO)
    assert record.outcome == 'built', record.reason
    assert record.has_pyramid and record.family == config.split('/')[0]
    record = run(record, NANO)
    assert (record.trial, record.trial_reason) == ('ran', '')


def test_a_plain_transformer_of_the_matrix() -> None:
    record = check('mmseg', 'vit/vit_deit-s16_upernet_8xb2-80k_ade20k-512x512.py', NANO)
    assert record.outcome == 'plain', record.reason
    record = run(record, NANO)
    assert (record.trial, record.trial_reason) == ('ran', '')


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stands for the folder of configs that mmdet ships."""
    monkeypatch.setattr(matrix, 'shipped_configs', lambda library: tmp_path)
    return tmp_path


def write(path: Path, text: str, base: str = RETINANET) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"_base_ = 'mmdet::{base}'\n{text}")


def test_configs_are_listed_without_bases(folder: Path) -> None:
    for name in ('b/two.py', 'a/one.py', '_base_/models/base.py', 'a/_base_/base.py', 'a/metafile.yml'):
        write(folder / name, '')
    assert list_configs('mmdet') == ['a/one.py', 'b/two.py']


def test_all_shipped_configs_are_listed() -> None:
    for library, config in (('mmdet', RETINANET), ('mmseg', SAMPLE['mmseg'][0])):
        configs = list_configs(library)
        assert config in configs and len(configs) > 600


@pytest.mark.parametrize(('text', 'outcome', 'reason'), [
    ("model = dict(neck=dict(in_channels=[1]))", 'refused', 'its neck FPN has in_channels .1., but its backbone gives'),
    ("model = dict(backbone=dict(depth=7))", 'unavailable', 'its backbone ResNet cannot be built here .KeyError'),
    ("model = dict(bbox_head=dict(nonsense=1))", 'unavailable', r"swapped and written, but TypeError: .* 'nonsense'"),
    ("nonsense +", 'unavailable', r'config one.py cannot be read \(SyntaxError'),
    ("model = dict(_delete_=True)", 'fragment', 'no model'),
    ("model = dict(backbone=dict(_delete_=True))", 'refused', 'the config has no backbone with a type'),
])
def test_outcomes_and_reasons(folder: Path, text: str, outcome: str, reason: str) -> None:
    write(folder / 'a/one.py', text)
    record = check('mmdet', 'a/one.py', NANO)
    assert record.outcome == outcome
    assert re.search(reason, record.reason)
    assert '\n' not in record.reason and str(folder) not in record.reason


@MMENGINE_MODELS.register_module(force=True)
class NeedsResNet(nn.Module):
    """A head that breaks with any backbone but its own."""

    def __init__(self, in_channels: int, train_cfg: None, test_cfg: None) -> None:
        super().__init__()
        if in_channels != 64:
            raise RuntimeError('64 channels only')


def test_what_only_the_new_backbone_breaks_has_failed(folder: Path) -> None:
    write(folder / 'a/one.py', "model = dict(_delete_=True, type='SingleStageDetector', "
                               "backbone=dict(type='ResNet', depth=18, out_indices=(0,)), "
                               "bbox_head=dict(type='NeedsResNet', in_channels=64))")
    record = check('mmdet', 'a/one.py', NANO)
    assert (record.outcome, record.reason) == ('failed', 'RuntimeError: 64 channels only')


def test_an_error_is_excused_by_the_same_error_alone() -> None:
    assert matrix._blame('ValueError: 64 boxes', 'ValueError: 256 boxes', 'but ') == (
        'unavailable', 'but ValueError: 256 boxes')
    assert matrix._blame('ValueError: no boxes', 'ValueError: no masks', 'but ') == ('failed', 'ValueError: no boxes')
    assert matrix._blame('ValueError: no boxes', '', 'but ') == ('failed', 'ValueError: no boxes')


def test_pyramids_are_told_by_the_type_of_the_backbone() -> None:
    names = {'ResNet': True, 'mmpretrain.ConvNeXt': True, 'CSPDarknet, mmpretrain.ResNet': True, 'SVT': True,
             'PyramidVisionTransformerV2': True, 'DetectoRS_ResNet': False, 'VisionTransformer': False, '': False}
    assert {name: Record('mmdet', 'a/b.py', name, 'built').has_pyramid for name in names} == names


@pytest.fixture
def small_retinanet() -> Config:
    return swap_backbone(read_config(str(shipped_configs('mmdet') / RETINANET)), 'nano')


def test_trial_notices_a_backbone_that_is_frozen(small_retinanet: Config) -> None:
    small_retinanet.model.backbone.frozen_stages = 4
    with pytest.raises(RuntimeError, match='Nothing of the backbone learns'):
        try_out(small_retinanet)


def test_trial_notices_a_backbone_that_does_not_learn(small_retinanet: Config) -> None:
    """Weight decay would move its weights all the same."""
    for loss in (small_retinanet.model.bbox_head.loss_cls, small_retinanet.model.bbox_head.loss_bbox):
        loss.loss_weight = 0.
    with pytest.raises(RuntimeError, match=r'The step leaves backbone.stages.0 as it is'):
        try_out(small_retinanet)


def test_trial_notices_a_loss_that_is_not_finite(small_retinanet: Config) -> None:
    small_retinanet.model.bbox_head.loss_cls.loss_weight = float('nan')
    with pytest.raises(FloatingPointError, match='The loss is nan'):
        try_out(small_retinanet)


def test_trial_notices_weights_that_are_not_finite(small_retinanet: Config) -> None:
    small_retinanet.optim_wrapper.optimizer.lr = float('inf')
    with pytest.raises(FloatingPointError, match=r'leaves weights in backbone.stages.0 that are not finite'):
        try_out(small_retinanet)


def test_trial_leaves_the_config_as_it_is(small_retinanet: Config) -> None:
    before = small_retinanet.to_dict()
    try_out(small_retinanet)
    assert small_retinanet.to_dict() == before
