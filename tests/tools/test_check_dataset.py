import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from mmengine.registry import DefaultScope
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from cpvt_mm.data_config import new_config
from openmmlab_tools.data.datasets import SampleFiles
from openmmlab_tools.data.findings import Finding, Kind
from openmmlab_tools.data.image_files import faults_of
from openmmlab_tools.engine import load_config
from openmmlab_tools.own_data.file_checks import Checked, Labels, check_sample
from openmmlab_tools.pictures.images import LOSES_BITS, has_16_bits
from tests.backbones import MASK_RCNN, UPERNET
from tests.helpers import ROOT
from tests.tools.conftest import Run, change_annotations, cut, read_rows, save

TOOL = 'misc/check_dataset.py'
SPLITS = ('train', 'val', 'test')
IMAGE, SAMPLE = 'image that is missing or cannot be read', 'sample that the pipeline or model fails on'
Row = tuple[str, ...]  # split, severity, what, file, detail
Check = Callable[..., list[Row]]
PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture
def check(run_tool: Run, data: Path, tmp_path: Path) -> Check:
    """Runs the tool, whose status is 1 if there is an error; returns rows."""

    def run(config: Path, *options: str) -> list[Row]:
        metrics = [f'{split}_evaluator.ann_file={data}/instances_validation.json' for split in SPLITS[1:]
                   if config == MASK_RCNN]
        status = run_tool(TOOL, config, '--out', tmp_path / 'out', '--cfg-options', *metrics, *options, *(
            f'{split}_dataloader.dataset.data_root={data}/' for split in SPLITS))
        rows = [tuple(row.values()) for row in read_rows(tmp_path / 'out/findings.csv')]
        assert status == ('1' if any(severity == 'error' for _, severity, *_ in rows) else '')
        assert len({*rows}) == len(rows)
        return rows

    return run


def of_annotations(data: Path) -> set[Row]:
    """Damages data, and returns the rows that tell so, without details."""
    file, images = data / 'instances_training.json', data / 'images/training'

    def change(coco: dict) -> None:
        coco['annotations'][0]['category_id'] = 99
        coco['annotations'][1]['segmentation']['size'] = [5, 4]
        coco['images'][3]['width'] += 1
        coco['images'].append(dict(id=77, file_name='new.jpg', height=4, width=5))

    change_annotations(file, change)
    cut(images / '000001.jpg')
    (images / '000002.jpg').unlink()
    return {('train', 'note', 'image without annotation', str(file)), *(('train', 'error', *row) for row in (
        ('annotation of an unlisted category', str(file)),
        ('mask that is invalid, or of another size than its image', str(file)),
        ('image of another size than annotated', str(images / '000003.jpg')), (SAMPLE, 'train_dataloader.dataset'),
        *((IMAGE, str(images / f'{name}.jpg')) for name in ('000001', '000002', 'new'))))}


def of_label_maps(data: Path) -> set[Row]:
    images, maps = data / 'images/validation', data / 'annotations/validation'
    (images / '000000.jpg').write_bytes(b'')
    (maps / '000001.png').unlink()
    cv2.imwrite(str(maps / '000002.png'), np.zeros((9, 9), np.uint8))
    cv2.imwrite(str(maps / '000003.png'), 9 + cv2.imread(str(maps / '000003.png'), cv2.IMREAD_UNCHANGED))
    shutil.copy(maps / '000000.png', maps / '000009.png')
    cut(maps / '000000.png')  # of the image that cannot be read either
    return {*(('val, test', 'error', what, str(path)) for what, path in (
        ('label map without image', maps / '000009.png'), (IMAGE, images / '000000.jpg'),
        ('label map of another size than its image', maps / '000002.png'),
        ('label that is not a class', maps / '000003.png'),
        *(('label map that is missing or cannot be read', maps / f'00000{digit}.png') for digit in (0, 1)))),
        *((split, 'error', SAMPLE, f'{split}_dataloader.dataset') for split in ('val', 'test'))}


