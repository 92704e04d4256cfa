"""Runs that train, resume and test, and what users are told when they cannot."""
import errno
import multiprocessing
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import MODELS
from mmengine.runner import Runner

from openmmlab_tools import engine
from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import load_config, prepare, train
from openmmlab_tools.engine.failures import failures_as_user_errors
from openmmlab_tools.engine.runner import build_runner
from openmmlab_tools.engine.work_dir import Start, WorkDir
from openmmlab_tools.errors import UserError
from tests.helpers import Trained, refusal, toy_overrides
from tests.openmmlab_tools.resuming import assert_same
from tests.openmmlab_tools.toy import DETECTOR, SEGMENTOR

TrainConfig = Callable[..., Config]


@pytest.fixture(scope='module')
def config(toy_shapes: Path) -> TrainConfig:
    steps = {'train_cfg.val_interval': 100, 'default_hooks.checkpoint.interval': 2}
    return lambda work_dir, iters, **options: load_config(
        SEGMENTOR, toy_overrides(toy_shapes, **steps, **{'train_cfg.max_iters': iters}, **options), str(work_dir))


@pytest.mark.parametrize('amp, dtype', [(True, 'bfloat16'), ('float16', 'float16')])
def test_amp_keeps_the_dtype_of_the_config_unless_it_names_one(amp: bool | str, dtype: str,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('openmmlab_tools.engine.steps.get_device', lambda: 'cpu')  # it ends there
    refusal(train, cfg := Config(dict(optim_wrapper=dict(dtype='bfloat16'))), amp)
    assert cfg.optim_wrapper.dtype == dtype


SYNCHRONIZED = [dict(type='SyncBN', requires_grad=True), dict(type='MMSyncBN', stats_mode='N')]


@pytest.mark.parametrize('norm', SYNCHRONIZED)
def test_norms_of_several_processes_train_in_one(norm: dict, config: TrainConfig, tmp_path: Path) -> None:
    cfg = config(tmp_path, 1)
    cfg.model.backbone.norm_cfg = norm
    kinds: list[str] = []
    watch = Hook()
    watch.after_train = lambda runner: kinds.append(type(runner.model.backbone.bn1).__name__)
    train(cfg, hooks=[watch])
    assert kinds == ['_BatchNormXd']
    assert Config.fromfile(tmp_path / SEGMENTOR.name).model.backbone.norm_cfg == norm  # for other machines


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, as torchrun makes it."""
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.is_available(), reason='there they train')
@pytest.mark.parametrize('norm', SYNCHRONIZED)
def test_norms_of_several_processes_need_a_gpu(norm: dict, config: TrainConfig, group: None, tmp_path: Path) -> None:
    cfg = config(tmp_path, 1)
    cfg.model.backbone.norm_cfg = norm
    assert refusal(train, cfg) == (
        'backbone.bn1 of the model is a SyncBN or MMSyncBN, which several processes run on GPUs only: set '
        "norm_cfg.type='BN' there, or use one process.")


def test_runs_that_begin_in_the_same_second_have_their_own_scope_and_log(
        config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segmentor = config(tmp_path / 'segmentor', 1)
    detector = Config(dict(model=dict(type='ToyModel'), default_scope='mmdet', work_dir=str(tmp_path / 'detector')),
                      filename=segmentor.filename)
    monkeypatch.setitem(MODELS.module_dict, 'ToyModel', BaseDataPreprocessor)  # any model
    monkeypatch.setattr('time.time', lambda: 0.)
    first, second = build_runner(prepare(segmentor)), build_runner(prepare(detector))
    assert (first.default_scope.scope_name, second.default_scope.scope_name) == ('mmseg', 'mmdet')
    assert {path.name for path in tmp_path.glob('*/*/*.log')} == {f'{first.timestamp}.log'}
    assert first.logger is not second.logger and first.message_hub is not second.message_hub


@pytest.fixture(scope='module')
def whole(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work dir of four iterations without interruption, with a seed that the config leaves open."""
    folder = tmp_path_factory.mktemp('whole')
    train(config(folder, 4, randomness=dict(seed=None)), resume='auto')  # there is none: from the beginning
    return folder


def run_log(work_dir: Path) -> str:
    return ''.join(file.read_text() for file in work_dir.glob('*/*.log'))


@pytest.mark.slow
def test_what_plain_mmengine_wrote_is_resumed_and_says_so(config: TrainConfig, whole: Path, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture) -> None:
    checkpoint, path = read_checkpoint(whole / 'iter_2.pth'), tmp_path / 'old.pth'
    del checkpoint['meta']['seeded_each_iteration']
    scalars = checkpoint['message_hub']['log_scalars']
    scalars.update({name: HistoryBuffer(value['log_history'].numpy(), value['count_history'].numpy())
                    for name, value in scalars.items()})
    torch.save(checkpoint, path)
    train(config(tmp_path / 'new', 3), resume=str(path))
    log = run_log(tmp_path / 'new')
    assert log.count('from a run without a seed for each iteration') == log.count('results may differ') == 1
    rates = read_checkpoint(tmp_path / 'new/iter_3.pth')['message_hub']['log_scalars']['train/lr']['log_history']
    assert len(rates) == 1  # those of the two iterations before are left out, and told
    assert 'plain data under message_hub; they are skipped' in ' '.join(capsys.readouterr().out.split())


def test_a_resumed_run_names_what_differs_from_that_of_its_checkpoint(config: TrainConfig, whole: Path, data: Path,
                                                                      tmp_path: Path) -> None:
    for file in ('images/training/000000.jpg', 'annotations/training/000000.png'):
        (data / file).unlink()
    train(config(tmp_path, 4, randomness=dict(seed=5), **{
        'train_dataloader.dataset.data_root': str(data), 'optim_wrapper.optimizer.lr': 0.5}),
          resume=str(whole / 'iter_4.pth'))
    name, log = read_checkpoint(whole / 'iter_4.pth')['meta']['experiment_name'], run_log(tmp_path)
    [told] = re.findall(f'The checkpoint is from run {name}, which had other settings: (.*)\n', log)
    assert 'number of training images is 7 (not 8)' in told and 'optim_wrapper.optimizer.lr is 0.5 (not 0.001)' in told
    assert log.count('but this run has seed 5') == log.count('results may differ') == 1


@pytest.mark.parametrize('scope, config, metric, options', [
    ('mmseg', SEGMENTOR, 'mIoU', {'default_hooks.logger.interval': 2}),
    pytest.param('mmdet', DETECTOR, 'coco/bbox_mAP', {'model.test_cfg.rcnn.score_thr': 0.}, marks=pytest.mark.slow)])
def test_a_test_gives_metrics_paints_every_image_and_leaves_the_config_of_the_training_alone(
        scope: str, config: Path, metric: str, options: dict[str, Any], trained: dict[str, Trained], toy_shapes: Path,
        tmp_path: Path) -> None:
    written, checkpoint = (Path(shutil.copy(path, tmp_path)) for path in trained[scope])
    before = written.read_text()
    if scope == 'mmdet':
        options = {'test_evaluator.ann_file': f'{toy_shapes}/instances_validation.json', **options}
    cfg = load_config(config, toy_overrides(toy_shapes, **options), str(written.parent))
    assert 0 <= engine.test(cfg, checkpoint, tmp_path / 'painted')[metric] <= 100
    painted = {path.name: cv2.imread(str(path)).shape for path in (tmp_path / 'painted').iterdir()}
    images = {f'{path.stem}.png': cv2.imread(str(path)).shape for path in (toy_shapes / 'images/validation').iterdir()}
    # The ground truth on the left, the prediction right.
    assert painted == {name: (height, 2 * width, 3) for name, (height, width, _) in images.items()}
    assert 'no.pth' in refusal(engine.test, cfg, 'no.pth')
    if scope == 'mmseg':
        cfg.test_dataloader.dataset.metainfo.classes = cfg.test_dataloader.dataset.metainfo.classes[::-1]
        assert 'has the 6 classes of the test data in another order' in refusal(engine.test, cfg, checkpoint)
    assert written.read_text() == before and list(written.parent.glob('*.py')) == [written]


@pytest.mark.slow
def test_a_signal_saves_the_last_whole_iteration_and_resuming_equals_an_uninterrupted_run(
        config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    def terminate(runner: Runner, **batch: object) -> None:
        if runner.iter == 2:  # this process and its workers get it, as from Slurm
            processes = os.getpid(), *(worker.pid for worker in multiprocessing.active_children())
            subprocess.run(['kill', '-TERM', *map(str, processes)], check=True)

    hook, expected = Hook(), read_checkpoint(whole / 'iter_4.pth')
    hook.before_train_iter = terminate
    cfgs = [config(tmp_path, 4, randomness=dict(seed=expected['meta']['seed'])) for _ in range(2)]
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised:
        train(cfgs[0], hooks=[hook])
    assert raised.value.code == 143 and signal.getsignal(signal.SIGTERM) == handler
    assert WorkDir(tmp_path).find_checkpoint().path == str(tmp_path / 'iter_3.pth')
    train(cfgs[1], resume='auto')
    assert_same(read_checkpoint(tmp_path / 'iter_4.pth'), expected)


def test_a_second_run_in_the_same_work_dir_ends_with_a_sentence(config: TrainConfig, tmp_path: Path) -> None:
    # The second is a copy of this process, which has imported all that training needs.
    told = multiprocessing.get_context('fork').SimpleQueue()
    second = multiprocessing.get_context('fork').Process(
        target=lambda: told.put(refusal(train, config(tmp_path, 1), resume='iter_9.pth')))  # the first may remove it
    hook = Hook()
    hook.after_train_iter = lambda *args, **kwargs: (second.start(), second.join())
    train(config(tmp_path, 1), hooks=[hook])
    assert second.exitcode == 0 and told.get() == (
        f'{tmp_path} is in use by process {os.getpid()} on {platform.node()}: wait until that run ends, or choose '
        'another folder.')
    assert (tmp_path / 'iter_1.pth').exists()


def test_only_what_fails_in_the_first_iteration_of_a_run_is_told_in_a_sentence(
        config: TrainConfig, whole: Path, tmp_path: Path) -> None:
    hook, number, resume = Hook(), 2, str(whole / 'iter_2.pth')

    def before_train_iter(runner: Runner, **batch: object) -> None:
        if runner.iter == number:
            raise RuntimeError('no more')

    hook.before_train_iter = before_train_iter
    traceback = tmp_path / 'traceback.txt'
    assert refusal(train, config(tmp_path, 4), hooks=[hook], resume=resume) == (
        'training cannot begin (RuntimeError: no more): correct the config, or start from its weights with '
        f'--cfg-options load_from=CHECKPOINT instead of --resume, or see the traceback in {traceback}.')
    assert 'in before_train_iter' in traceback.read_text()
    number = 3
    assert refusal(train, config(tmp_path, 4), hooks=[hook], resume=resume, error=RuntimeError) == 'no more'


FULL = errno.ENOSPC, 'No space left on device'
SPACE = ('cannot be written (No space left on device): free space for it, in {} or in /dev/shm, the shared memory of '
         'data loader workers, then ')


@pytest.mark.parametrize('error, resumable, words', [
    (OSError(*FULL, 'a.log'), True, f'a.log {SPACE}continue from iter_2.pth with --resume.'),
    (OSError(*FULL), False, f'a file {SPACE}start again.'), (PermissionError('no'), True, 'no'),
    (RuntimeError('[/a/gloo/pair.cc:553] Connection closed by peer'), True,  # as gloo says when another rank has died
     'rank 0 waits for another rank, which has died or hangs longer than env_cfg.dist_cfg.timeout ([/a/gloo/pair.cc:'
     '553] Connection closed by peer): see why in its log, then continue with --resume.')])
def test_what_is_lost_during_a_run_is_told_with_a_way_on(error: Exception, resumable: bool, words: str, tmp_path: Path
                                                         ) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    kind = PermissionError if isinstance(error, PermissionError) else UserError  # which is told elsewhere
    with pytest.raises(kind) as raised, failures_as_user_errors('it fails', WorkDir(tmp_path), resumable):
        raise error
    assert str(raised.value) == words.format(tmp_path) and len([*tmp_path.iterdir()]) == 1  # no traceback


def test_a_work_dir_that_is_gone_is_named(config: TrainConfig, tmp_path: Path) -> None:
    hook, work_dir = Hook(), tmp_path / 'work'
    hook.after_train_iter = lambda *args, **batch: shutil.rmtree(work_dir)
    assert f'work dir {work_dir} was removed or renamed during the run: put it back if you can, ' in refusal(
        train, config(work_dir, 2), hooks=[hook])


WHOLE = dict(meta={}, state_dict=dict(weight=torch.ones(1000)), optimizer={}, message_hub={})
WEIGHTS = dict(meta={}, state_dict={}, message_hub={})


def write(path: Path, content: dict | bytes) -> None:
    """Writes a checkpoint, or bytes that are none."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(dict(content, meta=dict(iter=1, epoch=0)), path)


@pytest.mark.parametrize('note, content, expected, reason', [
    ('iter_3.pth\n', None, 'iter_3.pth', ''),  # although another is higher
    ('b/iter_2.pth', WHOLE, 'b/iter_2.pth', 'Resuming from {0}/b/iter_2.pth, in another folder, because {0}/last_'),
    ('b', None, None, '{0}/b cannot be read ('), ('a\nb', None, None, '{0}/last_checkpoint cannot be used (it has no'),
    ('\xff', None, None, '{0}/last_checkpoint cannot be used ('),
    ('b/iter_2.pth', b'PK', None, 'checkpoint {0}/b/iter_2.pth is damaged'),
    ('b/iter_2.pth', WEIGHTS, None, 'checkpoint {0}/b/iter_2.pth has no optimizer'),
    ('c/no.pth', None, None, 'checkpoint {0}/c/no.pth does not exist'),
    ('', None, None, '{0}/last_checkpoint cannot be used (it has no path)')])
def test_training_resumes_from_the_named_checkpoint_only(
        note: str, content: dict | bytes | None, expected: str | None, reason: str, tmp_path: Path, log: list) -> None:
    for folder in 'bc':
        (tmp_path / folder).mkdir()
    for name in ('iter_4.pth', 'iter_3.pth', 'c/iter_8.pth'):
        write(tmp_path / name, WHOLE)
    write(tmp_path / 'best_mIoU_iter_10.pth', WEIGHTS)  # to test with
    if content is not None:
        write(tmp_path / 'b/iter_2.pth', content)
    (tmp_path / 'last_checkpoint').write_text(note and str(tmp_path / note), 'latin-1')
    reason = reason.format(tmp_path)
    if expected is None:
        told = refusal(WorkDir(tmp_path).find_checkpoint)
        assert told.startswith(f'training cannot resume from what {tmp_path}/last_checkpoint names (')
        assert reason in told
        assert told.endswith('): put that file back, choose another with --resume CHECKPOINT (there are iter_4.pth, '
                             'iter_3.pth), or choose another --work-dir to train from the start.')
        return
    actual = WorkDir(tmp_path).find_checkpoint()
    assert actual.path == str(tmp_path / expected) and list(actual.content) == list(WHOLE)
    assert [message[:len(reason)] for _, message in log] == [reason] * bool(reason)


def test_without_a_name_only_what_a_run_in_the_work_dir_has_written_is_resumed(tmp_path: Path, log: list) -> None:
    for name, time in (('iter_5', '20260101_000005'), ('iter_4', '20260101_000004'), ('iter_3', '20260101_000004')):
        torch.save(dict(WHOLE, meta=dict(iter=1, epoch=0, experiment_name=f'my_{time}')), tmp_path / f'{name}.pth')
    write(tmp_path / 'iter_6.pth', WHOLE)
    assert WorkDir(tmp_path).find_checkpoint() is None
    assert f'checkpoint {tmp_path}/iter_6.pth is of a run that was not in this folder; ' in log[-1][1]
    (tmp_path / '20260101_000004').mkdir()  # the folder of the log
    assert WorkDir(tmp_path).find_checkpoint().path == str(tmp_path / 'iter_4.pth')
    (tmp_path / 'last_checkpoint').symlink_to('gone')
    assert 'last_checkpoint' in refusal(WorkDir(tmp_path).find_checkpoint)


def test_a_moved_work_dir_resumes_from_its_own_checkpoint_and_without_a_whole_one_there_is_a_sentence(
        tmp_path: Path, log: list) -> None:
    work_dir = WorkDir(tmp_path)
    assert work_dir.how_to_continue() == 'start again' and work_dir.find_checkpoint() is None
    assert [text for _, text in log] == [
        f'{tmp_path} has no complete checkpoint to resume from: training from the beginning.']
    for meta, missing in ((dict(iter='2', epoch=1), 'meta.iter'), (None, 'meta')):
        torch.save(dict(WHOLE, meta=meta), tmp_path / 'a.pth')
        assert f'a.pth has no {missing}, so training cannot resume. It may be' in refusal(
            work_dir.open_start, Start(str(tmp_path / 'a.pth')))
    (tmp_path / 'a').mkdir()
    write(tmp_path / 'a/iter_2.pth', WHOLE)
    # Without a note.
    assert WorkDir(tmp_path / 'a').how_to_continue() == f'continue from {tmp_path}/a/iter_2.pth with --resume'
    (tmp_path / 'a/last_checkpoint').write_text(str(tmp_path / 'a/iter_2.pth'))
    shutil.move(tmp_path / 'a', tmp_path / 'b')
    write(tmp_path / 'b/iter_3.pth', WHOLE)
    assert WorkDir(tmp_path / 'b').find_checkpoint().path == str(tmp_path / 'b/iter_2.pth')
    for step in (2, 3):
        write(tmp_path / f'b/iter_{step}.pth', b'PK')
    told = refusal(WorkDir(tmp_path / 'b').find_checkpoint)
    assert re.search(r'training cannot resume from what .*iter_2\.pth is damaged.*, choose another with ', told)


@pytest.mark.parametrize('restarts, resume, expected', [
    ('1', None, 'iter_2.pth'), ('1', 'first.pth', 'iter_2.pth'), ('0', 'first.pth', 'first.pth')])
def test_a_run_that_torchrun_restarts_resumes_and_says_so(restarts: str, resume: str | None, expected: str,
                                                          tmp_path: Path, log: list, monkeypatch: pytest.MonkeyPatch
                                                          ) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', restarts)
    for name in ('work/iter_2.pth', 'first.pth'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, WHOLE)
    (tmp_path / 'work/last_checkpoint').write_text('work/iter_2.pth')
    checkpoint, is_resumed = WorkDir('work').open_start(Start(resume))
    assert checkpoint and is_resumed and Path(checkpoint.path).name == expected
    told = [message for _, message in log if 'torchrun' in message]
    assert told == ['torchrun has restarted this run: resuming from work/iter_2.pth.'] * (restarts == '1')


@pytest.mark.slow
def test_losses_are_in_tensorboard_and_files_of_mlflow(config: TrainConfig, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')  # MLflow 3 refuses files without it
    mlflow = find_spec('mlflow')  # not among the requirements of the tests: it brings more than thirty packages
    backends = [dict(type='TensorboardVisBackend'), *[dict(type='MLflowVisBackend')] * bool(mlflow)]
    train(config(tmp_path, 2, **{'visualizer.vis_backends': backends}))
    [folder] = tmp_path.glob('*/vis_data')
    actual = [EventAccumulator(str(folder)).Reload().Scalars('decode.loss_ce')]
    if mlflow:
        client = import_module('mlflow').MlflowClient(tracking_uri=f'file://{folder}')
        [run] = client.search_runs([one.experiment_id for one in client.search_experiments()])
        actual.append(client.get_metric_history(run.info.run_id, 'decode.loss_ce'))
    for losses in actual:
        assert [loss.step for loss in losses] == [1, 2] and all(loss.value > 0 for loss in losses)
