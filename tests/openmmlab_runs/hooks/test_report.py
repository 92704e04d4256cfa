"""Tables, figures, and the text on a run."""
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from mmengine.logging import MessageHub

from openmmlab_runs.hooks import report


def test_a_table_is_aligned_and_marks_what_is_missing() -> None:
    assert report.table([('validation after', 9, 10), ('mAP', 0.5, -1.), ('mIoU', 87.6543, float('nan'))]) == (
        'validation after       9  10\n'
        'mAP                0.500   -\n'
        'mIoU              87.654   -')
    assert report.table([('a', 'b [c] :d:'), ('longer', 'e')]) == 'a       b [c] :d:\nlonger  e'


@pytest.mark.parametrize('validations', [{}, {100: dict(mAP=0.25, mAP_l=-1), 300: dict(mAP=0.5, mAP_50=0.75)}])
def test_the_curve_has_all_losses_and_metrics_by_iteration(validations: dict, monkeypatch: pytest.MonkeyPatch,
                                                           tmp_path: Path) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(report, 'write_figure', lambda path, figure: drawn.append(figure))
    hub = MessageHub.get_instance('curve')
    losses = np.random.rand(200)
    for loss in losses:
        hub.update_scalar('train/loss', float(loss))
    # Resumed after 100 iterations from a checkpoint without a log.
    report.draw_curve(SimpleNamespace(message_hub=hub, iter=300, work_dir=str(tmp_path)), validations)
    loss, *metrics = drawn[0].axes
    every, smooth = (line.get_xydata() for line in loss.lines)
    assert every[:, 0].tolist() == list(range(101, 301)) and (every[:, 1] == losses).all()
    assert smooth[-1].tolist() == pytest.approx([300, losses[-4:].mean()])  # a fiftieth of the run
    lines = {line.get_label(): line.get_xydata() for axes in metrics for line in axes.lines}
    assert lines.keys() == {name for one in validations.values() for name in one if name != 'mAP_l'}
    for name, line in lines.items():
        np.testing.assert_equal(line, [[step, one.get(name, np.nan)] for step, one in validations.items()])