@pytest.mark.parametrize('config, damage', [(MASK_RCNN, of_annotations), (UPERNET, of_label_maps)])
def test_all_faults_are_found_at_once(config: Path, damage: Callable[[Path], set[Row]], check: Check, data: Path,
                                      capsys: pytest.CaptureFixture) -> None:
    expected = damage(data)
    assert {row[:4] for row in check(config)} == expected
    printed = capsys.readouterr().out
    assert all(what in printed for _, _, what, _ in expected) and '\nImages checked: 1' in printed


def test_copies_of_images_and_names_that_are_no_utf_8_are_found(check: Check, data: Path) -> None:
    first, second, other = (data / 'images' / name for name in (
        'training/000000.jpg', 'training/000001.jpg', 'validation/000000.jpg'))
    for copy in (second, other):
        copy.write_bytes(first.read_bytes())
    odd = data / 'images/training/000007.jpg'
    odd.rename(odd.with_name(os.fsdecode(b'\xff.jpg')))
    what, rows = 'image with the content of another one', check(UPERNET)
    assert {row[3] for row in rows} >= {f'{data}/annotations/training/{name}.png' for name in ('000007', '\\udcff')}
    assert [row for row in rows if row[2] == what] == [
        (splits, 'error', what, str(path), f'has the same content as {first}, which is for train')
        for splits, path in (('train', second), ('val, test', other))]


@pytest.mark.slow
def test_measures_and_suggestions_are_those_of_a_new_config(run_tool: Run, data: Path, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture) -> None:
    coco = json.loads((data / 'instances_training.json').read_text())
    new_config(data, tmp_path / 'my.py', 'instances', 'nano')
    assert run_tool(TOOL, tmp_path / 'my.py', '--out', tmp_path / 'out') == ''
    statistics = json.loads((tmp_path / 'out/statistics.json').read_text())
    train, val = statistics['datasets']
    assert (train['splits'], train['images'], val['splits'], val['images']) == (['train'], 8, ['val', 'test'], 4)
    widths = [image['width'] for image in coco['images']]
    assert train['width'][::4] == [min(widths), max(widths)]
    for category in coco['categories']:
        of_class = [annotation for annotation in coco['annotations'] if annotation['category_id'] == category['id']]
        part = train['classes'][category['name']]
        images = {annotation['image_id'] for annotation in of_class}
        assert (part['objects'], part['images']) == (len(of_class), len(images))
        sides = [math.sqrt(annotation['bbox'][2] * annotation['bbox'][3]) for annotation in of_class]
        assert part['side'] == [pytest.approx(side, abs=0.01) for side in np.quantile(sides, (0, .25, .5, .75, 1))]
    assert train['all']['objects'] == len(coco['annotations'])
    cfg = load_config(tmp_path / 'my.py')
    anchors = cfg.model.rpn_head.anchor_generator
    assert statistics['suggested'] == {'scale': list(cfg.scale), **{
        f'model.rpn_head.anchor_generator.{key}': anchors[key] for key in ('scales', 'ratios')}}
    printed = capsys.readouterr().out
    assert 'train: 8 images, ' in printed and f'anchor_generator.scales={anchors.scales}'.replace(' ', '') in printed


