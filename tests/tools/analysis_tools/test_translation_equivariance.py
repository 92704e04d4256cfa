from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from cpvt_lab.equivariance import ENCODINGS
from cpvt_mm.engine import load_config
from tests.conftest import UPERNET
from tests.tools.conftest import read_rows

Run = Callable[..., str]
TOOL = 'analysis_tools/translation_equivariance.py'
SMALL = ('--size', 128, '--shift', 32)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    cfg, path = load_config(UPERNET), tmp_path / 'weights.pth'
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        torch.save(MODELS.build(cfg.model).state_dict(), path)
    return path


@pytest.mark.slow
def test_compares_all_encodings_in_a_backbone_with_random_weights(run_tool: Run, tmp_path: Path,
                                                                  capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/figure.png'
    assert run_tool(TOOL, '--backbone', 'PyramidCPVT', '--arch', 'nano', *SMALL, '--out', out) == ''
    rows = {row['encoding']: row for row in read_rows(out.with_suffix('.csv'))}
    assert list(rows) == list(ENCODINGS)
    assert float(rows['PEG']['error_without_attention']) <= 1e-5 < 1e-3 < float(rows['PEG']['error'])
    assert float(rows['learnable 2-D']['error_without_attention']) > 0.1
    table = out.with_suffix('.md').read_text()
    assert table in capsys.readouterr().out
    assert 'PyramidCPVT-nano, features of stride 16: a picture moves by 32 pixels on a canvas of 128 x 128' in table
    assert table.count('\n| ') == len(ENCODINGS) + 1
    assert out.read_bytes().startswith(b'\x89PNG')
    assert sorted(path.name for path in out.parent.iterdir()) == ['figure.csv', 'figure.md', 'figure.png']


@pytest.fixture
def few_encodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has the tool compare only those that it names, to save time."""
    few = {name: ENCODINGS[name] for name in ('random table', 'PEG')}
    monkeypatch.setattr('cpvt_lab.equivariance.ENCODINGS', few)
    return list(few)


@pytest.mark.slow
@pytest.mark.usefixtures('few_encodings')
def test_seed_settles_everything(run_tool: Run, tmp_path: Path) -> None:
    texts = []
    for name, seed in (('a', 1), ('b', 1), ('c', 2)):
        assert run_tool(TOOL, UPERNET, *SMALL, '--seed', seed, '--out', tmp_path / f'{name}.png') == ''
        texts.append((tmp_path / f'{name}.csv').read_text())
    assert texts[0] == texts[1] != texts[2]


def test_an_encoding_of_the_config_comes_first(few_encodings: list[str], run_tool: Run, tmp_path: Path) -> None:
    out = tmp_path / 'figure.png'
    assert run_tool(TOOL, UPERNET, '--cfg-options', 'model.backbone.position_encoding.type=PEG',
                    'model.backbone.position_encoding.kernel_size=5', *SMALL, '--out', out) == ''
    assert [row['encoding'] for row in read_rows(tmp_path / 'figure.csv')] == ['of the config', *few_encodings]


def test_measures_a_checkpoint_with_its_own_encoding_on_a_photograph(checkpoint: Path, run_tool: Run,
                                                                     tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 130, 3), np.uint8)).save(tmp_path / 'image.png')
    out = tmp_path / 'figure.png'
    assert run_tool(TOOL, UPERNET, '--checkpoint', checkpoint, '--image', tmp_path / 'image.png', *SMALL,
                    '--out', out) == ''
    row, = read_rows(tmp_path / 'figure.csv')
    assert row['encoding'] == 'of the checkpoint'
    assert float(row['error_without_attention']) <= 1e-5


def test_a_checkpoint_of_another_encoding_does_not_fit(checkpoint: Path, run_tool: Run) -> None:
    message = run_tool(TOOL, UPERNET, '--checkpoint', checkpoint, '--cfg-options',
                       'model.backbone.position_encoding.type=RotaryPE', *SMALL)
    assert message.startswith(f'error: checkpoint {checkpoint} does not fit') and 'left over' in message
