"""A pipeline names the file that cannot be read or does not fit, and leaves other errors what they are."""
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmengine.dataset import BaseDataset
from PIL import Image

from openmmlab_tools.data.checked_pipeline import CheckedPipeline, load_first
from tests.helpers import refusal


def load(data: dict) -> dict:
    """Fails like mmcv's loader."""
    image = np.asarray(Image.open(data['img_path'])) if Path(data['img_path']).name != 'odd.jpg' else None
    assert image is not None, f'failed to load image: {data["img_path"]}'
    return dict(data, img=image, ori_shape=image.shape[:2])


def load_labels(data: dict) -> dict:
    return dict(data, gt_seg_map=np.array(Image.open(data['seg_map_path'])))


def fail(data: dict) -> dict:
    raise AssertionError('a wrong setting\nor two')


@pytest.fixture
def sample(tmp_path: Path) -> dict:
    """An image of 20 x 30 pixels and a label map of 0, 1 and 255."""
    data = dict(img_path=str(tmp_path / 'a.jpg'), seg_map_path=str(tmp_path / 'a.png'), height=20, width=30,
                instances=[dict(mask=dict(size=[20, 30], counts='')), dict(mask=[[1, 2, 3, 4, 5, 6]]), {}])
    labels = np.random.default_rng(0).integers(0, 2, (20, 30), np.uint8)
    labels[0] = 255
    for path in (data['img_path'], tmp_path / 'odd.jpg'):
        Image.new('RGB', (30, 20)).save(path)
    Image.fromarray(labels).save(data['seg_map_path'])
    return data


def checked(*transforms: Callable, **options: Any) -> CheckedPipeline:
    return CheckedPipeline(transforms or (load, load_labels), **dict(dict(is_coco=True, num_classes=2), **options))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize('name, damage, change, options, words', [
    *((name, damage, {}, {}, words) for name in ('a.jpg', 'a.png') for damage, words in (
        (cut, 'cannot be read: '), (lambda path: path.write_bytes(b''), 'is empty (0 bytes): put the whole file there'),
        (pipe, 'is a named pipe (FIFO), not a file'))),  # for which nobody waits
    ('odd.jpg', Path.exists, {}, {}, 'cannot be read: failed to load'),  # which only the loader cannot read
    ('a.png', Path.exists, {}, dict(num_classes=1), 'has class 1, but there are 1 classes')])
def test_what_cannot_be_read_or_does_not_fit_is_named(
        name: str, damage: Callable[[Path], object], change: dict, options: dict, words: str, sample: dict,
        tmp_path: Path) -> None:
    path, key = tmp_path / name, 'img_path' if name.endswith('jpg') else 'seg_map_path'
    damage(path)
    assert f'{path} {words}' in refusal(checked(**options), {**sample, key: str(path), **change})


def test_what_cannot_be_compared_passes(sample: dict) -> None:
    """Labels that are loaded first; unknown classes; sizes of other layouts; shapes with channels; what ends early."""
    assert 'img' in checked(load_labels, load, num_classes=1)(sample)
    assert CheckedPipeline([load, load_labels])(dict(sample, height=5, instances=[dict(mask=dict(size=[1, 2]))]))
    shape = (20, 30, 3)
    assert checked(lambda data: dict(load(data), ori_shape=shape), load_labels)(sample)['ori_shape'] == shape
    array, label = checked(load, lambda data: (data['img'], 1), lambda pair: pair)(sample)
    assert (array.shape, label) == ((20, 30, 3), 1)
    assert checked(load, lambda data: None, load_labels)(sample) is None


@pytest.mark.parametrize('data', [
    dict(img_path=['a.jpg', 'b.jpg'], instances=[[{}], [{}]], height=[2, 2], width=[3, 3]),  # a video
    [dict(img_path='a.jpg'), dict(img_path='b.jpg')]])  # triplets
def test_samples_that_are_not_of_one_image_pass(data: object) -> None:
    more = dict(data, ori_shape=[(9, 9)], gt_seg_map=[np.zeros(3)]) if isinstance(data, dict) else data
    assert checked(lambda given: more)(data) is more
    with pytest.raises(AssertionError, match='a wrong setting'):
        checked(fail)(data)


@pytest.mark.parametrize('transforms, change', [
    ((load, fail), {}), ((load, fail, load_labels), {}), ((load, load_labels, fail), {}),
    ((load, fail), dict(seg_map_path='s3://bucket/a.png'))])  # another backend's file is not called missing
def test_other_errors_stay_what_they_are(transforms: tuple, change: dict, sample: dict) -> None:
    with pytest.raises(AssertionError, match='a wrong setting'):
        checked(*transforms)({**sample, **change})
    with pytest.raises(FileNotFoundError, match=r'nowhere\.jpg'):
        checked(*transforms)(dict(sample, img_path='nowhere.jpg'))


# Its annotation file is the image.
OneImage = type('OneImage', (BaseDataset,), dict(load_data_list=lambda self: [dict(img_path=self.ann_file)]))


def test_an_image_of_16_bits_is_a_warning_and_a_sample_that_does_not_pass_is_named(tmp_path: Path, log: list) -> None:
    path = tmp_path / 'a.png'
    Image.fromarray(np.full((4, 5), 4080, np.uint16)).save(path)
    assert load_first(OneImage(str(path)), 'train_dataloader.dataset')['img_path'] == str(path)
    (level, message), = [entry for entry in log if str(path) in entry[1]]
    assert level == 'WARNING' and '16 bits' in message
    assert refusal(load_first, OneImage(str(path), pipeline=[fail]), 'val_dataloader.dataset') == (
        f'val_dataloader.dataset: the pipeline fails on sample {path} (AssertionError: a wrong setting): correct '
        'val_dataloader.dataset.pipeline of the config, or the annotation.')
