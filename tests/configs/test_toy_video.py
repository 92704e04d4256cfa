"""The config of the toy videos trains a step, tests whole videos or windows, and paints them."""
from pathlib import Path

import pytest
import torch
from mmengine.logging import MessageHub

from cpvt_mm import engine
from cpvt_mm.engine import load_config
from tests.conftest import MASK2FORMER_VIS, toy_overrides


@pytest.mark.slow
@pytest.mark.parametrize('ndim, window', [(2, None), (3, 3)])
def test_trains_a_step_and_predicts_videos(ndim: int, window: int | None, toy_video: Path, tmp_path: Path) -> None:
    options = toy_overrides(toy_video, **{
        'train_cfg.max_iters': 1, 'train_cfg.val_interval': 10, 'default_hooks.checkpoint.interval': 1,
        'model.backbone.position_encoding.ndim': ndim, 'test_dataloader.dataset.indices': 2,
        'model.data_preprocessor.window': window})
    engine.train(load_config(MASK2FORMER_VIS, options, str(tmp_path)))
    losses = {name: buffer.current() for name, buffer in MessageHub.get_current_instance().log_scalars.items()
              if 'loss' in name}
    assert 'train/loss' in losses and all(torch.tensor(value).isfinite() for value in losses.values())
    cfg = load_config(MASK2FORMER_VIS, options, str(tmp_path))
    assert 'youtube_vis/segm_mAP' in engine.test(cfg, tmp_path / 'iter_1.pth', tmp_path / 'painted')
    assert {path.name for path in (tmp_path / 'painted').iterdir()} == {
        f'{video:06d}_{frame:05d}.png' for video in range(2) for frame in range(8)}
