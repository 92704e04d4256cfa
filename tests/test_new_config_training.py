"""Options of new_config that add hooks: what stands in the config, and that a training with them stops and goes on."""
import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from cpvt_mm.new_config import new_config
from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config, train
from tests.conftest import refusal

SMALL = {'train_dataloader.num_workers': 0, 'train_dataloader.persistent_workers': False,
         'val_dataloader.num_workers': 0, 'val_dataloader.persistent_workers': False, 'randomness': dict(seed=3)}


def made(data: Path, out: Path, task: str = 'semantic', iters: int = 400, early_stop: int | None = None,
         ema: bool = False) -> Config:
    new_config(data, out, task, 'nano', (64, 64), iters, 2, early_stop=early_stop, ema=ema)
    return load_config(out, SMALL, str(out.with_suffix('')))


def test_hooks_are_those_that_are_asked_for(data: Path, tmp_path: Path) -> None:
    plain = made(data, tmp_path / 'plain.py', iters=4000)
    assert not {'ema', 'early_stopping'} & plain.default_hooks.keys() and plain.val_interval == 1000
    both = made(data, tmp_path / 'both.py', 'boxes', iters=4000, early_stop=3, ema=True)
    assert both.val_interval == 200  # validations that can end the training early
    assert both.default_hooks.early_stopping == dict(
        type='EarlyStoppingHook', monitor='coco/bbox_mAP', patience=3, rule='greater', min_delta=0.001)
    assert both.default_hooks.ema == dict(type='EMAHook', momentum=20 / 4000)
    assert made(data, tmp_path / 'maps.py', early_stop=1).default_hooks.early_stopping.min_delta == 0.1  # percent
    assert refusal(new_config, data, tmp_path / 'no.py', early_stop=0) == 'early_stop is 0, but must be at least 1.'
    for options in (dict(early_stop=1), dict(ema=True)):
        assert 'both.py has an E' in refusal(
            new_config, data, tmp_path / 'twice.py', 'boxes', base=str(tmp_path / 'both.py'), **options)


def test_a_measured_batch_is_a_number_in_the_config(data: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(cfg: Config, default: int) -> tuple[int, str]:
        assert default == cfg.train_dataloader.batch_size == 4
        return 16, 'It is 16.'

    monkeypatch.setattr('cpvt_mm.new_config.choose_batch', measure)
    assert new_config(data, tmp_path / 'my.py', 'semantic', 'nano', batch='auto')[-1] == 'It is 16.'
    assert load_config(tmp_path / 'my.py').train_dataloader.batch_size == 16


@pytest.mark.slow
def test_training_stops_early_and_goes_on_with_averaged_weights(data: Path, tmp_path: Path,
                                                                capsys: pytest.CaptureFixture) -> None:
    """Nothing is better by 1000 percent, so the second of four validations ends the training."""
    def run(name: str, patience: int, resume: str | None = None) -> str:
        cfg = load_config(tmp_path / 'my.py', {
            **SMALL, 'train_cfg.val_interval': 2, 'default_hooks.checkpoint.interval': 2,
            'default_hooks.early_stopping': dict(patience=patience, min_delta=1000.)}, str(tmp_path / name))
        train(cfg, resume=resume)
        return capsys.readouterr().out

    made(data, tmp_path / 'my.py', iters=8, early_stop=1, ema=True)
    printed = run('stopped', 1)
    assert 'Training stops early, after iteration 4 of 8, because of mIoU' in printed
    assert f'--resume continues from {tmp_path}/stopped/iter_4.pth' in printed
    assert 'Training stops early' not in run('stopped', 9, resume='auto') + run('whole', 9)
    first, second = (read_checkpoint(tmp_path / name / 'iter_8.pth') for name in ('stopped', 'whole'))
    for part in ('state_dict', 'ema_state_dict', 'optimizer'):
        torch.testing.assert_close(first[part], second[part], rtol=0, atol=0)
    # What a prediction loads is the average, which differs from the weights that are trained.
    name = next(name for name in first['state_dict'] if name.endswith('conv_seg.weight'))
    assert not torch.equal(first['state_dict'][name], first['ema_state_dict'][f'module.{name}'])
    [best] = (tmp_path / 'whole').glob('best_*.pth')
    assert re.search('iter_[2468]', best.name) and 'ema_state_dict' in read_checkpoint(best)
