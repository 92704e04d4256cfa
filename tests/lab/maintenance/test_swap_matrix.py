import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from mmengine.registry import MODELS as MMENGINE_MODELS
from torch import nn

from cpvt_mm.swap import read_config, swap_backbone
from cpvt_mm.swap.writing import shipped_configs
from lab.stock_configs import matrix
from lab.stock_configs.matrix import Record, check, list_configs, open_results, run
from lab.stock_configs.report import to_markdown
from lab.stock_configs.trial import try_out
from tests.tools.conftest import Run

SCRIPT = '../lab/maintenance/swap_matrix.py'
SAMPLE = [
    ('mmdet', 'fast_rcnn/fast-rcnn_r50_fpn_1x_coco.py'),  # proposals from a file
    ('mmdet', 'mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py'),  # a head without a neck, stuff
    ('mmdet', 'qdtrack/qdtrack_faster-rcnn_r50_fpn_4e_base.py'),  # a detector within a tracker
    ('mmseg', 'ocrnet/ocrnet_hr18s_4xb2-40k_cityscapes-512x1024.py'),  # cascaded heads
    ('mmseg', 'fastfcn/fastfcn_r50-d32_jpu_psp_4xb4-80k_ade20k-512x512.py'),  # a neck that hands maps on
    ('mmseg', 'vit/vit_deit-s16_upernet_8xb2-80k_ade20k-512x512.py'),  # a plain transformer
]
NANO = {'PyramidCPVT': 'nano', 'CPVT': 'tiny'}
RETINANET = 'retinanet/retinanet_r50_fpn_1x_coco.py'
RECORDS = [Record('mmdet', 'a/1.py', 'ResNet', 'built', trial='ran'),
           Record('mmdet', 'a/2.py', 'ResNet', 'refused', 'it is odd.'),
           Record('mmdet', 'a/3.py', 'HourglassNet', 'refused', 'it is odd.'),
           Record('mmdet', 'b/1.py', 'ResNet', 'unavailable', 'lap is not installed'),
           Record('mmdet', 'b/2.py', 'HourglassNet', 'failed', 'KeyError: x'),
           Record('mmdet', 'b/3.py', '', 'fragment', 'no model'),
           Record('mmseg', 'c/1.py', 'PCPVT', 'built', trial='failed', trial_reason='ValueError: y'),
           Record('mmseg', 'd/1.py', 'BEiT', 'plain', trial='ran')]


@pytest.mark.slow
@pytest.mark.parametrize('library, config', SAMPLE)
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


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"_base_ = 'mmdet::{RETINANET}'\n{text}")


@pytest.mark.slow
def test_all_shipped_configs_are_listed_but_no_bases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('b/two.py', 'a/one.py', '_base_/models/base.py', 'a/_base_/base.py', 'a/metafile.yml'):
        write(folder / name, '')
    assert list_configs('mmdet') == ['a/one.py', 'b/two.py']
    monkeypatch.undo()
    for library, config in (('mmdet', RETINANET), SAMPLE[3]):
        assert config in (configs := list_configs(library)) and len(configs) > 600


@pytest.mark.slow
@pytest.mark.parametrize(('text', 'outcome', 'reason'), [
    ("model = dict(neck=dict(in_channels=[1]))", 'refused', 'its neck FPN has in_channels .1., but its backbone gives'),
    ("model = dict(backbone=dict(depth=7))", 'unavailable', 'its backbone ResNet cannot be built here .KeyError'),
    ("model = dict(bbox_head=dict(nonsense=1))", 'unavailable', r"swapped and written, but TypeError: .* 'nonsense'"),
    ("nonsense +", 'unavailable', r'config one.py cannot be read \(SyntaxError'),
    ("model = dict(_delete_=True)", 'fragment', 'no model'),
    ("model = dict(backbone=dict(_delete_=True))", 'refused', 'the config has no backbone with a type')])
def test_outcomes_and_reasons(folder: Path, text: str, outcome: str, reason: str) -> None:
    write(folder / 'a/one.py', text)
    record = check('mmdet', 'a/one.py', NANO)
    assert record.outcome == outcome and re.search(reason, record.reason)
    assert '\n' not in record.reason and str(folder) not in record.reason


@MMENGINE_MODELS.register_module(force=True)
class Fails(nn.Module):
    """A head that fails with a message for the 64 channels of a ResNet, and with another for other channels."""

    def __init__(self, in_channels: int, for_64: str, for_others: str, train_cfg: None, test_cfg: None) -> None:
        super().__init__()
        message = for_64 if in_channels == 64 else for_others
        if message:
            raise ValueError(message)


