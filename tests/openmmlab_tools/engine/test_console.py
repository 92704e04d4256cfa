"""The console of a run has what readers need, and the log file the rest."""
import json
import logging
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.runner import Runner
from pycocotools.coco import COCO

from openmmlab_tools import engine
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.engine.console import readable_console
from openmmlab_tools.engine.steps import scale_rate
from openmmlab_tools.errors import for_readers, show
from tests.helpers import toy_overrides
from tests.openmmlab_tools.toy import SEGMENTOR
from tests.pictures import is_drawn

STEPS = {'log_level': 'INFO', 'train_cfg.val_interval': 1, 'default_hooks.checkpoint.interval': 1,
         'default_hooks.checkpoint.save_best': 'mIoU', 'default_hooks.checkpoint.rule': 'greater'}
LOSS = re.compile(r'^Iter\(train\) +\[\d/\d\]  .*lr: \S+  eta: \S+  loss: \S+$', re.MULTILINE)


class Warn(Hook):
    """Warns twice before training, and after the first iteration."""

    def before_train(self, runner: Runner) -> None:
        for _ in range(2):
            runner.logger.warning('odd settings')
            warnings.warn('odd data', UserWarning, stacklevel=1)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        runner.logger.warning(f'odd iteration {runner.iter}')


@pytest.fixture(scope='module')
def cfg(toy_shapes: Path) -> Callable[..., Config]:
    return lambda folder, iters, **options: load_config(
        SEGMENTOR, toy_overrides(toy_shapes, **{**STEPS, 'train_cfg.max_iters': iters, **options}), str(folder))


def printed(call: Callable[..., object], cfg: Config, *args: object, **kwargs: object) -> Any:
    """Calls with a config; what it prints, its log file, and its work dir."""
    folder = Path(cfg.work_dir)
    known = {path: path.stat().st_size for path in folder.rglob('*.log')}
    with redirect_stdout(StringIO()) as out:
        call(cfg, *args, **kwargs)
    # Two runs that begin in the same second have one log file.
    [log] = [path for path in folder.rglob('*.log') if known.get(path) != path.stat().st_size]
    return SimpleNamespace(out=out.getvalue(), log=log.read_text(), folder=folder)


