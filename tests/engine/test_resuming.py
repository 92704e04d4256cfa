import os
from pathlib import Path

import pytest
import torch

from cpvt_mm.engine.resuming import find_checkpoint
from cpvt_mm.errors import UserError


def write(path: Path, seconds: int) -> Path:
    """A checkpoint of that time."""
    torch.save(dict(meta={}, state_dict=dict(weight=torch.ones(1000)), optimizer={}, message_hub={}), path)
    os.utime(path, (seconds, seconds))
    return path


def name(folder: Path, checkpoint: Path | str) -> None:
    (folder / 'last_checkpoint').write_text(str(checkpoint))


def found(work_dir: Path) -> str:
    """The path of the checkpoint to go on from; its content is there, too."""
    path, checkpoint = find_checkpoint(str(work_dir))
    assert list(checkpoint) == ['meta', 'state_dict', 'optimizer', 'message_hub']
    return path


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr('cpvt_mm.engine.resuming.print_log', lambda message, *_: said.append(message))
    return said


def test_the_named_checkpoint_comes_first(tmp_path: Path, messages: list[str]) -> None:
    named = write(tmp_path / 'iter_2.pth', 1)
    write(tmp_path / 'iter_4.pth', 2)
    name(tmp_path, named)
    assert found(tmp_path) == str(named)
    assert not messages


@pytest.mark.parametrize('fault', ['half', 'missing', 'empty note', 'no note'])
def test_else_the_newest_that_is_whole(fault: str, tmp_path: Path, messages: list[str]) -> None:
    for step in (1, 8):
        write(tmp_path / f'iter_{step}.pth', 1)
    newest = write(tmp_path / 'iter_2.pth', 2)
    torch.save(dict(meta={}, state_dict={}, message_hub={}), tmp_path / 'best_mIoU_iter_10.pth')  # newer, to test with
    last = tmp_path / 'iter_12.pth'
    if fault == 'half':
        last.write_bytes(newest.read_bytes()[:2000])
    if fault != 'no note':
        name(tmp_path, '' if fault == 'empty note' else last)
    assert found(tmp_path) == str(newest)
    assert len(messages) == (fault in ('half', 'missing'))
    for message in messages:
        assert message.startswith(f'Resuming from {newest}, because checkpoint {last} ')


def test_the_folder_of_the_named_one_is_searched_too(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / 'elsewhere').mkdir()
    whole = write(tmp_path / 'elsewhere/iter_2.pth', 1)
    name(tmp_path, tmp_path / 'elsewhere/iter_4.pth')
    assert found(tmp_path) == str(whole)
    assert f'{tmp_path}/elsewhere/iter_4.pth does not exist' in messages[0]


def test_none_that_is_whole_is_an_error(tmp_path: Path) -> None:
    last = tmp_path / 'iter_2.pth'
    last.write_bytes(b'PK')
    name(tmp_path, last)
    with pytest.raises(UserError, match=rf'no complete checkpoint .*{last} is damaged.*: choose another with --resume'):
        find_checkpoint(str(tmp_path))


def test_weights_alone_are_named(tmp_path: Path) -> None:
    weights = tmp_path / 'iter_2.pth'
    torch.save(dict(state_dict={}, meta={}, message_hub={}), weights)
    name(tmp_path, weights)
    with pytest.raises(UserError, match=rf'no complete checkpoint .*\(checkpoint {weights} has no optimizer\)'):
        find_checkpoint(str(tmp_path))


def test_without_a_note_training_begins(tmp_path: Path, messages: list[str]) -> None:
    assert find_checkpoint(str(tmp_path)) is None
    (tmp_path / 'iter_2.pth').write_bytes(b'PK')  # of a run that was killed before its first note
    assert find_checkpoint(str(tmp_path)) is None
    for message, more in zip(messages, ['', f' (checkpoint {tmp_path}/iter_2.pth is damaged'], strict=True):
        assert message.startswith(f'{tmp_path} has no complete checkpoint to resume from{more}')
        assert message.endswith(': training from the beginning.')
