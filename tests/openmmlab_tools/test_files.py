"""Errors that end a tool in a sentence; files that are whole or not there; images and backbones of whole models."""
import errno
import gc
import glob
import json
import multiprocessing
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import mmcv
import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from torch.utils.data import DataLoader

from openmmlab_tools.checkpoints.loading import to_input
from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.cli import resumable
from openmmlab_tools.engine.work_dir import read_note
from openmmlab_tools.errors import MissingFile, UserError, exit_on_error, sentence
from openmmlab_tools.evaluation import thresholds
from openmmlab_tools.files import (
    held,
    list_images,
    read_state,
    remove_leftovers,
    to_bytes,
    unique_name,
    whole_file,
    write_bytes,
    write_text,
)
from openmmlab_tools.pictures.images import ImageFault, read_image
from tests.helpers import refusal
from tests.odd_texts import file_names

FORK = multiprocessing.get_context('fork')


WORDS = 'image b.jpg is empty: put the whole file there.'


@pytest.mark.parametrize(('workers', 'fault', 'caught'), [
    (0, UserError(WORDS), UserError), (1, MissingFile(WORDS), FileNotFoundError),
    (1, ImageFault('b.jpg', 'is empty: put the whole file there'), ImageFault)])
def test_the_sentence_is_the_same_from_a_worker_of_a_data_loader(workers: int, fault: UserError,
                                                                 caught: type[Exception]) -> None:
    with pytest.raises(caught) as error:
        list(DataLoader(range(2), collate_fn=Mock(side_effect=fault), num_workers=workers))
    assert ('Traceback' in str(error.value)) == bool(workers)
    assert sentence(error.value) == WORDS


@pytest.mark.parametrize('main, told', [
    (exit_on_error(lambda: held(Path('file/inside')).__enter__()), 'error: file/inside cannot be used (Not a dir'),
    (exit_on_error(lambda: Path('no.txt').read_text()), 'error: {}/no.txt does not exist: put it there, or correct '),
    (exit_on_error(Mock(side_effect=OSError(errno.EIO, 'broken', b'a\xff'))), 'error: a\\udcff cannot be used (broken'),
    (exit_on_error(Mock(side_effect=MissingFile('a is 1: take 2.'))), 'error: a is 1: take 2.'),
    (exit_on_error(Mock(side_effect=KeyboardInterrupt)), 'Interrupted.'),
    (resumable(Mock(side_effect=KeyboardInterrupt)), 'Interrupted: run the same command again to continue.')])
def test_a_tool_ends_with_a_sentence(main: Callable[[], None], told: str, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path('file').touch()
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code.startswith(told.replace('{}', str(tmp_path)))


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_checkpoints_are_written_whatever_the_memory_of_tensors(suffix: str, tmp_path: Path) -> None:
    weight = torch.randn(2, 3)
    content = dict(weight=weight, tied=weight, transposed=weight.T, part=weight[1:])
    path = tmp_path / f'a{suffix}'
    write_bytes(path, to_bytes(content, suffix == '.safetensors'))
    assert list(tmp_path.iterdir()) == [path]
    torch.testing.assert_close(dict(read_checkpoint(path)), content, rtol=0, atol=0)


def test_a_folder_gives_its_images_by_name(tmp_path: Path) -> None:
    assert 'has no image (.jpg, .jpeg, ' in refusal(list_images, tmp_path)
    for name in ('b.jpg', 'a.PNG', 'c.txt', 'd.TIF', 'e.tiff'):
        (tmp_path / name).touch()
    assert [path.name for path in list_images(tmp_path)] == ['a.PNG', 'b.jpg', 'd.TIF', 'e.tiff']
    assert 'no does not exist' in refusal(list_images, tmp_path / 'no')


def test_input_is_what_the_library_makes_of_the_image(tmp_path: Path) -> None:
    photograph = tmp_path / 'photograph.png'
    mmcv.imwrite(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8), str(photograph))
    loaded, image = torch.from_numpy(mmcv.imread(photograph)).permute(2, 0, 1), read_image(photograph)
    values = dict(mean=[100, 110, 120], std=[50, 60, 70])
    for is_rgb in (True, False):
        inside = dict(values, bgr_to_rgb=is_rgb)
        with DefaultScope.overwrite_default_scope('mmseg'):
            preprocessor = MODELS.build(dict(type='SegDataPreProcessor', size=(20, 30), **inside))
        expected = preprocessor(dict(inputs=[loaded]))['inputs']
        # mmpretrain keeps its preprocessor beside the model.
        outside = dict(model={}, data_preprocessor=dict(values, to_rgb=is_rgb))
        for cfg in (dict(model=dict(data_preprocessor=inside)), outside):
            torch.testing.assert_close(to_input(image, Config(cfg)), expected)


def refused_elsewhere(folder: Path) -> str:
    """The sentence for another process that wants a folder; '' if it gets it."""
    told = FORK.SimpleQueue()

    def hold() -> None:
        try:
            with held(folder):
                told.put('')
        except UserError as error:
            told.put(str(error))

    process = FORK.Process(target=hold)
    process.start()
    process.join()
    return told.get()