@pytest.fixture(scope='module')
def run(cfg: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two iterations with a validation after each."""
    return printed(train, cfg(tmp_path_factory.mktemp('run'), 2), resume='auto', hooks=[Warn()])


@pytest.mark.slow
def test_a_training_begins_with_what_is_trained_and_tells_each_warning_once(run: Any) -> None:
    before = run.out[:LOSS.search(run.out).start()].splitlines()
    assert len(before) <= 40 and before[0].endswith(': training from the beginning.')
    actual = dict(re.split(' {2,}', line, maxsplit=1) for line in before if re.match(r'\w[\w ]* {2,}', line))
    assert actual['model'].startswith('EncoderDecoder (0.2 M parameters), backbone ResNet (0.2 M')
    assert actual['train'] == '8 images'
    assert actual['classes'] == '6: background, sun, ball, kite, boat, square'
    assert actual['batch'].startswith('2 images on 1 x ') and actual['batch'].endswith('; AdamW, lr 0.001')
    assert Path(actual['results in']).resolve() == run.folder.resolve()
    told = [line for line in before if line.startswith('warning: ')]
    assert [sum(text in line for line in told) for text in ('odd settings', 'odd data')] == [1, 1]


def test_what_mmengine_logs_is_in_the_file_only(run: Any) -> None:
    for text in ('System environment', 'default_hooks = dict', 'Hooks will be executed', 'paramwise_options',
                 'data_time: ', '"FileClient" will be deprecated'):
        assert text in run.log and text not in run.out
    for line in run.out.splitlines()[1:]:  # and all that the run prints, but for the progress
        assert line.startswith('Iter(') or line.removeprefix('warning: ') in run.log
    assert run.log.count('odd data (UserWarning at ') == 1


def test_frozen_parameters_are_one_line(cfg: Callable[..., Config], tmp_path: Path) -> None:
    done = printed(train, cfg(tmp_path, 1, **{'model.backbone.frozen_stages': 4, 'train_cfg.val_interval': 9}))
    frozen = re.findall(r'(\S+) is skipped since its requires_grad=False', done.log)
    note = f'note: {len(frozen)} parameters are frozen (requires_grad=False), such as backbone.conv1.weight. '
    assert len(frozen) > 50 and done.out.count('requires_grad=False') == done.out.count(note) == 1


def test_losses_validations_and_results_are_printed_without_control_codes(run: Any) -> None:
    assert '\x1b' not in run.out and len(LOSS.findall(run.out)) == 2
    assert run.out.index('warning: odd iteration 0') < run.out.index('[2/2]')
    assert re.search(r'^validation after +1 +2\naAcc +\S+ +\S+\nmIoU', run.out, re.MULTILINE)
    by_class = re.findall(r'^(?:background|sun|ball|kite|boat|square) .* (\S+) +\S+ +\S+$', run.out, re.MULTILINE)
    last = json.loads((run.folder / 'validations.json').read_text())['2']
    assert np.nanmean([float(iou.replace('-', 'nan')) for iou in by_class]) == pytest.approx(last['mIoU'], abs=0.01)
    for name in ('curve.png', 'confusion.png'):
        assert f'{run.folder.name}/{name}' in run.out
        assert is_drawn(run.folder / name)


def test_a_resumed_run_goes_on_with_the_validations(run: Any, cfg: Callable[..., Config], tmp_path: Path) -> None:
    folder = shutil.copytree(run.folder, tmp_path / 'copy')
    known = json.loads((folder / 'validations.json').read_text())
    (folder / 'validations.json').unlink()  # the checkpoint has them, too
    resumed = printed(train, cfg(folder, 3), resume='auto')
    assert 'resumed     after iteration 2\n' in resumed.out and '[3/3]  ' in resumed.out
    now = json.loads((folder / 'validations.json').read_text())
    assert {**now, **known} == now and now.keys() == {'1', '2', '3'}


@pytest.mark.parametrize('verbose', [False, True])
def test_a_test_leaves_the_folder_of_the_training_alone(verbose: bool, run: SimpleNamespace,
                                                        cfg: Callable[..., Config]) -> None:
    before = {path for path in run.folder.glob('*') if path.name != 'test'}
    tested = printed(engine.test, cfg(run.folder, 1), run.folder / 'iter_2.pth', verbose=verbose)
    assert {*run.folder.glob('*')} == before | {run.folder / 'test'}
    assert re.search(r'^mIoU +\d', tested.out, re.MULTILINE) and len([*run.folder.glob('test/*/confusion.png')]) > 0
    assert ('System environment' in tested.out) == verbose and 'System environment' in tested.log


@pytest.mark.parametrize('options, rate, shown', [  # the rate that factors of parameters multiply is scaled, too
    ({'optim_wrapper.paramwise_cfg.custom_keys.decode_head.lr_mult': 10.}, 1e-3 * 2 / 16, 'to 0.00125'),
    ({'optim_wrapper.constructor': 'openmmlab_tools.UnmergedOptimWrapperConstructor', 'optim_wrapper.paramwise_cfg':
      dict(_delete_=True, custom_keys=dict(backbone=dict(lr_mult=0.5)))}, 1e-3 * 2 / 16, 'to 0.000125')])
def test_the_rate_that_is_shown_is_that_which_is_used(options: dict[str, Any], rate: float, shown: str,
                                                      cfg: Callable[..., Config], tmp_path: Path) -> None:
    used: set[float] = set()
    see = Hook()
    see.after_train_iter = lambda runner, **batch: used.update(
        group['lr'] for group in runner.optim_wrapper.optimizer.param_groups)
    done = printed(train, cfg(tmp_path, 1, **{
        'param_scheduler': [], 'train_cfg.val_interval': 9, 'auto_scale_lr.base_batch_size': 16, **options}),
                   auto_scale_lr=True, hooks=[see])
    logged = json.loads(next(tmp_path.rglob('scalars.json')).read_text().splitlines()[0])
    assert rate in (logged['lr'], logged.get('base_lr')) and logged['lr'] in used
    assert {*re.findall(r'lr: (\S+)', done.out)} == {f'{logged[name]:.4e}' for name in ('lr', 'base_lr')
                                                     if name in logged}
    assert f'{max(used):.4g}\n' in re.search('^batch .*\n', done.out, re.MULTILINE)[0] and shown in done.out
    for text in (done.out, done.log):
        assert text.count(f'The learning rate is scaled from 0.001 to {rate:.4g}, because') == 1
    written = Config.fromfile(tmp_path / SEGMENTOR.name)  # is for the scaled rate, and does not scale it again
    assert scale_rate(written) == '' and written.optim_wrapper.optimizer.lr == rate
    written.optim_wrapper.accumulative_counts = 4
    assert 'an update uses 8 images (batch size 2 x 1 processes x 4 accumulated batches)' in scale_rate(written)


def test_what_is_not_for_readers_goes_to_the_log(log: list[tuple[str, str]], capsys: pytest.CaptureFixture) -> None:
    logger, line = MMLogger.get_current_instance(), 'own'
    handlers = {*logger.handlers}
    with readable_console():
        COCO().createIndex()
        print(line)
        show('for readers')
        logger.info('details')
    with pytest.raises(RuntimeError), readable_console():
        for _ in range(2):
            logger.warning('odd\nand more')
        logger.error('wrong')
        raise RuntimeError
    quiet = MMLogger.get_instance('quiet', log_level='ERROR')  # of an earlier run
    with readable_console():
        show('for all')
    show('after it')
    assert capsys.readouterr().out == 'own\nfor readers\nwarning: odd ... (more in the log file)\nwrong\nfor all\n'
    assert ('INFO', 'creating index...') in log and ('INFO', 'details') in log
    assert {*logger.handlers} == handlers and quiet.handlers[0].level == logging.ERROR


@pytest.mark.parametrize('verbose', [False, True])
@pytest.mark.parametrize('text', ['loading annotations...', 'Loads checkpoint by local backend from path: a\x1b[31m',
                                  'The model and loaded state dict do not match exactly\n\nmissing: a\x1b[31m'])
def test_what_libraries_print_without_a_logger_goes_to_the_log(text: str, verbose: bool,
                                                               log: list[tuple[str, str]]) -> None:
    with redirect_stdout(StringIO()) as out, readable_console(verbose):
        print(text)
        print('mine')
    assert out.getvalue() == 'mine\n' and ('INFO', text if verbose else for_readers(text)) in log
