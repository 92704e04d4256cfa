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
@pytest.mark.parametrize('config', [UPERNET, MASK_RCNN], ids=['segmentor', 'detector'])
def test_a_truncated_image_is_named_by_a_worker(train: Run, data: Path, config: Path) -> None:
    for path in (data / 'images/training').iterdir():
        cut(path)
    message = train(config, **{'train_dataloader.num_workers': 1})
    assert message.startswith(f'error: {data}/images/training/00000')
    assert 'cannot be read: image file is truncated' in message


def test_a_label_that_is_no_class_is_named_also_in_validation(train: Run, data: Path) -> None:
    path = data / 'annotations/validation/000003.png'
    cv2.imwrite(str(path), np.maximum(cv2.imread(str(path), cv2.IMREAD_UNCHANGED), 6))
    assert train(UPERNET).startswith(f'error: label map {path} has class 6, but there are 6 classes')


@pytest.mark.slow
def test_an_image_of_another_size_is_named(train: Run, data: Path) -> None:
    change_annotations(data, lambda coco: [
        *(image.update(width=1 + image['width']) for image in coco['images']),
        *(annotation.update(segmentation=[[1, 1, 5, 1, 5, 5]]) for annotation in coco['annotations'])])
    message = train(MASK_RCNN)
    assert f'error: image {data}/images/training/00000' in message and 'in the annotations: put the right' in message


@pytest.mark.slow
def test_what_mmdet_leaves_out_is_told(train: Run, data: Path, capsys: pytest.CaptureFixture) -> None:
    change_annotations(data, lambda coco: (coco['categories'].append(dict(id=6, name='moon')),
                                           coco['annotations'][0].update(category_id=6),
                                           coco['annotations'][1].update(bbox=[0, 0, 0, 0])))
    assert train(MASK_RCNN, log_level='INFO') == ''
    log = capsys.readouterr()
    for words in ("has 1 annotations of 'moon', which are ignored: it is not a class",
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
