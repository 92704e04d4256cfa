import io
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.registry import DefaultScope
from rich.console import Console

from cpvt_mm.data.findings import Finding, Kind
from cpvt_mm.engine import load_config
from tests.conftest import MASK_RCNN, ROOT, UPERNET, toy_overrides
from tests.tools.conftest import change_annotations, cut, read_rows

TOOL = 'misc/check_dataset.py'
PARTS = runpy.run_path(str(ROOT / 'tools' / TOOL))
CLASSIFIER = ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py'
Check = Callable[..., tuple[str, list[tuple[str, ...]]]]


@pytest.fixture
def check(run_tool: Callable[..., str], data: Path, tmp_path: Path) -> Check:
    """Runs the tool; returns what it exits with and the rows of its CSV file: split, severity, what, file, detail."""

    def run(config: Path, *options: str) -> tuple[str, list[tuple[str, ...]]]:
        metrics = [f'{split}_evaluator.ann_file={data}/instances_validation.json' for split in ('val', 'test')
                   if config == MASK_RCNN]
        status = run_tool(TOOL, config, '--out', tmp_path / 'out.csv', '--cfg-options', *metrics, *options, *(
            f'{split}_dataloader.dataset.data_root={data}/' for split in ('train', 'val', 'test')))
        columns = ('split', 'severity', 'what', 'file', 'detail')
        return status, [tuple(row[column] for column in columns) for row in read_rows(tmp_path / 'out.csv')]

    return run


@pytest.mark.parametrize('config', [MASK_RCNN, UPERNET], ids=['detector', 'segmentor'])
def test_good_data_has_no_fault(check: Check, config: Path, capsys: pytest.CaptureFixture) -> None:
    assert check(config) == ('', [])
    assert capsys.readouterr().out.splitlines()[-1] == 'Images checked: 12, errors: 0, notes: 0'


def test_all_faults_of_annotations_and_images_are_found_at_once(check: Check, data: Path,
                                                                capsys: pytest.CaptureFixture) -> None:
    file, images = data / 'instances_training.json', data / 'images/training'

    def change(coco: dict) -> None:
        coco['annotations'][0]['category_id'] = 99
        coco['annotations'][1]['segmentation']['size'] = [5, 4]
        coco['images'][3]['width'] += 1
        coco['images'].append(dict(id=77, file_name='new.jpg', height=4, width=5))

    change_annotations(file, change)
    cut(images / '000001.jpg')
    (images / '000002.jpg').unlink()
    status, rows = check(MASK_RCNN)
    assert status == '1'
    assert {row[:4] for row in rows} == {
        ('train', 'error', 'annotation of an unlisted category', str(file)),
        ('train', 'error', 'mask that is invalid, or of another size than its image', str(file)),
        ('train', 'error', 'image of another size than annotated', str(images / '000003.jpg')),
        ('train', 'error', 'image that is missing or cannot be read', str(images / '000001.jpg')),
        ('train', 'error', 'image that is missing or cannot be read', str(images / '000002.jpg')),
        ('train', 'error', 'image that is missing or cannot be read', str(images / 'new.jpg')),
        ('train', 'error', 'sample that the pipeline or model fails on', 'train_dataloader.dataset'),
        ('train', 'note', 'image without annotation', str(file))}
    printed = capsys.readouterr().out
    assert 'image without annotation' in printed and printed.splitlines()[-1].startswith('Images checked: 13, errors: ')


def test_all_faults_of_label_maps_are_found_at_once(check: Check, data: Path) -> None:
    images, maps = data / 'images/validation', data / 'annotations/validation'
    (images / '000000.jpg').write_bytes(b'')
    (maps / '000001.png').unlink()
    cv2.imwrite(str(maps / '000002.png'), np.zeros((9, 9), np.uint8))
    cv2.imwrite(str(maps / '000003.png'), 9 + cv2.imread(str(maps / '000003.png'), cv2.IMREAD_UNCHANGED))
    shutil.copy(maps / '000000.png', maps / '000009.png')
    status, rows = check(UPERNET)
    assert status == '1'
    assert {row[:4] for row in rows} == {
        ('val, test', 'error', 'label map without image', str(maps / '000009.png')),
        ('val, test', 'error', 'image that is missing or cannot be read', str(images / '000000.jpg')),
        ('val, test', 'error', 'label map that is missing or cannot be read', str(maps / '000001.png')),
        ('val, test', 'error', 'label map of another size than its image', str(maps / '000002.png')),
        ('val, test', 'error', 'label that is not a class', str(maps / '000003.png')),
        *((split, 'error', 'sample that the pipeline or model fails on', f'{split}_dataloader.dataset')
          for split in ('val', 'test'))}


def test_labels_are_held_against_the_classes_of_the_model(check: Check) -> None:
    status, rows = check(UPERNET, 'model.decode_head.num_classes=2')
    assert status == '1'
    assert ('train', 'error', 'head with fewer classes than the dataset', 'model.decode_head.num_classes',
            'is 2, but the dataset has 6 classes') in rows
    assert any(row[2] == 'label that is not a class' and row[4].endswith('but there are 2 classes') for row in rows)


