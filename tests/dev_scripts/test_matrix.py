import re
from collections.abc import Callable
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
        'vit/vit_deit-s16_upernet_8xb2-80k_ade20k-512x512.py',  # a plain transformer
    ],
}
NANO = {'PyramidCPVT': 'nano', 'CPVT': 'tiny'}
RETINANET = 'retinanet/retinanet_r50_fpn_1x_coco.py'


@pytest.mark.parametrize(('library', 'config'), [(name, config) for name in SAMPLE for config in SAMPLE[name]])
def test_a_sample_of_the_matrix(library: str, config: str) -> None:
    record = check(library, config, NANO)
    is_plain = config.startswith('vit/')
    assert record.outcome == ('plain' if is_plain else 'built'), record.reason
    assert record.has_pyramid != is_plain and record.family == config.split('/')[0]
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
class Fails(nn.Module):
    """A head that fails with a message for the 64 channels of a ResNet, and with another for other channels."""

    def __init__(self, in_channels: int, for_64: str, for_others: str, train_cfg: None, test_cfg: None) -> None:
        super().__init__()
        message = for_64 if in_channels == 64 else for_others
        if message:
            raise ValueError(message)


@pytest.mark.parametrize(('for_64', 'for_others', 'outcome', 'reason'), [
    ('', '64 channels only', 'failed', 'ValueError: 64 channels only'),
    ('no boxes', 'no masks', 'failed', 'ValueError: no masks'),
    # The same but for numbers.
    ('256 boxes', '64 boxes', 'unavailable', 'swapped and written, but ValueError: 256 boxes'),
])
def test_only_the_same_error_of_the_old_backbone_excuses_that_of_the_new(
        folder: Path, for_64: str, for_others: str, outcome: str, reason: str) -> None:
    head = dict(type='Fails', in_channels=64, for_64=for_64, for_others=for_others)
    write(folder / 'a/one.py', "model = dict(_delete_=True, type='SingleStageDetector', "
                               f"backbone=dict(type='ResNet', depth=18, out_indices=(0,)), bbox_head={head})")
    record = check('mmdet', 'a/one.py', NANO)
    assert (record.outcome, record.reason) == (outcome, reason)


def test_pyramids_are_told_by_the_type_of_the_backbone() -> None:
    names = {'ResNet': True, 'mmpretrain.ConvNeXt': True, 'CSPDarknet, mmpretrain.ResNet': True, 'SVT': True,
             'PyramidVisionTransformerV2': True, 'DetectoRS_ResNet': False, 'VisionTransformer': False, '': False}
    assert {name: Record('mmdet', 'a/b.py', name, 'built').has_pyramid for name in names} == names


def freeze(cfg: Config) -> None:
    cfg.model.backbone.frozen_stages = 4


def lose_nothing(cfg: Config) -> None:
    """Weight decay would move weights all the same."""
    for loss in (cfg.model.bbox_head.loss_cls, cfg.model.bbox_head.loss_bbox):
        loss.loss_weight = 0.


def lose_nan(cfg: Config) -> None:
    cfg.model.bbox_head.loss_cls.loss_weight = float('nan')


def jump(cfg: Config) -> None:
    cfg.optim_wrapper.optimizer.lr = float('inf')


@pytest.mark.parametrize('change, error, words', [
    (freeze, RuntimeError, 'Nothing of the backbone learns'),
    (lose_nothing, RuntimeError, r'The step leaves backbone\.stages\.0 as it is'),
    (lose_nan, FloatingPointError, 'The loss is nan'),
    (jump, FloatingPointError, r'leaves weights in backbone\.stages\.0 that are not finite'),
])
def test_trial_notices_what_does_not_learn(change: Callable[[Config], None], error: type[Exception], words: str,
                                           ) -> None:
    cfg = swap_backbone(read_config(str(shipped_configs('mmdet') / RETINANET)), 'nano')
    change(cfg)
    before = cfg.to_dict()
    with pytest.raises(error, match=words):
        try_out(cfg)
    assert cfg.to_dict() == before
