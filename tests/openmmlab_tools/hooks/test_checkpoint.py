"""Old checkpoints go when the new ones are there, and the log in them is of plain types and comes back to the bit."""
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.logging import HistoryBuffer, MessageHub, MMLogger
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, save_checkpoint
from torch.utils.data import DataLoader

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.hooks import PortableLogHook
from openmmlab_tools.hooks.checkpoint import DurableCheckpointHook, WholeFileBackend
from tests.helpers import read_anywhere


class Run:
    """The parts of a runner that the hook needs."""
    epoch = iter = 0
    max_iters = max_epochs = 10
    train_loop = val_loop = None

    def __init__(self, folder: Path) -> None:
        self.work_dir = str(folder)
        self.cfg = Config()
        self.logger = MMLogger(folder.name)
        self.message_hub = MessageHub(folder.name)

    def save_checkpoint(self, folder: str, filename: str, *args: object, meta: dict[str, int], **settings: object
                        ) -> None:
        info = {name: value for name, value in self.message_hub.runtime_info.items() if name == 'last_validation'}
        save_checkpoint(dict(iter=meta['iter'], info=info), f'{folder}/{filename}',
                        backend_args=settings['backend_args'])

    def train(self, hook: CheckpointHook, scores: list[float]) -> None:
        """An iteration, which is an epoch, too, and a validation for each score."""
        for score in scores:
            hook.after_train_iter(self, self.iter)
            self.iter += 1
            hook.after_train_epoch(self)
            self.epoch += 1
            hook.after_val_epoch(self, dict(mIoU=score))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def build(run: Run, **settings: object) -> DurableCheckpointHook:
    """The hook, as training starts."""
    hook = HOOKS.build({**dict(type='openmmlab_tools.DurableCheckpointHook', by_epoch=False, interval=1), **settings})
    hook.before_train(run)
    return hook


def files(run: Run) -> list[str]:
    return sorted(path.name for path in Path(run.work_dir).iterdir())


@pytest.mark.parametrize('settings, scores, gone, left', [
    ({}, [0.] * 3, [], ['iter_1.pth', 'iter_2.pth', 'iter_3.pth']),
    (dict(max_keep_ckpts=1, save_best='mIoU'), [0.1, 0.3, 0.2, 0.4],
     ['iter_1.pth', 'best_mIoU_iter_1.pth', 'iter_2.pth', 'iter_3.pth', 'best_mIoU_iter_2.pth'],
     ['best_mIoU_iter_4.pth', 'iter_4.pth']),
    # One name for all is one file.
    (dict(save_best='mIoU', filename_tmpl='latest.pth'), [0.1, 0.3], [], ['best_mIoU_latest.pth', 'latest.pth'])])