@pytest.mark.slow
@pytest.mark.parametrize('for_64, for_others, outcome, reason', [
    ('', '64 channels only', 'failed', 'ValueError: 64 channels only'),
    ('no boxes', 'no masks', 'failed', 'ValueError: no masks'),
    # The same but for numbers.
    ('256 boxes', '64 boxes', 'unavailable', 'swapped and written, but ValueError: 256 boxes')])
def test_only_the_same_error_of_the_old_backbone_excuses(folder: Path, for_64: str, for_others: str, outcome: str,
                                                         reason: str) -> None:
    head = dict(type='Fails', in_channels=64, for_64=for_64, for_others=for_others)
    write(folder / 'a/one.py', "model = dict(_delete_=True, type='SingleStageDetector', "
                               f"backbone=dict(type='ResNet', depth=18, out_indices=(0,)), bbox_head={head})")
    record = check('mmdet', 'a/one.py', NANO)
    assert (record.outcome, record.reason) == (outcome, reason)


@pytest.mark.slow
@pytest.mark.parametrize('options, error, words', [
    ({'model.backbone.frozen_stages': 4}, RuntimeError, 'Nothing of the backbone learns'),
    # Weight decay would move weights all the same.
    ({f'model.bbox_head.{loss}.loss_weight': 0. for loss in ('loss_cls', 'loss_bbox')}, RuntimeError,
     r'The step leaves backbone\.stages\.0 as it is'),
    ({'model.bbox_head.loss_cls.loss_weight': float('nan')}, FloatingPointError, 'The loss is nan'),
    ({'optim_wrapper.optimizer.lr': float('inf')}, FloatingPointError,
     r'leaves weights in backbone\.stages\.0 that are not finite')])
def test_trial_notices_what_does_not_learn(options: dict[str, Any], error: type[Exception], words: str) -> None:
    cfg = swap_backbone(read_config(str(shipped_configs('mmdet') / RETINANET)), 'nano')
    cfg.merge_from_dict(options)
    before = cfg.to_dict()
    with pytest.raises(error, match=words):
        try_out(cfg)
    assert cfg.to_dict() == before


def test_the_page() -> None:
    assert {'| mmdet | 6 | 1 |  | 2 | 1 | 1 | 1 | 1 | 1 |',
            '| mmdet, of a strided pyramid | 3 | 1 |  | 1 |  | 1 |  | | |', '| mmseg | 2 | 1 | 1 |  |  |  |  | 2 | 1 |',
            '| a | 3 | 1 |  | 2 |  |  |  | ran |', '| b | 3 |  |  |  | 1 | 1 | 1 |  |',
            '| c | 1 | 1 |  |  |  |  |  | failed |', '| d | 1 |  | 1 |  |  |  |  | ran |',
            '- 2: it is odd. `mmdet::a/2.py`, `mmdet::a/3.py`', '- 1: KeyError: x `mmdet::b/2.py`',
            '- 1: ValueError: y `mmseg::c/1.py`', '- 1: lap is not installed `mmdet::b/1.py`'
    } <= {*to_markdown(RECORDS).splitlines()}
    tables = [block for block in to_markdown(RECORDS).split('\n\n') if block.startswith('|')]
    assert len(tables) == 3
    for table in tables:  # rows have the cells of their head
        assert len({line.count('|') for line in table.splitlines()}) == 1, table
    # No headings without entries, and no more than three examples.
    page = to_markdown([Record('mmseg', f'a/{i}.py', 'ResNet', 'refused', 'it is odd.') for i in range(5)])
    assert '## Failed' not in page and '## mmdet' not in page
    assert '- 5: it is odd. `mmseg::a/0.py`, `mmseg::a/1.py`, `mmseg::a/2.py` and 2 more' in page


@pytest.mark.slow
def test_does_what_is_not_done_yet(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    done, to_do = (config for config in list_configs('mmdet') if config.startswith('yolof/'))
    kept = asdict(Record('mmdet', done, 'ResNet', 'refused', 'it was kept.'))
    open_results(tmp_path / 'work').put(f'mmdet::{done}', kept)
    assert run_tool(SCRIPT, '--libraries', 'mmdet', '--families', 'yolof', '--jobs', 1, '--work-dir', tmp_path / 'work',
                    '--out', tmp_path / 'matrix.md') == ''
    page = (tmp_path / 'matrix.md').read_text()
    assert '| yolof | 2 | 1 |  | 1 |  |  |  | ran |' in page and 'it was kept.' in page
    assert page in capsys.readouterr().out
    assert dict(open_results(tmp_path / 'work')) == {
        f'mmdet::{done}': kept, f'mmdet::{to_do}': asdict(Record('mmdet', to_do, 'ResNet', 'built', trial='ran'))}