@pytest.mark.parametrize('config', [MASK_RCNN, UPERNET], ids=['detector', 'segmentor'])
def test_good_data_has_no_fault_and_a_sheet_has_samples_that_can_be_read(
        check: Check, config: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with DefaultScope.overwrite_default_scope('mmpretrain'):  # samples are tried in the scope of the config
        assert check(config) == []
    assert capsys.readouterr().out.splitlines()[-1] == 'Images checked: 12, errors: 0, notes: 0'
    if config == UPERNET:
        statistics = json.loads((tmp_path / 'out/statistics.json').read_text())
        maps = [np.asarray(Image.open(path)).ravel() for path in (data / 'annotations/training').iterdir()]
        for index, part in enumerate(statistics['datasets'][0]['classes'].values()):
            assert part['images'] == sum(index in one for one in maps)
            assert part['pixels'] == pytest.approx(np.mean(np.concatenate(maps) == index), abs=1e-6)
        assert set(statistics['suggested']) == {'scale'}
    with pytest.raises(AssertionError, match='exists already'):  # a report is not overwritten
        check(config)
    (tmp_path / 'out/findings.csv').unlink()
    (data / 'images/training/000000.jpg').unlink()
    check(config)
    sheet = np.asarray(Image.open(tmp_path / 'out/samples.png').convert('RGB')).astype(int)
    tiles = [tile for row in np.split(sheet, 2) for tile in np.split(row, 4, axis=1)]
    assert [bool((tile < 250).any()) for tile in tiles] == [True] * 7 + [False]
    assert sum((np.ptp(tile, axis=2) > 100).any() for tile in tiles) > 3  # images are grey


@pytest.mark.parametrize('option, words', [
    ('train_dataloader.dataset.pipeline.1.reduce_zero_label=True',
     'fails: the pipeline fails on sample {data}/images/training/000000.jpg (AssertionError: '),
    ('model.auxiliary_head.in_index=9', 'first sample that the model fails on (IndexError: tuple')])
def test_a_sample_goes_through_the_model(check: Check, data: Path, option: str, words: str) -> None:
    row, = (row for row in check(UPERNET, option) if row[0] == 'train')
    assert row[2:4] == (SAMPLE, 'train_dataloader.dataset') and words.format(data=data) in row[4]


def test_a_dataset_that_cannot_be_read_hides_no_other(check: Check, data: Path) -> None:
    (data / 'instances_training.json').write_text('{}')
    (data / 'images/validation/000000.jpg').unlink()
    (split, _, what, file, detail), other, *_ = check(MASK_RCNN)
    assert (split, what, file) == ('train', 'dataset that cannot be read', str(data / 'instances_training.json'))
    assert detail.startswith('has no images and no categories') and other[::4] == ('val, test', 'does not exist')


def test_of_other_datasets_images_are_checked(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / 'meta').mkdir()
    for split in ('train', 'val'):
        for name in ('a.JPEG', 'b.JPEG'):
            save(tmp_path / split / name, np.roll(PIXELS, len(list(tmp_path.rglob('*')))))
        (tmp_path / f'meta/{split}.txt').write_text('a.JPEG 0\nb.JPEG 1\n')
    cut(tmp_path / 'val/b.JPEG')
    options = [f'{split}_dataloader.dataset.data_root={tmp_path}' for split in SPLITS]
    assert run_tool(TOOL, ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py', '--cfg-options', *options) == '1'
    assert capsys.readouterr().out.splitlines()[-1] == 'Images checked: 4, errors: 1, notes: 2'


def test_what_was_found_before_an_interruption_is_kept(run_tool: Run, data: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def check_files(*args: object) -> Iterator[Checked]:
        yield Checked([Finding(Kind.IMAGE, 'a.jpg', 'is empty (0 bytes)')])
        raise KeyboardInterrupt

    monkeypatch.setattr('openmmlab_tools.own_data.checking.check_files', check_files)
    options = [f'{split}_dataloader.dataset.data_root={data}' for split in SPLITS]
    assert run_tool(TOOL, UPERNET, '--out', tmp_path / 'out', '--cfg-options', *options) == 'Interrupted.'
    [row] = read_rows(tmp_path / 'out/findings.csv.unfinished')
    assert (row['file'], row['detail']) == ('a.jpg', 'is empty (0 bytes)')
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['findings.csv.unfinished']


def faults(path: Path, size: tuple[int, int] | None = None) -> list[tuple[Kind, str]]:
    findings = check_sample(SampleFiles(str(path), size=size)).findings
    assert all(finding.file == str(path) for finding in findings)
    return [(finding.kind, finding.detail) for finding in findings]


@pytest.mark.parametrize('suffix', ['jpg', 'png', 'webp'])
def test_what_is_truncated_or_no_image_is_found(suffix: str, tmp_path: Path) -> None:
    image, no_image = tmp_path / f'a.{suffix}', (
        Kind.IMAGE, 'cannot be read: it is damaged or not an image that Pillow knows')
    save(image, PIXELS)
    assert faults(image) == []
    whole = image.read_bytes()
    for part in (0.05, 0.5, 0.99):
        image.write_bytes(whole[:int(part * len(whole))])
        [(kind, detail)] = faults(image)
        assert (kind, detail) == no_image or (kind is Kind.IMAGE and detail.startswith('cannot be read: '))
    for content, found in ((b'', (Kind.IMAGE, 'is empty (0 bytes)')), (b'<html>404</html>', no_image)):
        image.write_bytes(content)
        assert faults(image) == [found]
    image.unlink()
    assert faults(image) == [(Kind.IMAGE, 'does not exist')]


def write_planes(path: str, pixels: np.ndarray) -> None:
    tifffile.imwrite(path, np.moveaxis(pixels, -1, 0), photometric='rgb', planarconfig='separate')


@pytest.mark.parametrize('name, write, pixels', [
    *((name, cv2.imwrite, pixels) for name in ('a.png', 'a.tif') for pixels in (PIXELS[..., 0], PIXELS)),
    ('planes.tif', write_planes, PIXELS)])
def test_16_bits_are_found_in_images_but_allowed_in_label_maps(name: str, write: Callable, pixels: np.ndarray,
                                                               tmp_path: Path) -> None:
    path = tmp_path / name
    write(str(path), pixels)
    assert faults(path) == []
    write(str(path), pixels * np.uint16(16))  # values up to 4080, as of a 12-bit camera
    assert cv2.imread(str(path)).max() <= 16  # what is left of them
    assert faults(path) == [(Kind.BITS, LOSES_BITS)]
    assert [kind for kind, _ in faults(path, (9, 9))] == [Kind.BITS, Kind.IMAGE_SIZE]
    assert faults_of(str(path), Kind.LABEL_MAP) == []
    assert not any(has_16_bits(Image.fromarray(PIXELS).convert(mode)) for mode in ('1', 'P', 'RGBA'))


@pytest.mark.parametrize('labels', [Labels(3), Labels(3, reduce_zero_label=True),
                                    Labels(2, label_map={0: 255, 1: 0, 2: 1}), Labels(150, reduce_zero_label=True)])
def test_known_values_are_those_that_mmseg_loads_as_classes(labels: Labels, tmp_path: Path) -> None:
    path = tmp_path / 'a.png'
    save(path, np.arange(256, dtype=np.uint8)[None].repeat(2, 0))
    loaded = LoadAnnotations()(dict(seg_map_path=str(path), reduce_zero_label=labels.reduce_zero_label, seg_fields=[],
                                    label_map=labels.label_map))['gt_seg_map'][0]
    expected = [value for value in range(256) if loaded[value] != 255 and loaded[value] >= labels.num_classes]
    assert labels.unknown(range(256)) == expected and len(expected) > 100


LABELS = np.pad(np.uint8([[1, 7, 9]]), ((3, 16), (4, 23)))


@pytest.mark.parametrize('pixels, labels, found', [
    (LABELS, Labels(2), [(Kind.LABEL, 'has 7, 9, but there are 2 classes')]),
    (LABELS, Labels(8, True), [(Kind.LABEL, 'has 9, but there are 8 classes and 0 is ignored')]),
    (LABELS, Labels(10), []), (LABELS, None, []),  # an unknown number of classes
    # Not taken for 1.
    (np.full((20, 30), 257, np.uint16), Labels(2), [(Kind.LABEL, 'has 257, but there are 2 classes')]),
    (PIXELS[:20, :30], Labels(2), [(Kind.LABEL_MAP, 'has 3 channels, but a label map has one')])])
def test_faults_of_a_label_map(pixels: np.ndarray, labels: Labels | None, found: list[tuple[Kind, str]],
                               tmp_path: Path) -> None:
    image, label_map = tmp_path / 'a.jpg', tmp_path / 'a.png'
    save(image, PIXELS[:20, :30])
    save(label_map, pixels)
    assert check_sample(SampleFiles(str(image), str(label_map)), labels).findings == [
        Finding(kind, str(label_map), detail) for kind, detail in found]