def test_old_checkpoints_go_last(settings: dict[str, object], scores: list[float], gone: list[str], left: list[str],
                                 run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    remove = WholeFileBackend.remove

    def check_and_remove(backend: WholeFileBackend, file: str) -> None:
        """There must be newer files of the same kind that are whole."""
        old = Path(file)
        last = Path((tmp_path / 'last_checkpoint').read_text())
        newest = max(read_checkpoint(path)['iter'] for path in tmp_path.glob(f'{old.name[:4]}*.pth'))
        assert old != last and read_checkpoint(last)['iter'] >= newest > read_checkpoint(old)['iter']
        removed.append(old.name)
        remove(backend, file)

    monkeypatch.setattr(WholeFileBackend, 'remove', check_and_remove)
    run.train(build(run, **settings), scores)
    assert removed == gone
    assert files(run) == sorted([*left, 'last_checkpoint'])
    assert read_checkpoint(Path((tmp_path / 'last_checkpoint').read_text()))['iter'] == len(scores)


def test_a_resumed_run_starts_with_its_checkpoint_and_without_what_a_killed_one_left(run: Run, tmp_path: Path) -> None:
    end = f'{2 ** 31 - 1}.0123456789abcdef.tmp'
    notes = ['iter_3.pth.backup.tmpkeep', 'my_notes.json.v1.tmp', 'notes.tmp']
    for name in ('iter_1.pth', 'iter_2.pth', f'iter_3.pth.{end}', f'best_mIoU_iter_3.pth.{end}',
                 f'last_checkpoint.{end}', *notes):
        (tmp_path / name).touch()
    # As in a checkpoint after which the run was killed, in front of the removal.
    run.message_hub.update_info('keep_ckpt_ids', [1, 2])
    # The last checkpoint is first the one that is resumed; the log tells the last when that one was saved.
    run.message_hub.update_info('last_ckpt', 'iter_1.pth')
    run.cfg.update(resume=True, load_from='iter_2.pth')
    assert build(run, max_keep_ckpts=1).last_ckpt == run.message_hub.get_info('last_ckpt') == 'iter_2.pth'
    assert files(run) == ['iter_2.pth', *notes]


@pytest.mark.parametrize('file, last', [
    ('iter_2.pth', 'iter_1.pth'), ('latest.pth', 'latest.pth'),
    ('last_checkpoint', 'iter_2.pth'),  # that one is whole
])
def test_a_failing_write_leaves_what_was_there(file: str, last: str, run: Run, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    hook = build(run, max_keep_ckpts=1, **(dict(filename_tmpl=file) if file == last else {}))
    run.train(hook, [0.])
    former = (tmp_path / 'last_checkpoint').read_text()

    write = Path.write_bytes

    def fail(path: Path, content: bytes) -> int:
        if path.name.startswith(file):
            raise OSError(28, 'No space left on device')
        return write(path, content)

    monkeypatch.setattr(Path, 'write_bytes', fail)
    with pytest.raises(OSError, match='No space left') as raised:
        run.train(hook, [0.])
    assert (raised.value.errno, raised.value.filename) == (28, str(tmp_path / file))
    assert hook.last_ckpt == run.message_hub.get_info('last_ckpt') == str(tmp_path / last)
    assert (tmp_path / 'last_checkpoint').read_text() == former and read_checkpoint(former)['iter'] == 1
    assert not list(tmp_path.glob('*.tmp'))


@pytest.mark.parametrize('by_epoch, epochs, expected', [
    (False, False, [*range(3, 11)]), (True, True, [*range(3, 11)]),
    (False, True, []),  # in an epoch, whose end will validate
])
def test_a_validation_that_was_cut_off_is_made_up_for_once(by_epoch: bool, epochs: bool, expected: list, run: Run,
                                                           tmp_path: Path) -> None:
    """The third of ten steps has one, and each from the fifth on."""
    def made_up(done: int) -> int:
        resumed = dict(iter=2 * done, epoch=done) if epochs else dict(iter=done)
        kind, length = (EpochBasedTrainLoop, 'max_epochs') if epochs else (IterBasedTrainLoop, 'max_iters')
        loop = type('Resumed', (kind,), resumed)(
            run, DataLoader([0, 1]), val_interval=3, dynamic_intervals=[(5, 1)], **{length: 10})
        run.train_loop, run.iter, run.epoch, run.val_loop = loop, loop.iter, loop.epoch, Mock()
        hook = HOOKS.build(dict(type='openmmlab_tools.DurableCheckpointHook', by_epoch=by_epoch, save_best='mIoU'))
        run.val_loop.run = Mock(side_effect=lambda: hook.after_val_epoch(run, dict(mIoU=0.)))  # not the best
        hook.before_train(run)
        return run.val_loop.run.call_count

    run.train(build(run, save_best='mIoU'), [0.3, 0.2])
    assert files(run) == ['best_mIoU_iter_1.pth', 'iter_1.pth', 'iter_2.pth', 'last_checkpoint']
    for step in (1, 2):  # the best, and not the best
        assert read_checkpoint(tmp_path / f'iter_{step}.pth')['info'] == dict(last_validation=step)
    assert [step for step in range(11) if made_up(step)] == expected
    if not epochs:  # it is noted in the checkpoint
        run.cfg.update(resume=True, load_from=str(tmp_path / 'iter_6.pth'))
        assert made_up(6) == 1 and made_up(6) == 0
        assert read_checkpoint(tmp_path / 'iter_6.pth')['info'] == dict(last_validation=6)


def test_an_old_best_checkpoint_may_be_gone(run: Run, tmp_path: Path) -> None:
    """It is if a run was killed after it had removed it, before the next checkpoint knew of that."""
    hook = build(run, save_best='mIoU')
    run.train(hook, [0.3])
    (tmp_path / 'best_mIoU_iter_1.pth').unlink()
    run.train(hook, [0.4])
    assert [path.name for path in tmp_path.glob('best*')] == ['best_mIoU_iter_2.pth']


def test_a_copy_of_a_work_dir_leaves_the_best_checkpoint_of_the_original_alone(run: Run, tmp_path: Path) -> None:
    run.train(build(run, save_best='mIoU'), [0.3])
    copy = Run(shutil.copytree(tmp_path, tmp_path / 'copy', ignore=shutil.ignore_patterns('copy')))
    copy.message_hub.load_state_dict(run.message_hub.state_dict())
    copy.iter = copy.epoch = 1
    copy.train(build(copy, save_best='mIoU'), [0.4])
    for folder, step in ((tmp_path, 1), (tmp_path / 'copy', 2)):
        assert [path.name for path in folder.glob('best*')] == [f'best_mIoU_iter_{step}.pth']


@pytest.mark.parametrize('settings', [
    dict(interval=3, save_begin=4, max_keep_ckpts=1), dict(interval=-1), dict(interval=7),
    dict(interval=4, by_epoch=True, save_last=False), dict(interval=5, save_best='mIoU', max_keep_ckpts=2),
    dict(interval=2, filename_tmpl='step{}.pth'), dict(interval=3, by_epoch=True, save_best=['mIoU'], rule='less')])
def test_settings_mean_what_they_mean_to_mmengine(settings: dict[str, object], tmp_path: Path) -> None:
    ours, reference = (Run(tmp_path / kind) for kind in ('openmmlab_tools.DurableCheckpointHook', 'CheckpointHook'))
    for run in (ours, reference):
        Path(run.work_dir).mkdir()
        hook = build(run, type=Path(run.work_dir).name, **settings)
        run.train(hook, [0.5, 0.4, 0.9, 0.3, 0.2, 0.1, 0.95, 0.96, 0.1, 0.2])
    assert files(ours) == files(reference) != []


def test_a_log_comes_back_to_the_bit(tmp_path: Path) -> None:
    buffers = {'train/loss': HistoryBuffer([0.1, float('nan'), float('-inf'), 1 / 3], [2, 2, 2, 1]),
               'train/count': HistoryBuffer([1, 2], [1, 1], max_length=3), 'val/mIoU': HistoryBuffer()}
    buffers['train/count'].update(2**53 + 1)
    info = dict(best_score=np.float64(1 / 3), palette=np.arange(6).reshape(2, 3))
    checkpoint = dict(
        meta=dict(iter=np.int64(3), dataset_meta=dict(classes=('a', 'b'))), state_dict={},
        message_hub=dict(log_scalars=buffers, runtime_info=info), param_schedulers=[dict(best=np.float32(2))])
    hook = PortableLogHook()
    hook.before_save_checkpoint(None, checkpoint)
    torch.save(checkpoint, tmp_path / 'a.pth')
    read = read_anywhere(tmp_path / 'a.pth')
    hub = read['message_hub']
    assert (read['meta'], read['param_schedulers'], hub['runtime_info']) == (
        dict(iter=3, dataset_meta=dict(classes=('a', 'b')), config_without_secrets=True), [dict(best=2.)],
        dict(best_score=1 / 3, palette=[[0, 1, 2], [3, 4, 5]]))
    hook.after_load_checkpoint(None, read)
    assert list(hub['log_scalars']) == list(buffers)
    for buffer, log_scalar in zip(buffers.values(), hub['log_scalars'].values(), strict=True):
        assert log_scalar.max_length == buffer.max_length
        for theirs, ours in zip(buffer.data, log_scalar.data, strict=True):
            assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
