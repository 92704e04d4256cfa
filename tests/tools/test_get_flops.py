from collections.abc import Callable

import pytest

from tests.conftest import ROOT

CONFIGS = ROOT / 'configs/pyramid_cpvt'


def test_prints_a_row_for_each_config(run_tool: Callable[..., str], capsys: pytest.CaptureFixture) -> None:
    names = ('mask-rcnn_pyramid-cpvt-t_fpn_1x_coco', 'upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512')
    assert run_tool('analysis_tools/get_flops.py', *(CONFIGS / f'{name}.py' for name in names), '--shape', 64, 96) == ''
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
    assert [row[0] for row in rows] == ['| config', *(f'| {name}' for name in names)]
    assert [row[2] for row in rows[1:]] == ['12.34', '23.59']


def test_a_missing_config_is_named(run_tool: Callable[..., str]) -> None:
    assert run_tool('analysis_tools/get_flops.py', 'no.py') == 'error: config no.py does not exist: check the path.'
