"""Archives give the files that were packed, all of them, or a sentence."""
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine import fileio

from lab.datasets.shards import write_shards
from openmmlab_runs.archives import MEMBERS, open_archive
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import what_is
from tests.conftest import refusal

FILES = {f'train/{number}.txt': f'text {number} '.encode() * 60 for number in range(6)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / 'data' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'data' / name).write_bytes(content)
    return tmp_path / 'data'


def packed(folder: Path, kind: str) -> tuple[str, list[Path]]:
    """The root of the data in archives of a kind, and these archives."""
    archive = folder.with_name(f'a.{kind}')
    if kind == 'shards':
        write_shards(folder, folder.with_name('a'), 3)
        return f'tar://::{folder.parent}/a-*.tar', sorted(folder.parent.glob('a-*.tar'))
    with tarfile.open(archive, 'w') if kind == 'tar' else zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as file:
        for name in FILES:
            (file.add if kind == 'tar' else file.write)(folder / name, name)
    return f'{kind}://::{archive}', [archive]


def read(root: str) -> dict[str, bytes]:
    open_archive.cache_clear()  # as a new process
    return {name: fileio.get(fileio.join_path(root, name))
            for name in fileio.list_dir_or_file(root, list_dir=False, recursive=True)}


KINDS = ['shards', 'tar', 'zip']


@pytest.mark.parametrize('kind', ['shards', 'zip'])
def test_any_flipped_bit_is_told_or_changes_nothing(folder: Path, kind: str) -> None:
    root, (path, *_) = packed(folder, kind)
    assert read(root) == FILES
    whole = path.read_bytes()

    @settings(max_examples=300, deadline=None)
    @given(st.integers(0, 8 * len(whole) - 1))
    def flip(bit: int) -> None:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert read(root) == FILES
        except UserError as error:
            assert str(path) in str(error) and '\n' not in str(error)

    flip()


@pytest.mark.parametrize('kind', KINDS)
def test_any_cut_is_told(folder: Path, kind: str) -> None:
    root, (path, *_) = packed(folder, kind)
    whole = path.read_bytes()
    end = len(whole.rstrip(b'\0')) + 1024 if kind != 'zip' else len(whole)  # more zeros are as good

    @settings(max_examples=100, deadline=None)
    @given(st.integers(0, end // 512 - 1).map(512 .__mul__) | st.integers(0, end - 1))
    def cut(size: int) -> None:
        path.write_bytes(whole[:size])
        assert str(path) in refusal(read, root)

    cut()


def at(path: Path, place: int, content: bytes) -> None:
    with path.open('r+b') as file:
        file.seek(place)
        file.write(content)


@pytest.mark.parametrize('kind', ['shards', 'tar'])
@pytest.mark.parametrize('damage', [b'\1', bytes(1024)], ids=['a bit', 'zeros, as of a hole'])
def test_a_damaged_header_in_the_middle_of_a_tar_file_is_not_its_end(folder: Path, kind: str, damage: bytes) -> None:
    root, (path, *_) = packed(folder, kind)
    with tarfile.open(path) as file:
        begin = file.getmembers()[1].offset
    at(path, begin + (100 if damage == b'\1' else 0), damage)
    assert f'{path} is damaged or cut: after 1 files, at byte {begin} of ' in refusal(read, root)


@pytest.mark.parametrize('pattern', ['a-*.tar', 'a-0000[02]-of-00003.tar', 'a-00000-of-00003.tar'])
def test_a_shard_that_is_missing_is_named(folder: Path, pattern: str) -> None:
    _, paths = packed(folder, 'shards')
    if pattern == 'a-*.tar':
        paths[1].unlink()
    assert f'of 3 shards, {paths[1]} is not among them: put all shards there' in refusal(
        read, f'tar://::{folder.parent}/{pattern}')


def test_shards_of_other_files_do_not_go_together(folder: Path) -> None:
    root, paths = packed(folder, 'shards')
    with tarfile.open(paths[0], 'a') as file:
        file.add(folder / 'train/0.txt', 'train/more.txt')
    assert refusal(read, root) == (
        f'{paths[0]} does not have the files of its list {MEMBERS}: 1 of 2 are missing, new or of another size, such '
        'as train/more.txt: pack the shards again.')
    for path in paths:
        path.unlink()
    root, paths = packed(folder, 'shards')
    (folder / 'train/7.txt').write_text('more')
    write_shards(folder, folder.with_name('b'), 3)
    shutil.copy(folder.with_name('b-00001-of-00003.tar'), paths[1])
    (folder / 'train/9.txt').touch()
    assert ' and ' in (sentence := refusal(read, root)) and str(paths[1]) in sentence
    write_shards(folder, folder.with_name('a'.ljust(9, 'a')), 2)
    assert refusal(read, f'tar://::{folder.parent}/[ab]*-*.tar').startswith('train/0.txt is in ')


def replaced(path: Path) -> None:
    new = path.with_name('new')
    shutil.copy2(path, new)
    new.replace(path)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('change', [replaced, lambda path: os.utime(path, (1, 1)), lambda path: at(path, 600, b'x')],
                         ids=['replaced', 'another time', 'other bytes'])
@pytest.mark.parametrize('forked', [False, True])
def test_an_archive_stays_as_it_was_when_its_index_was_read(
        folder: Path, kind: str, change: Callable[[Path], None], forked: bool) -> None:
    root, (path, *_) = packed(folder, kind)
    read(root)
    change(path)
    address = fileio.join_path(root, 'train/0.txt')

    def sentence() -> str:
        return refusal(fileio.get, address)

    expected = f'{path} was replaced or changed while it is in use'
    if not forked:
        assert sentence().startswith(expected)
        return
    process = os.fork()
    if not process:
        try:
            os._exit(not sentence().startswith(expected))
        finally:  # a child must not go on with other tests
            os._exit(2)
    assert os.waitpid(process, 0)[1] == 0


def test_files_of_a_zip_that_are_no_data_are_refused(folder: Path) -> None:
    with zipfile.ZipFile(folder / 'a.zip', 'w') as file:
        file.write(folder / 'train/0.txt', 'a.txt', zipfile.ZIP_LZMA)
    assert refusal(fileio.get, f'zip://a.txt::{folder}/a.zip').startswith(
        f'a.txt in {folder}/a.zip is encrypted, or packed with method 14: pack it without compression')
    (folder / 'zeros').touch()
    os.truncate(folder / 'zeros', 2 ** 28 + 1)
    with zipfile.ZipFile(folder / 'b.zip', 'w') as file:
        file.write(folder / 'zeros', 'zeros', zipfile.ZIP_DEFLATED)
    assert refusal(fileio.get, f'zip://zeros::{folder}/b.zip').endswith(
        'bytes that become 268435457, which no data does: leave it out.')


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / 'a.tar')
    (tmp_path / 'b.zip').mkdir()
    (tmp_path / 'c.zip').symlink_to('nowhere')
    (tmp_path / 'd.zip').symlink_to('/dev/zero')
    for name, words in (('a.tar', 'is a named pipe (FIFO), not a file'), ('b.zip', 'is a folder'),
                        ('c.zip', 'is a link to a file that does not exist'), ('d.zip', 'is a device, not a file')):
        assert refusal(fileio.get, f'{name[2:]}://x::{tmp_path}/{name}') == (
            f'{tmp_path}/{name} {words}: put the archive there.')
    assert what_is(tmp_path / 'no') == 'does not exist' and what_is(__file__) == '' and what_is('a\0') != ''
