"""CamVid and the nuclei, from small downloads: what is written, the command lines, and the configs for it."""
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from pycocotools.coco import COCO

from lab.datasets.converters import CAMVID_CLASSES, CAMVID_PALETTE, split_of, write_camvid, write_nuclei
from lab.datasets.toy_shapes import CLASSES, PALETTE
from openmmlab_runs.errors import UserError
from tests.conftest import ROOT
from tests.tools.conftest import Run, contents, cut, save, times

Maker = Callable[[Path], Path]


def random_image(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def disc(height: int, width: int, y: int, x: int) -> np.ndarray:
    """A mask, 0 and 255, of a nucleus of radius 4."""
    rows, columns = np.ogrid[:height, :width]
    return (255 * ((rows - y)**2 + (columns - x)**2 <= 16)).astype(np.uint8)


def make_nuclei(root: Path) -> Path:
    """Writes RGBA images of two sizes, with one to three nuclei each; the masks of every other image are RGBA, too."""
    for index in range(12):
        height, width = (24, 32) if index % 2 else (40, 40)
        folder = root / f'{index:04x}'
        save(folder / f'images/{folder.name}.png', random_image(height, width, index), 'RGBA')
        for k in range(1 + index % 3):
            save(folder / f'masks/{k}.png', disc(height, width, 8, 6 + 9 * k), 'RGBA' if index % 2 else 'L')
    return root


COUNTS = dict(train=3, val=2, test=2)
LABELS = 'valannot/val_1.png'


def make_camvid(root: Path) -> Path:
    """Writes images of 36 x 48 pixels, and label maps in which every value occurs."""
    for split, count in COUNTS.items():
        for index in range(count):
            labels = np.random.default_rng(index).integers(0, 12, (36, 48), np.uint8)
            save(root / split / f'{split}_{index}.png', random_image(36, 48, index))
            save(root / f'{split}annot' / f'{split}_{index}.png', labels)
    return root


def test_images_of_nuclei_are_rgb_and_each_mask_is_an_instance(tmp_path: Path) -> None:
    nuclei = make_nuclei(tmp_path / 'stage1_train')
    assert list(write_nuclei(nuclei, tmp_path / 'nuclei')) == list(range(1, 13))
    seen = []
    for split in ('train', 'val'):
        coco = COCO(str(tmp_path / f'nuclei/instances_{split}.json'))
        assert coco.loadCats(coco.getCatIds()) == [dict(id=1, name='nucleus')]
        for image in coco.imgs.values():
            name = Path(image['file_name']).stem
            seen.append(name)
            assert split_of(name) == split
            pixels = Image.open(tmp_path / 'nuclei' / split / image['file_name'])
            assert pixels.mode == 'RGB' and pixels.size == (image['width'], image['height'])
            original = Image.open(nuclei / name / 'images' / f'{name}.png')
            assert np.array_equal(np.asarray(pixels), np.asarray(original)[..., :3])
            annotations = coco.imgToAnns[image['id']]
            assert len(annotations) == 1 + int(name, 16) % 3
            for k, annotation in enumerate(annotations):
                mask = coco.annToMask(annotation)
                assert np.array_equal(255 * mask, disc(*mask.shape, 8, 6 + 9 * k))
                assert annotation['area'] == mask.sum()
                assert annotation['bbox'] == [2 + 9 * k, 4, 9, 9]
    assert sorted(seen) == sorted(path.name for path in nuclei.iterdir())
    assert {path.name for path in (tmp_path / 'nuclei').iterdir()} == {
        'train', 'val', 'instances_train.json', 'instances_val.json'}


def test_one_image_of_nuclei_in_five_validates() -> None:
    names = [sha256(bytes([i])).hexdigest() for i in range(256)]  # as the download has them
    assert [split_of(name) for name in names].count('val') == pytest.approx(51, abs=19)  # three standard deviations
    assert list(map(split_of, names[:4])) == ['train', 'train', 'val', 'val']


def test_a_mask_without_a_pixel_is_no_instance(tmp_path: Path) -> None:
    nuclei = make_nuclei(tmp_path / 'stage1_train')
    save(nuclei / '0000/masks/9.png', np.zeros((40, 40), np.uint8))
    assert len(list(write_nuclei(nuclei, tmp_path / 'nuclei'))) == 12
    part = json.loads((tmp_path / f'nuclei/instances_{split_of("0000")}.json').read_text())
    [image] = [image['id'] for image in part['images'] if image['file_name'] == '0000.png']
    assert [annotation['image_id'] for annotation in part['annotations']].count(image) == 1


def test_label_maps_of_camvid_have_classes_and_255_where_there_is_none(tmp_path: Path) -> None:
    camvid, root = make_camvid(tmp_path / 'CamVid'), tmp_path / 'camvid'
    assert list(write_camvid(camvid, root)) == list(range(1, 8))
    names = {f'{split}/{split}_{i}' for split, count in COUNTS.items() for i in range(count)}
    assert set(contents(root)) == {path for name in names for path in (f'images/{name}.jpg', f'annotations/{name}.png')}
    for name in names:
        labels = np.asarray(Image.open(root / f'annotations/{name}.png'))
        original = np.asarray(Image.open(camvid / f'{name.replace("/", "annot/")}.png'))
        assert set(np.unique(labels)) == {*range(len(CAMVID_CLASSES)), 255}
        assert np.array_equal(labels, np.where(original == 11, 255, original))


def test_an_image_of_camvid_is_the_original_but_for_what_jpeg_rounds(tmp_path: Path) -> None:
    camvid = make_camvid(tmp_path / 'CamVid')
    rows, columns = np.mgrid[:36, :48]
    smooth = np.stack([4 * rows, 3 * columns, 2 * (rows + columns)], -1).astype(np.uint8)
    save(camvid / 'train/train_0.png', smooth)
    assert len(list(write_camvid(camvid, tmp_path / 'camvid'))) == 7
    image = Image.open(tmp_path / 'camvid/images/train/train_0.jpg')
    assert image.format == 'JPEG'
    written = np.asarray(image).astype(int)
    assert written.shape == smooth.shape and np.abs(written - smooth).mean() < 2


@pytest.mark.parametrize('make, write, total', [(make_nuclei, write_nuclei, 12), (make_camvid, write_camvid, 7)])
def test_a_run_goes_on_after_an_interrupted_one(make: Maker, write: Callable, total: int, tmp_path: Path) -> None:
    download, root, whole = make(tmp_path / 'source'), tmp_path / 'data', tmp_path / 'whole'
    assert len(list(write(download, whole))) == total
    assert next(done for done in write(download, root) if done == 3)
    assert not root.exists()
    unfinished = root.with_name('data.unfinished')
    before = {path.name: path.stat().st_mtime_ns for path in unfinished.rglob('*.png')}
    assert len(before) == 3
    (unfinished / 'train').mkdir(exist_ok=True)
    (unfinished / 'train/0000.png.1.tmp').write_bytes(b'of a process that was killed')
    assert list(write(download, root))[-1] == total
    after = {path.name: path.stat().st_mtime_ns for path in root.rglob('*.png')}
    assert len(after) == total and before.items() <= after.items()
    assert contents(root) == contents(whole) and not unfinished.exists()


def test_one_process_at_a_time_converts(tmp_path: Path) -> None:
    camvid, root = make_camvid(tmp_path / 'CamVid'), tmp_path / 'camvid'
    writing = write_camvid(camvid, root)
    assert next(writing) == 1
    command = [sys.executable, ROOT / 'tools/dataset_converters/camvid.py', camvid, root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert f'camvid.unfinished is in use by process {os.getpid()} on ' in done.stderr
    assert [*writing][-1] == 7 and not (root / '.lock').exists()


def test_another_download_does_not_go_on_with_the_files_of_the_first(tmp_path: Path) -> None:
    nuclei = make_nuclei(tmp_path / 'stage1_train')
    next(write_nuclei(nuclei, tmp_path / 'nuclei'))
    with pytest.raises(UserError, match=r'nuclei\.unfinished has files of .*stage1_train, not of .*other'):
        next(write_nuclei(make_nuclei(tmp_path / 'other'), tmp_path / 'nuclei'))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize('make, write, spoil, words', [
    *((make_nuclei, write_nuclei, *case) for case in [
        (empty, r'source has no folders with images/ and masks/ inside: pass the folder'),
        (lambda source: cut(source / '0001/images/0001.png'), r'0001/images/0001\.png cannot be read'),
        (lambda source: cut(source / '0001/masks/0.png'), r'0001/masks/0\.png cannot be read'),
        (lambda source: save(source / '0001/masks/0.png', disc(10, 12, 5, 5)),
         r'0001/masks/0\.png is 10 x 12 pixels \(height x width\), but its image is 24 x 32: unpack'),
        (lambda source: save(source / '0001/images/a.png', disc(24, 32, 5, 5)), r'0001/images has 2 images, but must'),
        (lambda source: (source / '0000/masks/0.png').unlink(), r'0000 has no masks: pass the folder of stage1_train'),
    ]),
    *((make_camvid, write_camvid, *case) for case in [
        (empty, r'source/train has no images \(\.png\): pass the folder CamVid'),
        (lambda source: (source / LABELS).unlink(), r'valannot/val_1\.png, the label map of .*, does not'),
        (lambda source: save(source / LABELS, np.full((36, 48), 12, np.uint8)),
         r'valannot/val_1\.png has the value 12, but must be a grey image of classes 0 to 10'),
        (lambda source: save(source / LABELS, random_image(36, 48, 0)), r'val_1\.png has 3 channels, but'),
        (lambda source: save(source / LABELS, np.zeros((36, 40), np.uint8)),
         r'val_1\.png is 36 x 40 pixels \(height x width\), but its image is 36 x 48'),
        (lambda source: (source / 'val/val_1.png').write_bytes(b''), r'val/val_1\.png is empty \(0 bytes\): unpack')])])
def test_what_is_wrong_with_a_download_is_one_sentence(make: Maker, write: Callable, spoil: Callable, words: str,
                                                       tmp_path: Path) -> None:
    spoil(make(tmp_path / 'source'))
    with pytest.raises(UserError, match=words):
        list(write(tmp_path / 'source', tmp_path / 'data'))
    assert not (tmp_path / 'data').exists()


@pytest.mark.parametrize('name, make', [('nuclei', make_nuclei), ('camvid', make_camvid)])
def test_writes_only_once(name: str, make: Maker, run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tool, source, root = f'dataset_converters/{name}.py', make(tmp_path / 'source'), tmp_path / 'data' / name
    assert run_tool(tool, source, root) == ''
    assert '100%' in capsys.readouterr().out
    assert (written := times(root))
    assert run_tool(tool, source, root) == f'error: {root} exists already: remove it, or choose another folder.'
    assert times(root) == written


@pytest.mark.parametrize('name, classes, palette', [
    ('camvid_360x480', CAMVID_CLASSES, CAMVID_PALETTE), ('camvid_192x256', CAMVID_CLASSES, CAMVID_PALETTE),
    ('nuclei_instance', ('nucleus',), None), ('toy_shapes_instance', CLASSES, PALETTE),
    ('toy_shapes_semantic', ('background', *CLASSES), ((0, 0, 0), *PALETTE))])
def test_the_configs_have_their_classes(name: str, classes: tuple, palette: tuple | None) -> None:
    meta = Config.fromfile(ROOT / f'configs/_base_/datasets/{name}.py').metainfo
    assert tuple(meta.classes) == classes
    assert palette is None or tuple(map(tuple, meta.palette)) == palette