@pytest.mark.parametrize('config, options, words', [
    (UPERNET, ['train_dataloader.dataset.pipeline.1.reduce_zero_label=True'],
     'fails: the pipeline fails on sample {data}/images/training/000000.jpg (AssertionError in LoadAnnotations: '),
    (UPERNET, ['model.auxiliary_head.num_classes=2'], 'first sample that the model fails on (IndexError in auxiliary'),
    (MASK_RCNN, ['model.neck.in_channels=[8,8,8,8]'],
     'first sample that the model fails on (RuntimeError in neck.lateral_convs.'),
])
def test_one_sample_goes_through_pipeline_and_model(check: Check, data: Path, config: Path, options: list[str],
                                                    words: str) -> None:
    status, rows = check(config, *options)
    (row,) = [row for row in rows if row[0] == 'train']
    assert status == '1' and row[2:4] == ('sample that the pipeline or model fails on', 'train_dataloader.dataset')
    assert words.format(data=data) in row[4]


def test_a_metric_reads_the_annotations_of_its_dataset(check: Check) -> None:
    status, rows = check(MASK_RCNN, 'val_evaluator.ann_file=no.json')
    assert status == '1'
    assert any(row[2:4] == ('metric with another annotation file', 'val_evaluator.ann_file')
               and 'which cannot be read' in row[4] for row in rows)


def test_notes_alone_are_no_error(check: Check, data: Path) -> None:
    file = data / 'instances_validation.json'
    change_annotations(file, lambda coco: coco.update(annotations=[
        annotation for annotation in coco['annotations'] if annotation['image_id'] != 2]))
    # Validation and test are of the same data, however they load it.
    assert check(MASK_RCNN, 'test_dataloader.dataset.pipeline.0.to_float32=True') == ('', [
        ('val, test', 'note', 'image without annotation', str(file), 'has no annotation of 000002.jpg')])


def test_a_dataset_that_cannot_be_read_hides_no_other(check: Check, data: Path) -> None:
    (data / 'instances_training.json').write_text('{}')
    (data / 'images/validation/000000.jpg').unlink()
    status, ((split, _, what, file, detail), other, *_) = check(MASK_RCNN)
    assert (status, split, what, file) == ('1', 'train', 'dataset that cannot be read',
                                           str(data / 'instances_training.json'))
    assert detail.startswith('has no images and no categories')
    assert other[0] == 'val, test' and other[4] == 'does not exist'


def test_wrapped_datasets_are_checked(run_tool: Callable[..., str], data: Path, tmp_path: Path,
                                      capsys: pytest.CaptureFixture) -> None:
    (data / 'images/training/000004.jpg').unlink()
    (tmp_path / 'config.py').write_text(f'''
_base_ = {str(MASK_RCNN)!r}
one = dict(_base_.train_dataloader.dataset, data_root='{data}/')
other = dict(_base_.val_dataloader.dataset, data_root='{data}/', test_mode=False)
train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, dataset=dict(
    type='ConcatDataset', datasets=[one, dict(type='ClassBalancedDataset', oversample_thr=0.1, dataset=other)])))
val_dataloader = val_cfg = val_evaluator = None
test_dataloader = test_cfg = test_evaluator = None
''')
    assert run_tool(TOOL, tmp_path / 'config.py') == '1'
    assert capsys.readouterr().out.splitlines()[-1] == 'Images checked: 12, errors: 1, notes: 0'


def test_a_missing_folder_is_one_error(check: Check, data: Path) -> None:
    shutil.rmtree(data / 'images/training')
    status, rows = check(UPERNET)
    assert (status, rows) == ('1', [('train', 'error', 'dataset that cannot be read', f'{data}/images/training',
                                     'does not exist')])


def test_of_other_datasets_images_are_checked(run_tool: Callable[..., str], tmp_path: Path,
                                              capsys: pytest.CaptureFixture) -> None:
    (tmp_path / 'meta').mkdir()
    for split in ('train', 'val'):
        (tmp_path / split).mkdir()
        (tmp_path / f'meta/{split}.txt').write_text('a.JPEG 0\nb.JPEG 1\n')
        for name in ('a.JPEG', 'b.JPEG'):
            cv2.imwrite(str(tmp_path / split / name), np.zeros((9, 9, 3), np.uint8))
    cut(tmp_path / 'val/b.JPEG')
    options = [f'{split}_dataloader.dataset.data_root={tmp_path}' for split in ('train', 'val', 'test')]
    assert run_tool(TOOL, CLASSIFIER, '--cfg-options', *options) == '1'
    assert capsys.readouterr().out.splitlines()[-1] == 'Images checked: 4, errors: 1, notes: 2'


def test_a_report_is_not_overwritten(run_tool: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / 'out.csv').write_text('mine')
    assert run_tool(TOOL, UPERNET, '--out', tmp_path / 'out.csv').startswith(
        f'error: {tmp_path / "out.csv"} exists already')
    assert (tmp_path / 'out.csv').read_text() == 'mine'


FINDINGS = [Finding(Kind.NOT_ANNOTATED, 'a.json', 'has no annotation of [1].jpg')] + [
    Finding(Kind.IMAGE, f'{i}.jpg', 'does not exist') for i in range(5)]


def test_the_table_has_a_row_for_each_kind_with_the_first_of_it() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(PARTS['to_table'](FINDINGS))
    text = console.export_text()
    for words in ('image that is missing or cannot be read ', ' 5 ', '0.jpg does not exist', '2.jpg does', 'and 2 more',
                  'image without annotation (a note) ', ' 1 ', 'a.json has no annotation of [1].jpg'):
        assert words in text
    assert '3.jpg' not in text and text.index('cannot be read') < text.index('without annotation')


def test_a_sample_is_tried_in_the_scope_of_the_config(toy_shapes: Path) -> None:
    cfg = load_config(UPERNET, toy_overrides(toy_shapes))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        assert list(PARTS['try_split'](cfg, 'train')) == []
