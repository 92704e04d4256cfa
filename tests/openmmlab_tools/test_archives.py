"""Zip archives give the files that were packed, all of them, or a sentence."""
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine import fileio

from openmmlab_tools import storage
from openmmlab_tools.errors import UserError
from tests.helpers import refusal

FILES = {f'train/{number}.txt': f'text {number} '.encode() * 60 for number in range(6)}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / 'a.zip', 'w', zipfile.ZIP_DEFLATED) as file:
        for name, content in FILES.items():
            file.writestr(name, content)
    return tmp_path / 'a.zip'


def read(archive: Path) -> dict[str, bytes]:
    storage._OPENED.clear()  # as a new process
    root = f'zip://::{archive}'
    return {name: fileio.get(fileio.join_path(root, name))
            for name in fileio.list_dir_or_file(root, list_dir=False, recursive=True)}


def test_any_flipped_bit_and_any_cut_is_told_or_changes_nothing(archive: Path) -> None:
    assert read(archive) == FILES
    whole = archive.read_bytes()

    @settings(max_examples=400)
    @given(st.integers(0, 8 * len(whole) - 1), st.booleans())
    def damage(bit: int, cuts: bool) -> None:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        archive.write_bytes(whole[:bit // 8] if cuts else changed)
        try:
            assert read(archive) == FILES and not cuts
        except UserError as error:
            assert str(archive) in str(error) and '\n' not in str(error)

    damage()


def replaced(path: Path) -> None:
    Path(shutil.copy2(path, path.with_name('new'))).replace(path)


@pytest.mark.parametrize('change', [replaced, lambda path: os.utime(path, (1, 1))], ids=['replaced', 'another time'])
def test_an_archive_stays_as_it_was_when_it_was_opened_also_in_a_fork(archive: Path, change: Callable[[Path], None]
                                                                      ) -> None:
    read(archive)
    change(archive)
    process, status = os.fork(), 1
    try:
        status = not refusal(fileio.get, f'zip://train/0.txt::{archive}').startswith(
            f'{archive} was replaced or changed while it is in use')
    finally:
        if not process:  # a child must not go on with other tests
            os._exit(status)
    assert status == 0 and os.waitpid(process, 0)[1] == 0


def test_forks_read_at_places_of_their_own(archive: Path) -> None:
    read(archive)
    processes = [os.fork() for _ in range(2)]
    status = 2
    try:
        status = int(any(fileio.get(f'zip://{name}::{archive}') != FILES[name] for name in [*FILES] * 50))
    finally:
        if 0 in processes:
            os._exit(status)
    assert status == 0 and [os.waitpid(process, 0)[1] for process in processes] == [0, 0]


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / 'zeros', 'wb') as file:
        file.truncate(2 ** 28 + 1)
    with zipfile.ZipFile(tmp_path / 'b.zip', 'w') as archive:
        archive.write(tmp_path / 'zeros', 'zeros', zipfile.ZIP_DEFLATED)
    assert refusal(fileio.get, f'zip://zeros::{tmp_path}/b.zip').endswith(
        'bytes unpack to 268435457 bytes. Leave it out, or store it uncompressed.')
    os.mkfifo(tmp_path / 'fifo.zip')
    (tmp_path / 'link.zip').symlink_to('nowhere')
    for name, words in (('fifo', 'is a named pipe (FIFO), not a file'),
                        ('link', 'is a link to a file that does not exist')):
        assert refusal(fileio.get, f'zip://x::{tmp_path}/{name}.zip') == (
            f'{tmp_path}/{name}.zip {words}: put the archive there.')
