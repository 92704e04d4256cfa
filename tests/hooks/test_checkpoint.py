"""Old checkpoints go when the new ones are there."""
from pathlib import Path

import pytest
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import HOOKS
from mmengine.runner import save_checkpoint

from cpvt_mm.checkpoints.reading import read_checkpoint
from cpvt_mm.hooks.checkpoint import DurableCheckpointHook, WholeFileBackend


class Run:
    """What the hook needs of a runner."""
    epoch = iter = 0
    train_loop = val_loop = None

    def __init__(self, folder: Path) -> None:
        self.work_dir = str(folder)
        self.logger = MMLogger(folder.name)
        self.message_hub = MessageHub(folder.name)

    def save_checkpoint(self, folder: str, filename: str, *args: object, meta: dict[str, int], **settings: object
                        ) -> None:
        save_checkpoint(dict(iter=meta['iter']), f'{folder}/{filename}')

    def train(self, hook: DurableCheckpointHook, scores: list[float]) -> None:
        """An iteration and a validation for each score."""
        for score in scores:
            hook._save_checkpoint(self)
            self.iter += 1
            hook.after_val_epoch(self, dict(mIoU=score))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was removed; each time, there must be newer files of the same kind that are whole."""
    names: list[str] = []
    remove = WholeFileBackend.remove

    def check_and_remove(backend: WholeFileBackend, file: str) -> None:
        old = Path(file)
        last = Path((tmp_path / 'last_checkpoint').read_text())
        newest = max(read_checkpoint(path)['iter'] for path in tmp_path.glob(f'{old.name[:4]}*.pth'))
        assert old != last and read_checkpoint(last)['iter'] >= newest > read_checkpoint(old)['iter']
        names.append(old.name)
        remove(backend, file)

    monkeypatch.setattr(WholeFileBackend, 'remove', check_and_remove)
    return names


def build(run: Run, **settings: object) -> DurableCheckpointHook:
    """The hook, as training starts."""
    hook = HOOKS.build(dict(type='cpvt_mm.DurableCheckpointHook', by_epoch=False, **settings))
    hook.before_train(run)
    return hook


def files(run: Run) -> list[str]:
    return sorted(path.name for path in Path(run.work_dir).iterdir())


def test_an_old_checkpoint_goes_last(run: Run, removed: list[str]) -> None:
    run.train(build(run, max_keep_ckpts=2), [0.] * 4)
    assert removed == ['iter_1.pth', 'iter_2.pth']
    assert files(run) == ['iter_3.pth', 'iter_4.pth', 'last_checkpoint']


def test_a_former_best_checkpoint_goes_last(run: Run, removed: list[str]) -> None:
    run.train(build(run, max_keep_ckpts=1, save_best='mIoU'), [0.1, 0.3, 0.2, 0.4])
    assert removed == ['iter_1.pth', 'best_mIoU_iter_1.pth', 'iter_2.pth', 'iter_3.pth', 'best_mIoU_iter_2.pth']
    assert files(run) == ['best_mIoU_iter_4.pth', 'iter_4.pth', 'last_checkpoint']


def test_one_name_for_all_is_one_file(run: Run) -> None:
    run.train(build(run, max_keep_ckpts=1, filename_tmpl='latest.pth'), [0.] * 3)
    assert files(run) == ['last_checkpoint', 'latest.pth']
    assert read_checkpoint(Path(run.work_dir, 'latest.pth'))['iter'] == 3


def test_all_are_kept_by_default(run: Run) -> None:
    run.train(build(run), [0.] * 3)
    assert files(run) == ['iter_1.pth', 'iter_2.pth', 'iter_3.pth', 'last_checkpoint']


def test_what_a_killed_run_left_goes_at_the_start(run: Run, tmp_path: Path) -> None:
    for name in ('iter_1.pth', 'iter_2.pth', 'iter_3.pth.77.tmp', 'best_mIoU_iter_3.pth.77.tmp',
                 'last_checkpoint.7.tmp', 'notes.tmp'):
        (tmp_path / name).touch()
    # As in a checkpoint after which the run was killed, in front of the removal.
    run.message_hub.update_info('keep_ckpt_ids', [1, 2])
    build(run, max_keep_ckpts=1)
    assert files(run) == ['iter_2.pth', 'notes.tmp']


def test_a_note_that_cannot_be_written_leaves_the_former(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                          ) -> None:
    hook = build(run, max_keep_ckpts=1)
    run.train(hook, [0.])

    def fail(path: Path, text: str) -> None:
        path.touch()
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(Path, 'write_text', fail)
    with pytest.raises(OSError, match='No space left') as raised:
        run.train(hook, [0.])
    assert raised.value.filename == str(tmp_path / 'last_checkpoint')
    assert (tmp_path / 'last_checkpoint').read_text() == str(tmp_path / 'iter_1.pth')
    assert read_checkpoint(tmp_path / 'iter_1.pth') == dict(iter=1)


def test_a_write_that_fails_leaves_the_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(run)  # puts the backend in place
    path = tmp_path / 'new/iter_1.pth'
    save_checkpoint(dict(iter=1), str(path))

    def fail(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(Path, 'write_bytes', fail)
    with pytest.raises(OSError, match=r'iter_1\.pth') as raised:
        save_checkpoint(dict(iter=2), str(path))
    assert (raised.value.errno, raised.value.filename) == (28, str(path))
    assert [file.name for file in path.parent.iterdir()] == ['iter_1.pth']
    assert read_checkpoint(path) == dict(iter=1)
