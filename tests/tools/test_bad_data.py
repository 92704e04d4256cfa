"""Training and testing on bad data: a sentence that names the file, before it is met or when it is."""
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from cpvt_mm.engine import load_config
from cpvt_mm.engine.run import build_runner
from tests.conftest import MASK_RCNN, UPERNET, toy_overrides

Run = Callable[..., str]
JSON = 'instances_training.json'


@pytest.fixture
def data(toy_shapes: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(toy_shapes, tmp_path / 'data')


@pytest.fixture
def train(run_tool: Run, data: Path, tmp_path: Path) -> Run:
    """Trains for an iteration and validates; returns the error."""

    def run(config: Path, **more: object) -> str:
        options = toy_overrides(data, **{'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1})
        if config == MASK_RCNN:
            options |= {f'{split}_evaluator.ann_file': data / 'instances_validation.json' for split in ('val', 'test')}
        message = run_tool('train.py', config, '--work-dir', tmp_path / 'work', '--cfg-options',
                           *(f'{key}={value}' for key, value in {**options, **more}.items()))
        assert '\n' not in message
        return message

    return run


def change_annotations(data: Path, change: Callable[[dict], object]) -> None:
    coco = json.loads((data / JSON).read_text())
    change(coco)
    (data / JSON).write_text(json.dumps(coco))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('config', [UPERNET, MASK_RCNN], ids=['segmentor', 'detector'])
def test_a_truncated_image_is_named(train: Run, data: Path, config: Path, workers: int) -> None:
    for path in (data / 'images/training').iterdir():
        cut(path)
    message = train(config, **{'train_dataloader.num_workers': workers})
    assert message.startswith(f'error: {data}/images/training/00000')
    assert 'cannot be read: image file is truncated' in message


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 1])
def test_a_label_map_of_another_size_is_named(train: Run, data: Path, workers: int) -> None:
    for path in (data / 'annotations/training').iterdir():
        cv2.imwrite(str(path), np.zeros((16, 16), np.uint8))
    message = train(UPERNET, **{'train_dataloader.num_workers': workers})
    assert f'error: label map {data}/annotations/training/00000' in message
    assert 'is of shape (16, 16), but its image is ' in message


def test_a_label_that_is_no_class_is_named_also_in_validation(train: Run, data: Path) -> None:
    path = data / 'annotations/validation/000003.png'
    cv2.imwrite(str(path), np.maximum(cv2.imread(str(path), cv2.IMREAD_UNCHANGED), 6))
    assert train(UPERNET).startswith(f'error: label map {path} has class 6, but there are 6 classes')


@pytest.mark.slow
@pytest.mark.parametrize('change, words', [
    (lambda coco: coco['categories'][1].update(name='moon'), 'has no category for 1 of 5 classes (ball)'),
    (lambda coco: coco['annotations'][2].update(id=1), 'has id 1 2 times in annotations'),
    (lambda coco: coco['annotations'][2]['segmentation'].update(size=[3, 4]), 'has a mask of size [3, 4] (height, '),
    (lambda coco: coco.update(annotations=[]), 'has no annotations, and filter_cfg.filter_empty_gt leaves images'),
    (lambda coco: coco.update(images=[]), "has no images: put a file in COCO's layout there."),
    (lambda coco: coco.clear(), "has no images and no categories: put a file in COCO's layout there."),
])
def test_annotations_are_looked_at_before_training(train: Run, data: Path, change: Callable, words: str) -> None:
    change_annotations(data, change)
    message = train(MASK_RCNN)
    assert f'{data / JSON} {words}' in message


@pytest.mark.parametrize('name', [JSON, 'instances_validation.json'])
def test_an_empty_annotation_file_is_named(train: Run, data: Path, name: str) -> None:
    (data / name).write_text('')
    assert train(MASK_RCNN) == f'error: {data / name} is empty (0 bytes): put the whole file there.'


@pytest.mark.slow
def test_an_empty_annotation_file_of_a_metric_is_named(train: Run, data: Path) -> None:
    (data / 'other.json').write_text('')
    message = train(MASK_RCNN, **{'val_evaluator.ann_file': data / 'other.json'})
    assert message.startswith(f'error: val_evaluator.ann_file is {data / "other.json"}, which cannot be read (')


@pytest.mark.slow
def test_an_image_of_another_size_is_named(train: Run, data: Path) -> None:
    change_annotations(data, lambda coco: [
        *(image.update(width=1 + image['width']) for image in coco['images']),
        *(annotation.update(segmentation=[[1, 1, 5, 1, 5, 5]]) for annotation in coco['annotations'])])
    message = train(MASK_RCNN)
    assert f'error: image {data}/images/training/00000' in message and 'in the annotations: put the right' in message


def test_a_folder_without_images_is_named(train: Run, data: Path) -> None:
    for path in (data / 'images/training').iterdir():
        path.rename(path.with_suffix('.png'))
    assert train(UPERNET).startswith(f'error: {data}/images/training (*.jpg) has no image: put the data there')


@pytest.mark.slow
def test_what_mmdet_leaves_out_is_told(train: Run, data: Path, capsys: pytest.CaptureFixture) -> None:
    change_annotations(data, lambda coco: (coco['categories'].append(dict(id=6, name='moon')),
                                           coco['annotations'][0].update(category_id=6),
                                           coco['annotations'][1].update(bbox=[0, 0, 0, 0])))
    assert train(MASK_RCNN, log_level='INFO') == ''
    log = capsys.readouterr()
    for words in ("has 1 annotations of 'moon', which are left out: it is no class",
                  'has bbox [0, 0, 0, 0] in annotation 2 of 000000.jpg'):
        assert f'{data / JSON} {words}' in log.out + log.err


@pytest.mark.slow
def test_testing_names_files_too(run_tool: Run, data: Path, tmp_path: Path) -> None:
    options = toy_overrides(data, **{'train_cfg.max_iters': 1, 'train_cfg.val_interval': 9})
    cfg = load_config(UPERNET, options, str(tmp_path / 'work'))
    runner = build_runner(cfg)
    runner.save_checkpoint(str(tmp_path), 'a.pth', by_epoch=False, save_optimizer=False, save_param_scheduler=False)
    path = data / 'images/validation/000002.jpg'
    cut(path)
    for workers in (0, 1):
        options['test_dataloader.num_workers'] = workers
        message = run_tool('test.py', UPERNET, tmp_path / 'a.pth', '--work-dir', tmp_path / 'work', '--cfg-options',
                           *(f'{key}={value}' for key, value in options.items()))
        assert message.startswith(f'error: {path} cannot be read: image file is truncated') and '\n' not in message
