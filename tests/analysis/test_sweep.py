from pathlib import Path

from cpvt_mm.analysis.sweep import Sweep, curves
from tests.conftest import UPERNET


def test_a_curve_for_each_metric_and_mode() -> None:
    rows = [dict(mode='whole', size='64', mIoU=1., aAcc=2.), dict(mode='slide', size='64', mIoU=3., aAcc=4.)]
    assert curves(rows, ['mIoU', 'aAcc'], 'value') == [
        dict(metric='mIoU, whole', size='64', value=1.), dict(metric='mIoU, slide', size='64', value=3.),
        dict(metric='aAcc, whole', size='64', value=2.), dict(metric='aAcc, slide', size='64', value=4.)]
    assert curves([dict(size='64x32', AP=1.)], ['AP'], 'AP') == [dict(metric='AP', size='64x32', AP=1.)]


def test_workers_end_with_each_test(tmp_path: Path) -> None:
    assert Sweep(UPERNET, 'x.pth', tmp_path).load().test_dataloader.persistent_workers is False
