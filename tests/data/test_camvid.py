from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cpvt_mm.data.camvid import CLASSES, PALETTE, find_originals, write_camvid
from cpvt_mm.errors import UserError
from tests.conftest import ROOT

from .originals import make_segnet_camvid, random_image, save


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_segnet_camvid(tmp_path / 'CamVid', train=3)


def test_label_maps_have_classes_and_255_where_there_is_none(source: Path, tmp_path: Path) -> None:
    root = tmp_path / 'camvid'
    assert list(write_camvid(source, root)) == list(range(1, 8))
    for split, count in dict(train=3, val=2, test=2).items():
        names = {f'{split}_{i}' for i in range(count)}
        assert {path.name for path in (root / 'images' / split).iterdir()} == {f'{name}.jpg' for name in names}
        assert {path.name for path in (root / 'annotations' / split).iterdir()} == {f'{name}.png' for name in names}
        for name in names:
            labels = np.asarray(Image.open(root / 'annotations' / split / f'{name}.png'))
            original = np.asarray(Image.open(source / f'{split}annot' / f'{name}.png'))
            assert set(np.unique(labels)) == {*range(len(CLASSES)), 255}
            assert np.array_equal(labels == 255, original == 11)
            assert np.array_equal(labels[labels != 255], original[original != 11])
    assert {path.name for path in root.iterdir()} == {'images', 'annotations'}


def test_an_image_is_the_original_but_for_what_jpeg_rounds(source: Path, tmp_path: Path) -> None:
    rows, columns = np.mgrid[:36, :48]
    smooth = np.stack([4 * rows, 3 * columns, 2 * (rows + columns)], -1).astype(np.uint8)
    save(source / 'train/train_0.png', smooth)
    assert len(list(write_camvid(source, tmp_path / 'camvid'))) == 7
    image = Image.open(tmp_path / 'camvid/images/train/train_0.jpg')
    assert image.format == 'JPEG'
    written = np.asarray(image).astype(int)
    assert written.shape == smooth.shape
    assert np.abs(written - smooth).mean() < 2


def test_an_interrupted_run_leaves_no_dataset_and_the_next_one_goes_on(source: Path, tmp_path: Path) -> None:
    root = tmp_path / 'camvid'
    for done in write_camvid(source, root):
        if done == 3:
            break
    assert not root.exists()
    unfinished = root.with_name('camvid.unfinished')
    before = {path.name: path.stat().st_mtime_ns for path in unfinished.rglob('*.png')}
    assert len(before) == 3
    assert list(write_camvid(source, root))[-1] == 7
    after = {path.name: path.stat().st_mtime_ns for path in root.rglob('*.png')}
    assert len(after) == 7 and before.items() <= after.items()
    assert not unfinished.exists()


@pytest.mark.parametrize('spoil, words', [
    (lambda source: (source / 'valannot/val_1.png').unlink(), r'valannot/val_1\.png, the label map of .*, does not'),
    (lambda source: save(source / 'valannot/val_1.png', np.full((36, 48), 12, np.uint8)),
     r'valannot/val_1\.png has the value 12, but must be a grey image of classes 0 to 10'),
    (lambda source: save(source / 'valannot/val_1.png', random_image(36, 48, 0)), r'val_1\.png has 3 channels, but'),
    (lambda source: save(source / 'valannot/val_1.png', np.zeros((36, 40), np.uint8)),
     r'val_1\.png is 36 x 40 pixels \(height x width\), but its image is 36 x 48'),
    (lambda source: (source / 'val/val_1.png').write_bytes(b''), r'val/val_1\.png is empty \(0 bytes\): unpack'),
])
def test_what_is_wrong_with_a_download_is_one_sentence(spoil: object, words: str, source: Path, tmp_path: Path) -> None:
    spoil(source)
    with pytest.raises(UserError, match=words):
        list(write_camvid(source, tmp_path / 'camvid'))
    assert not (tmp_path / 'camvid').exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'nowhere/train has no images \(\.png\): pass the folder CamVid'):
        find_originals(tmp_path / 'nowhere')


def test_the_configs_have_its_classes() -> None:
    from mmengine.config import Config
    for name in ('camvid_360x480', 'camvid_192x256'):
        meta = Config.fromfile(ROOT / f'configs/_base_/datasets/{name}.py').metainfo
        assert (tuple(meta.classes), tuple(map(tuple, meta.palette))) == (CLASSES, PALETTE)
