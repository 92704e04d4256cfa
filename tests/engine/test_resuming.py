"""The checkpoint that a run goes on from: the named one, else the newest that is whole."""
import os
from pathlib import Path

import pytest
import torch

from cpvt_mm.engine.resuming import find_checkpoint
from cpvt_mm.errors import UserError

WHOLE = dict(meta={}, state_dict=dict(weight=torch.ones(1000)), optimizer={}, message_hub={})
WEIGHTS = dict(meta={}, state_dict={}, message_hub={})


def write(path: Path, content: dict | bytes, seconds: int) -> None:
    """Writes a checkpoint, or bytes that are none, of that time."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    os.utime(path, (seconds, seconds))


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr('cpvt_mm.engine.resuming.print_log', lambda message, *_: said.append(message))
    return said


@pytest.mark.parametrize('note, content, expected, reason', [
    ('b/iter_2.pth', WHOLE, 'b/iter_2.pth', ''),  # although others are newer
    ('b/iter_2.pth', b'PK', 'iter_4.pth', 'b/iter_2.pth is damaged'),
    ('b/iter_2.pth', None, 'iter_4.pth', 'b/iter_2.pth does not exist'),
    ('b/no.pth', WHOLE, 'iter_4.pth', 'b/no.pth does not exist'),
    ('c/no.pth', None, 'c/iter_8.pth', 'c/no.pth does not exist'),  # its folder is searched, too
    ('', None, 'iter_4.pth', ''), (None, None, 'iter_4.pth', ''),
])
def test_the_named_checkpoint_or_else_the_newest_that_is_whole(
        note: str | None, content: dict | bytes | None, expected: str, reason: str, tmp_path: Path, messages: list[str]
        ) -> None:
    for folder in 'bc':
        (tmp_path / folder).mkdir()
    for name, seconds in {'iter_1.pth': 2, 'iter_4.pth': 3, 'iter_3.pth': 1, 'c/iter_8.pth': 4}.items():
        write(tmp_path / name, WHOLE, seconds)
    write(tmp_path / 'best_mIoU_iter_10.pth', WEIGHTS, 9)  # newer, to test with
    if content is not None:
        write(tmp_path / 'b/iter_2.pth', content, 1)
    if note is not None:
        (tmp_path / 'last_checkpoint').write_text(note and str(tmp_path / note))
    path, checkpoint = find_checkpoint(str(tmp_path))
    assert path == str(tmp_path / expected)
    assert list(checkpoint) == list(WHOLE)
    assert len(messages) == bool(reason)
    assert all(message.startswith(f'Resuming from {path}, because checkpoint {tmp_path}/{reason}')
               for message in messages)


@pytest.mark.parametrize('content, reason', [
    (b'PK', '{} is damaged'), (WEIGHTS, r'\(checkpoint {} has no optimizer\)')])
def test_none_that_is_whole_is_an_error(content: dict | bytes, reason: str, tmp_path: Path) -> None:
    last = tmp_path / 'iter_2.pth'
    write(last, content, 1)
    (tmp_path / 'last_checkpoint').write_text(str(last))
    with pytest.raises(UserError, match=f'no complete checkpoint .*{reason.format(last)}.*: choose another with --res'):
        find_checkpoint(str(tmp_path))


def test_without_a_note_training_begins(tmp_path: Path, messages: list[str]) -> None:
    assert find_checkpoint(str(tmp_path)) is None
    write(tmp_path / 'iter_2.pth', b'PK', 1)  # of a run that was killed before its first note
    assert find_checkpoint(str(tmp_path)) is None
    for message, more in zip(messages, ['', f' (checkpoint {tmp_path}/iter_2.pth is damaged'], strict=True):
        assert message.startswith(f'{tmp_path} has no complete checkpoint to resume from{more}')
        assert message.endswith(': training from the beginning.')
