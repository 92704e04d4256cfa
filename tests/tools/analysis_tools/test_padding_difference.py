from collections.abc import Callable
from pathlib import Path

import pytest

from cpvt_lab.equivariance import ENCODINGS
from tests.conftest import MASK_RCNN
from tests.tools.conftest import read_rows


def test_table_and_figure_of_ours_with_each_encoding(run_tool: Callable[..., str], tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: ENCODINGS[name] for name in ('none', 'PEG')}
    monkeypatch.setattr('cpvt_lab.equivariance.ENCODINGS', few)
    out = tmp_path / 'new/padding.png'
    assert run_tool('analysis_tools/padding_difference.py', MASK_RCNN, '--encodings', '--image', '33x60', '--neighbour',
                    '64x96', '--rounds', 1, '--out', out) == ''
    rows = read_rows(out.with_suffix('.csv'))
    exact = [row for row in rows if row['backbone'].endswith("padding='exact'")]
    assert [row['backbone'] for row in rows] == [
        f'PyramidCPVT, {name}{padding}' for name in few for padding in ('', ", padding='exact'")]
    assert all(float(row['max_abs']) < 1e-4 for row in exact)
    assert all(float(row['error_3']) > 0.05 for row in rows if row not in exact)
    assert all(float(row['forward_s']) > 0 and float(row['step_s']) > 0 for row in rows)
    assert out.stat().st_size > 10_000
    assert out.with_suffix('.md').read_text() in capsys.readouterr().out
