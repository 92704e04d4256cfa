from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from swap_backbone import changes
from tests.conftest import GOLDEN, ROOT

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
PLAIN = ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py'


def test_changes_are_lines_of_a_diff() -> None:
    old = dict(a=dict(type='A', x=(1, 2)), b=[dict(c=1), dict(c=2)], d=0, e=[1])
    new = dict(a=dict(type='B'), b=[dict(c=1), dict(c=3)], d=0, e=[1, 2])
    assert list(changes(old, new)) == [
        "- a.type = 'A'", "+ a.type = 'B'", '- a.x = (1, 2)', '- b.1.c = 2', '+ b.1.c = 3', '- e = [1]', '+ e = [1, 2]']


def test_swap_backbone_writes_the_config_and_prints_what_changes(
        run_tool: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'swapped.py'
    weights = GOLDEN / 'timm.pth'
    assert run_tool('misc/swap_backbone.py', RETINANET, out, '--arch', 'nano', '--schedule', '--checkpoint',
                    weights) == ''
    printed = capsys.readouterr().out.splitlines()
    assert '- model.neck.in_channels = [256, 512, 1024, 2048]' in printed
    assert '+ model.neck.in_channels = [32, 64, 128, 192]' in printed
    assert printed[-1] == f'Wrote {out}.'
    cfg = Config.fromfile(out)
    assert (cfg.model.backbone.type, cfg.model.backbone.arch) == ('cpvt_mm.PyramidCPVT', 'nano')
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=str(weights))
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'


@pytest.mark.parametrize(('arguments', 'error'), [
    (('mmdet::misc/d2_retinanet_r50-caffe_fpn_ms-90k_coco.py', 'out.py'), 'error: the config has no backbone'),
    (('missing.py', 'out.py'), 'error: config missing.py does not exist: check the path.'),
    ((RETINANET, 'out.txt'), 'out.txt is not a name for a config: use the suffix .py.'),
    ((RETINANET, 'out.py', '--backbone', 'CPVT', '--arch', 'nano'),
     "error: 'nano' is not an arch of CPVT; allowed are tiny, small, base."),
    ((RETINANET, 'out.py', '--arch', 'huge'),
     "error: 'huge' is not an arch of PyramidCPVT; allowed are nano, tiny, small, base, large."),
    ((RETINANET, 'out.py', '--checkpoint', 'missing.pth'), 'checkpoint missing.pth does not exist: check the path.'),
    ((RETINANET, 'out.py', '--checkpoint', GOLDEN / 'deit_timm.pth'),
     'deit_timm.pth holds a CPVT (format timm), but must hold a PyramidCPVT.'),
])
def test_swap_backbone_says_why_it_writes_nothing(run_tool: Callable[..., str], tmp_path: Path, arguments: tuple,
                                                  error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = run_tool('misc/swap_backbone.py', *arguments)
    assert error in message and '\n' not in message
    assert not list(tmp_path.iterdir())


def test_swap_backbone_puts_the_plain_backbone_in(run_tool: Callable[..., str], tmp_path: Path) -> None:
    """With weights of a CPVT."""
    out, weights = tmp_path / 'swapped.py', GOLDEN / 'deit_timm.pth'
    assert run_tool('misc/swap_backbone.py', PLAIN, out, '--backbone', 'CPVT', '--arch', 'tiny', '--checkpoint',
                    weights) == ''
    model = Config.fromfile(out).model
    assert (model.backbone.type, model.backbone.arch, model.neck.in_channels) == ('cpvt_mm.CPVT', 'tiny', 192)
    assert model.backbone.init_cfg.checkpoint == str(weights)


def test_swap_backbone_says_that_weights_are_random(run_tool: Callable[..., str], tmp_path: Path,
                                                    capsys: pytest.CaptureFixture) -> None:
    assert run_tool('misc/swap_backbone.py', RETINANET, tmp_path / 'out.py') == ''
    assert capsys.readouterr().out.endswith('out.py. The backbone starts from random weights.\n')
