from collections.abc import Callable

import pytest

from tests.conftest import ROOT

CONFIGS = ROOT / 'configs'


@pytest.mark.slow
def test_prints_a_row_for_each_config(run_tool: Callable[..., str], capsys: pytest.CaptureFixture) -> None:
    names = ('mask-rcnn_pyramid-cpvt-t_fpn_1x_coco', 'upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512',
             'pyramid-cpvt-s_16xb64_in1k')
    paths = [CONFIGS / f'pyramid_cpvt/{name}.py' for name in names]
    assert run_tool('analysis_tools/get_flops.py', *paths, '--shape', 64, 96) == ''
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
    assert [row[0] for row in rows] == ['| config', *(f'| {name}' for name in names)]
    assert [row[2] for row in rows[1:]] == ['12.34', '23.59', '23.59']


def test_a_teacher_is_no_part_of_a_classifier(run_tool: Callable[..., str], capsys: pytest.CaptureFixture) -> None:
    path = CONFIGS / 'cpvt/cpvt-ti-distilled_16xb64_in1k.py'
    assert run_tool('analysis_tools/get_flops.py', path) == ''
    # The backbone, and two linear layers of 193 x 1000.
    assert '| 224 x 224 | 5.49 | 5.87 | 2.5 | 2.5 |' in capsys.readouterr().out
