"""Files that a dataset names are there before a run begins, and what it does not read is told."""
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mmengine import fileio
from mmengine.config import Config

from openmmlab_runs.data import config_datasets
from openmmlab_runs.data.config_datasets import plan_checks
from openmmlab_runs.engine import load_config
from tests.conftest import MASK_RCNN, UPERNET, refusal, toy_overrides
from tests.openmmlab_runs.test_storage import pack
from tests.tools.conftest import change_annotations

CONFIGS = {'detector': MASK_RCNN, 'segmentor': UPERNET}


@pytest.fixture(params=['folder', 'zip', 'tar'])
def packed(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> Any:
    """Returns the root of the data, which it packs when it is called."""
    def root() -> str:
        if request.param == 'folder':
            return str(data)
        pack(data, tmp_path / f'a.{request.param}')
        return f'{request.param}://::{tmp_path}/a.{request.param}'

    return root


def config(path: Path, root: str, **more: Any) -> Config:
    metric = {'val_evaluator.ann_file': f'{root}/instances_validation.json'} if path == MASK_RCNN else {}
    return load_config(path, toy_overrides(Path('x'), **{
        f'{split}_dataloader.dataset.data_root': f'{root}/' for split in ('train', 'val', 'test')}, **metric, **more))


def check(cfg: Config) -> None:
    config_datasets.check_before_training(cfg, ('train', 'val'))


@pytest.mark.parametrize('path', CONFIGS.values(), ids=CONFIGS)
def test_whole_data_passes_without_a_word(path: Path, packed: Any, log: list) -> None:
    check(config(path, packed()))
    assert [message for level, message in log if level != 'DEBUG'] == []


@pytest.mark.parametrize('path, folder, name', [
    (MASK_RCNN, 'images/training', '000003.jpg'), (MASK_RCNN, 'images/validation', '000003.jpg'),
    (UPERNET, 'annotations/training', '000003.png'), (UPERNET, 'annotations/validation', '000003.png')])
def test_a_missing_file_ends_a_run_before_it_begins(path: Path, folder: str, name: str, data: Path, packed: Any
                                                    ) -> None:
    for number in (1, 3):
        (data / folder / name.replace('3', str(number))).unlink()
    root = packed()
    split = 'train' if folder.endswith('training') else 'val'
    assert refusal(check, config(path, root)) == (
        f'{fileio.join_path(root, folder)}/{name.replace("3", "1")} does not exist (and 1 more of this kind): put the '
        f'files there, or correct {split}_dataloader.dataset.data_root, .ann_file or .data_prefix '
        '(tools/misc/check_dataset.py finds all).')


@pytest.mark.parametrize('path, split', [(MASK_RCNN, 'images'), (UPERNET, 'annotations')])
def test_what_is_no_file_is_not_opened(path: Path, split: str, data: Path) -> None:
    file = sorted((data / split / 'training').iterdir())[5]
    for make, words in ((os.mkfifo, 'is a named pipe (FIFO), not a file'), (os.mkdir, 'is a folder'),
                        (lambda name: os.symlink('no', name), 'is a link to a file that does not exist'),
                        (lambda name: os.symlink('/dev/zero', name), 'is a device, not a file')):
        file.unlink() if file.is_file() else file.rename(data / words)
        make(file)
        assert refusal(check, config(path, str(data))).startswith(f'{file} {words}: put the files there')


@pytest.mark.parametrize('path', CONFIGS.values(), ids=CONFIGS)
def test_images_that_are_not_read_are_noted(path: Path, data: Path, packed: Any, log: list) -> None:
    """An image that no annotation names; a suffix that only some have."""
    shutil.copy(data / 'images/training/000000.jpg', data / 'images/training/more.JPG')
    root = packed()
    check(config(path, root))
    [note] = [message for level, message in log if level == 'INFO']
    reason = 'does not end with .jpg (img_suffix)' if path == UPERNET else (
        f'is not named by {fileio.join_path(root, "instances_training.json")}')
    assert note == (f'note: {fileio.join_path(root, "images/training")}/more.JPG {reason}; '
                    'tools/misc/check_dataset.py finds all.')


def test_label_maps_without_an_image_are_told(data: Path, packed: Any, log: list) -> None:
    shutil.copy(data / 'annotations/training/000000.png', data / 'annotations/training/more.png')
    root = packed()
    check(config(UPERNET, root))
    assert [message for level, message in log if level == 'WARNING'] == [
        f'{fileio.join_path(root, "annotations/training")}/more.png has no image in '
        f'{fileio.join_path(root, "images/training")}; tools/misc/check_dataset.py finds all.']


def test_a_list_names_files_that_are_there(data: Path) -> None:
    names, key = data / 'names.txt', 'train_dataloader.dataset.ann_file'
    names.write_text('000001\nno\n000002')
    assert refusal(check, config(UPERNET, str(data), **{key: 'names.txt'})).startswith(
        f'{data}/images/training/no.jpg does not exist: put the files there, or correct train_dataloader.')
    names.write_text('000001\n000002')  # may be a part of the folder
    check(config(UPERNET, str(data), **{key: 'names.txt'}))
    for file, words in (('no.txt', 'does not exist: put the file there'), ('images', 'is a folder: put a file with'),
                        ('pipe', 'is a named pipe (FIFO), not a file: put a file with')):
        if file == 'pipe':
            os.mkfifo(data / file)
        assert refusal(check, config(UPERNET, str(data), **{key: file})).startswith(f'{data}/{file} {words}')
    with tarfile.open(data / 'a.tar', 'w') as file:
        file.add(names, 'names.txt')
    assert 'is an address, but mmseg reads a list of names from the disk' in refusal(
        check, config(UPERNET, f'tar://::{data}/a.tar', **{key: 'names.txt'}))


def test_two_splits_may_share_a_folder(data: Path, log: list) -> None:
    for file in (data / 'images/validation').iterdir():
        file.rename(data / f'images/training/val_{file.name}')
    change_annotations(data / 'instances_validation.json', lambda coco: [
        image.update(file_name=f'val_{image["file_name"]}') for image in coco['images']])
    check(config(MASK_RCNN, str(data), **{'val_dataloader.dataset.data_prefix.img': 'images/training'}))
    assert [message for level, message in log if level == 'INFO'] == []


@pytest.mark.parametrize('more', [
    {'train_dataloader.dataset.pipeline.0.type': 'LoadImageFromNDArray'},  # a loader of its own
    {'train_dataloader.dataset.pipeline.0.backend_args': dict(backend='lmdb', db_path='x')}])
def test_files_that_are_read_in_another_way_are_not_looked_for(data: Path, more: dict) -> None:
    (data / 'images/training/000003.jpg').unlink()
    plan, *_ = plan_checks(config(MASK_RCNN, str(data), **more))
    assert plan.findings == []


def test_folders_are_listed_and_files_are_not_asked_for(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden files, which lists leave out, are; there are few."""
    (data / 'images/training/000003.jpg').rename(data / 'images/training/.3.jpg')
    change_annotations(data / 'instances_training.json', lambda coco: coco['images'][3].update(file_name='.3.jpg'))
    asked = Mock(side_effect=lambda path: '')
    monkeypatch.setattr('openmmlab_runs.data.presence.what_is', asked)
    check(config(MASK_RCNN, str(data)))
    assert [call.args for call in asked.call_args_list] == [(f'{data}/images/training/.3.jpg',)]


def test_a_damaged_archive_ends_a_run_before_it_begins(data: Path, tmp_path: Path) -> None:
    pack(data, tmp_path / 'a.tar')
    os.truncate(tmp_path / 'a.tar', 5120)
    for path in CONFIGS.values():
        assert refusal(check, config(path, f'tar://::{tmp_path}/a.tar')).startswith(
            f'train_dataloader.dataset cannot be read: {tmp_path}/a.tar is ')
