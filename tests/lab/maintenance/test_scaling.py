"""Communication on paper."""
import pytest

from lab.maintenance.scaling import all_reduce_seconds, most_gpus
from tests.conftest import ROOT
from tests.tools.conftest import Run


def test_a_ring_sends_all_but_a_share_twice() -> None:
    # 2 GPUs exchange both halves of 100 MB at 1 GB/s; many send nearly all of it twice.
    assert all_reduce_seconds(2, 100_000_000, 8, 0) == pytest.approx(0.1)
    assert all_reduce_seconds(1000, 100_000_000, 8, 0) == pytest.approx(0.2, rel=2e-3)
    assert all_reduce_seconds(11, 0, 8, 0.001) == pytest.approx(0.02)


@pytest.mark.parametrize('step, most', [(0.5, 1), (1.0, 2), (1.5, 4), (1e9, 65535)])
def test_the_most_gpus_stay_below_a_tenth(step: float, most: int) -> None:
    assert most_gpus(100_000_000, 8, 0, step * (1 + 1e-9)) == most


def test_the_table_has_each_backbone(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    assert run_tool(ROOT / 'lab/maintenance/scaling.py', '--gigabits', 25) == ''
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(' | ')[:3] for row in rows] == [
        ['| nano', '1.95', '7.8'], ['| tiny', '12.34', '49.3'], ['| small', '23.59', '94.4'],
        ['| base', '43.31', '173.3'], ['| large', '60.48', '241.9']]
