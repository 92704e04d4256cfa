from collections.abc import Callable
from pathlib import Path

import cv2
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.logging import MessageHub

from cpvt_mm import engine
from cpvt_mm.checkpoints.reading import read_checkpoint
from cpvt_mm.engine import load_config, train
from cpvt_mm.engine.run import _leave_alone_on_error
from cpvt_mm.errors import UserError
from tests.conftest import MASK_RCNN, UPERNET, toy_overrides

Config = Callable[..., object]


@pytest.fixture
def upernet(toy_shapes: Path) -> Config:

    def load(work_dir: Path, iters: int, **options: object) -> object:
        steps = {'train_cfg.max_iters': iters, 'train_cfg.val_interval': 100, 'default_hooks.checkpoint.interval': 2}
        return load_config(UPERNET, toy_overrides(toy_shapes, **steps, **options), str(work_dir))

    return load


def weights(path: Path) -> dict:
    return read_checkpoint(path)['state_dict']


def test_resume_equals_an_uninterrupted_run(upernet: Config, tmp_path: Path) -> None:
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    train(upernet(whole, 4))
    train(upernet(parts, 2))
    assert not (parts / 'iter_4.pth').exists()
    train(upernet(parts, 4), resume='auto')
    assert MessageHub.get_current_instance().get_info('iter') == 3  # counted from 0
    first, second = (weights(folder / 'iter_4.pth') for folder in (whole, parts))
    assert first
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    changed = [name for name, value in weights(parts / 'iter_2.pth').items() if not torch.equal(value, second[name])]
    assert len(changed) > 100


def test_resume_keeps_a_seed_that_the_config_leaves_open(upernet: Config, tmp_path: Path) -> None:
    train(upernet(tmp_path, 2, randomness=dict(seed=None)))
    seed = read_checkpoint(tmp_path / 'iter_2.pth')['meta']['seed']
    # As where the config says it, not the caller.
    cfg = upernet(tmp_path, 3, randomness=dict(seed=None), resume=True)
    train(cfg)
    assert cfg.randomness.seed == seed == read_checkpoint(tmp_path / 'iter_3.pth')['meta']['seed']


def test_resume_from_a_run_with_other_randomness_says_so(upernet: Config, tmp_path: Path) -> None:
    path = tmp_path / 'old.pth'
    train(upernet(tmp_path, 2))
    logs = ''.join(log.read_text() for log in tmp_path.glob('*/*.log'))
    checkpoint = read_checkpoint(tmp_path / 'iter_2.pth')
    del checkpoint['meta']['seeded_each_iteration']
    torch.save(checkpoint, path)
    train(upernet(tmp_path / 'new', 3), resume=str(path))
    sentence = f'{path} is from a run that was not seeded in each iteration'
    assert sentence not in logs
    assert ''.join(log.read_text() for log in tmp_path.glob('new/*/*.log')).count(sentence) == 1


def test_resume_from_a_named_checkpoint_and_from_none(upernet: Config, tmp_path: Path) -> None:
    train(upernet(tmp_path / 'a', 2), resume='auto')  # there is none: from the beginning
    train(upernet(tmp_path / 'b', 4), resume=str(tmp_path / 'a/iter_2.pth'))
    assert (tmp_path / 'b/iter_4.pth').exists()


def test_resume_refuses_a_checkpoint_of_another_model(upernet: Config, tmp_path: Path) -> None:
    train(upernet(tmp_path, 2))
    with pytest.raises(UserError, match=r'iter_2\.pth does not fit the model.* of another shape'):
        train(upernet(tmp_path, 4, **{'model.decode_head.channels': 32}), resume='auto')


@pytest.mark.parametrize('config, metric', [(UPERNET, 'mIoU'), (MASK_RCNN, 'coco/bbox_mAP')])
def test_testing_gives_metrics_and_paints_every_image(config: Path, metric: str, toy_shapes: Path, tmp_path: Path
                                                      ) -> None:
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 1, 'train_cfg.val_interval': 100})
    if config is MASK_RCNN:
        annotations = f'{toy_shapes}/instances_validation.json'
        options |= {'val_evaluator.ann_file': annotations, 'test_evaluator.ann_file': annotations,
                    'model.test_cfg.rcnn.score_thr': 0.}
    train(load_config(config, options, str(tmp_path)))
    metrics = engine.test(load_config(config, options, str(tmp_path)), tmp_path / 'iter_1.pth', tmp_path / 'painted')
    assert 0 <= metrics[metric] <= 100
    painted = {path.name: cv2.imread(str(path)).shape for path in (tmp_path / 'painted').iterdir()}
    images = {f'{path.stem}.png': cv2.imread(str(path)).shape
              for path in (toy_shapes / 'images/validation').iterdir()}
    # The ground truth on the left, the prediction right.
    assert painted == {name: (height, 2 * width, 3) for name, (height, width, _) in images.items()}


def test_auto_scale_lr_needs_and_uses_the_base(upernet: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'--auto-scale-lr needs auto_scale_lr\.base_batch_size'):
        train(upernet(tmp_path, 1), auto_scale_lr=True)
    cfg = upernet(tmp_path, 1, auto_scale_lr=dict(enable=False, base_batch_size=8), param_scheduler=None)
    train(cfg, auto_scale_lr=True)
    learning_rate = MessageHub.get_current_instance().get_scalar('train/lr').current()
    assert learning_rate == pytest.approx(1e-3 * 2 / 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason='tells what happens without a GPU')
def test_amp_without_a_gpu_is_refused(upernet: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'Mixed precision .* needs a GPU'):
        train(upernet(tmp_path, 1), amp=True)


def fail_alone(rank: int, folder: Path) -> None:
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    try:
        with _leave_alone_on_error():
            if rank:
                raise UserError('an image that this process alone has')
            dist.all_reduce(torch.ones(1))
    except (UserError, RuntimeError) as error:
        (folder / f'{rank}.txt').write_text(f'{type(error).__name__} {dist.is_initialized()}')


def test_a_process_that_fails_leaves_the_others_with_an_error(tmp_path: Path) -> None:
    mp.spawn(fail_alone, (tmp_path,), nprocs=2)
    assert [(tmp_path / f'{rank}.txt').read_text() for rank in range(2)] == ['RuntimeError False', 'UserError False']