def test_a_folder_is_held_by_one_process_until_it_ends(tmp_path: Path) -> None:
    ready = FORK.Event()

    def hold() -> None:
        with held(tmp_path):
            ready.set()
            time.sleep(60)

    other = FORK.Process(target=hold)
    other.start()
    assert ready.wait(60)
    assert refusal(held(tmp_path).__enter__).startswith(
        f'{tmp_path} is in use by process {other.pid} on {platform.node()}: wait until')
    other.kill()
    other.join()
    failed = held(tmp_path)  # a run that failed does not hold it against its own process
    failed.__enter__()
    left = FORK.Process(target=time.sleep, args=(60,))  # nor does a process that this one leaves behind
    left.start()
    with held(tmp_path), held(tmp_path / 'another'):
        del failed  # as when Python collects what is left of it
        gc.collect()
        assert (tmp_path / '.holder').read_text() == f'process {os.getpid()} on {platform.node()}'
        assert f'process {os.getpid()} on ' in refused_elsewhere(tmp_path)
    assert refused_elsewhere(tmp_path) == '' and list(tmp_path.iterdir()) == []
    left.kill()


@pytest.mark.parametrize('error', [OSError(errno.ENOLCK, 'No locks available'), NotImplementedError('No locks')])
def test_a_file_system_without_locks_is_told(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileLock, 'acquire', Mock(side_effect=error))  # as on NFS
    told = refusal(held(tmp_path / 'new').__enter__)
    assert told.startswith(f'{tmp_path}/new is on a file system that cannot lock files (') and 'No locks' in told
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_whole_or_as_before_and_no_link_is_followed(tmp_path: Path) -> None:
    path, lock = tmp_path / 'a.txt', tmp_path / '.lock'
    path.write_text('mine')
    with pytest.raises(OSError, match=re.escape(f"full: '{path}'")), whole_file(path) as temporary:
        temporary.write_text('half')
        raise OSError(errno.ENOSPC, 'full')
    assert [*tmp_path.iterdir()] == [path]
    for link in (tmp_path / f'b.txt.{os.getpid()}.tmp', lock):  # names that could be guessed
        link.symlink_to(path)
    write_text(tmp_path / 'b.txt', 'text')
    with pytest.raises(OSError, match=re.escape(f"'{lock}'")):
        held(tmp_path).__enter__()
    assert path.read_text() == 'mine' and (tmp_path / 'b.txt').read_text() == 'text'


def test_temporary_names_differ_and_their_files_are_new_and_as_the_umask_says(tmp_path: Path) -> None:
    path, before = tmp_path / 'a.txt', os.umask(0o027)
    try:
        with whole_file(path) as first, whole_file(path) as second:
            assert first != second and first.exists() and second.exists()
        assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


DEAD = str(2 ** 31 - 1), str(os.getpid())
ALIVE = str(os.getppid()), '99999999999', '0', 'v1', '', 'backup'
ENDS = '0123456789abcdef.tmp', '0' * 16 + '.tmp.' + 'a' * 32 + '.partial'
OTHER_ENDS = ('tmp', 'tmpkeep', '0123456789abcde.tmp', '0123456789abcdef.tmp2', '0123456789ABCDEF.tmp',
              '0123456789abcdef.tmp.partial', '0123456789abcdef.tmp\n', '')


@given(st.sampled_from(('iter_3.pth', 'a.json', 'best.v2.pth')) | file_names, st.sampled_from(DEAD + ALIVE),
       st.sampled_from(ENDS + OTHER_ENDS))
def test_only_files_that_a_dead_process_left_are_removed(name: str, number: str, end: str) -> None:
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names = f'{name}.{number}.{end}', f'{name}.v1.tmp', f'{name}.backup.tmpkeep', name, f'1.{"0" * 16}.tmp'
        for one in names:
            (folder / one).touch()
        (folder / f'{name}.1.{"1" * 16}.tmp').mkdir()
        (folder / f'{name}.{os.getpid()}.{"2" * 16}.tmp').symlink_to(name)
        before = {*folder.iterdir()}
        remove_leftovers(folder, glob.escape(name), '*.pth', '*.json')
        assert before - {*folder.iterdir()} == ({folder / names[0]} if number in DEAD and end in ENDS else set())


def test_names_are_taken_once_also_those_that_look_numbered() -> None:
    taken: set[str] = set()
    assert [unique_name(name, taken) for name in ('a', 'a_2', 'a', 'a')] == ['a', 'a_2', 'a_3', 'a_4']


# Small files, by their names: who parses them, and what is valid.
STATES = {'thresholds.json': (thresholds._parsed, b'{"weights": "", "classes": {"a": null}}'),
          'last_checkpoint': (read_note, b'/a/iter_2.pth')}


@given(st.sampled_from([*STATES]), st.data())
def test_a_small_file_of_any_content_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, name: str,
                                                      data: st.DataObject) -> None:
    parse, valid = STATES[name]
    json_like = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda some: st.lists(some) | (
        st.dictionaries(st.sampled_from(['1', 'a', 'weights', 'classes', 'score_thr']), some)))
    content = data.draw(st.one_of(
        st.binary(), st.integers(0, len(valid)).map(lambda length: valid[:length]),  # cut
        json_like.map(lambda value: json.dumps(value).encode()), st.just(b'[' * 100_000)))
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    try:
        assert read_state(path, parse, 'remove it') is not None
    except UserError as error:
        assert re.match(f'{re.escape(str(path))} cannot be used \\(.+\\): remove it\\.$', str(error), re.DOTALL)
        assert content != valid


@pytest.mark.parametrize('make, words', [
    (Path.mkdir, ' is a folder: remove it.'),
    (os.mkfifo, ' is a named pipe (FIFO), not a file: remove it.'),  # which would never be read to its end
    (lambda path: path.symlink_to('no'), ' is a link to a file that does not exist: remove it.')])
def test_what_is_no_small_file_is_named(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    assert read_state(tmp_path / 'a', str, 'remove it') is None
    make(tmp_path / 'a')
    assert refusal(read_state, tmp_path / 'a', str, 'remove it') == f'{tmp_path}/a{words}'
