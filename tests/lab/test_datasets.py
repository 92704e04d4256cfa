"""The toy datasets, converted downloads, and folders in tar files."""
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from PIL import Image
from pycocotools.coco import COCO

from lab.commands.convert import CAMVID_CLASSES, CAMVID_PALETTE, split_of, write_camvid, write_nuclei
from lab.commands.toy_shapes import CLASSES, PALETTE, write_toy_shapes
from tests.helpers import ROOT, refusal
from tests.tools.conftest import Run, contents, cut, save, times

Maker = Callable[[Path], Path]
CAMVID = [f'{split}/{split}_{i}' for split, count in (('train', 3), ('val', 2), ('test', 2)) for i in range(count)]
VAL_LABELS = 'valannot/val_1.png'


def test_the_same_seed_gives_the_same_images_however_many_there_are(toy_shapes: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        assert list(write_toy_shapes(tmp_path / str(seed), num_train=2, num_val=1, seed=seed)) == [1, 2, 3]
    first, fewer, other = map(contents, (toy_shapes, tmp_path / '0', tmp_path / '1'))
    pictures = [name for name in fewer if not name.endswith('.json')]
    assert len(pictures) == 6
    assert all(first[name] == fewer[name] != other[name] for name in pictures)


def test_instances_and_label_maps_agree(toy_shapes: Path) -> None:
    for split, count in (('training', 8), ('validation', 4)):
        coco = COCO(str(toy_shapes / f'instances_{split}.json'))
        assert [one['name'] for one in coco.cats.values()] == list(CLASSES) and len(coco.imgs) == count
        for image in coco.imgs.values():
            pixels = cv2.imread(str(toy_shapes / 'images' / split / image['file_name']))
            assert pixels.shape == (image['height'], image['width'], 3)
            labels = np.zeros(pixels.shape[:2], np.uint8)
            for annotation in coco.imgToAnns[image['id']]:
                mask = coco.annToMask(annotation).astype(bool)
                assert mask.sum() == annotation['area'] > 0
                assert annotation['bbox'] == list(cv2.boundingRect(mask.astype(np.uint8)))
                assert not labels[mask].any()  # what is hidden belongs to what hides it
                labels[mask] = annotation['category_id']
            written = toy_shapes / 'annotations' / split / f'{image["id"]:06d}.png'
            assert np.array_equal(cv2.imread(str(written), cv2.IMREAD_UNCHANGED), labels)


def test_toy_shapes_are_written_once_and_others_not_over_them(run_tool: Run, tmp_path: Path) -> None:
    root = tmp_path / 'toy'
    writing = write_toy_shapes(root, num_train=2, num_val=1)
    assert next(writing) == 1 and not root.exists()
    writing.close()  # it was interrupted
    arguments = ('lab toy_shapes', root, '--num-val', 1, '--num-train')
    assert run_tool(*arguments, 2) == ''
    written = times(root)
    assert len(written) == 2 + 4 + 6 + 3 and run_tool(*arguments, 2) == '' and times(root) == written
    told = run_tool(*arguments, 3)
    assert told.startswith(f'error: {root} exists, but is not a toy dataset of') and 'choose another folder' in told


def random_image(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def disc(height: int, width: int, y: int, x: int) -> np.ndarray:
    """A mask, 0 and 255, of a nucleus of radius 4."""
    rows, columns = np.ogrid[:height, :width]
    return (255 * ((rows - y)**2 + (columns - x)**2 <= 16)).astype(np.uint8)


def make_nuclei(root: Path) -> Path:
    """Writes RGBA images of two sizes, with one to three nuclei each; the masks of every other image are RGBA, too."""
    for index in range(12):
        size, mode = ((24, 32), 'RGBA') if index % 2 else ((40, 40), 'L')
        save(root / f'{index:04x}/images/{index:04x}.png', random_image(*size, index), 'RGBA')
        for k in range(1 + index % 3):
            save(root / f'{index:04x}/masks/{k}.png', disc(*size, 8, 6 + 9 * k), mode)
    return root


def make_camvid(root: Path) -> Path:
    """Writes images of 36 x 48 pixels, and label maps in which every value occurs."""
    for index, name in enumerate(CAMVID):
        save(root / f'{name}.png', random_image(36, 48, index))
        save(root / f'{name.replace("/", "annot/")}.png', random_image(36, 48, index)[..., 0] % 12)
    return root


def test_images_of_nuclei_are_rgb_and_each_mask_is_an_instance(run_tool: Run, tmp_path: Path) -> None:
    nuclei, root = make_nuclei(tmp_path / 'stage1_train'), tmp_path / 'nuclei'
    save(nuclei / '0000/masks/9.png', np.zeros((40, 40), np.uint8))  # is no instance
    assert run_tool('lab convert', 'nuclei', nuclei, root) == ''
    seen = []
    for split in ('train', 'val'):
        coco = COCO(str(root / f'instances_{split}.json'))
        for image in coco.imgs.values():
            name = Path(image['file_name']).stem
            seen.append(name)
            assert split_of(name) == split
            pixels = Image.open(root / split / image['file_name'])
            original = Image.open(nuclei / name / f'images/{name}.png')
            assert pixels.mode == 'RGB' and np.array_equal(np.asarray(pixels), np.asarray(original)[..., :3])
            annotations = coco.imgToAnns[image['id']]
            assert [annotation['bbox'] for annotation in annotations] == [
                [2 + 9 * k, 4, 9, 9] for k in range(1 + int(name, 16) % 3)]
            for k, annotation in enumerate(annotations):
                assert np.array_equal(255 * coco.annToMask(annotation), disc(*pixels.size[::-1], 8, 6 + 9 * k))
    assert sorted(seen) == sorted(path.name for path in nuclei.iterdir())
    assert run_tool('lab convert', 'nuclei', nuclei, root).startswith(f'error: {root} exists already: remove it')


def test_label_maps_of_camvid_have_classes_and_255_where_there_is_none(run_tool: Run, tmp_path: Path) -> None:
    camvid, root = make_camvid(tmp_path / 'CamVid'), tmp_path / 'camvid'
    assert run_tool('lab convert', 'camvid', camvid, root) == ''
    assert contents(root).keys() == {f'{part}/{name}.{suffix}' for name in CAMVID
                                     for part, suffix in (('images', 'jpg'), ('annotations', 'png'))}
    for name in CAMVID:
        original = np.asarray(Image.open(camvid / f'{name.replace("/", "annot/")}.png'))
        labels = np.asarray(Image.open(root / f'annotations/{name}.png'))
        assert np.array_equal(labels, np.where(original == 11, 255, original))


@pytest.mark.parametrize('make, write, total', [(make_nuclei, write_nuclei, 12), (make_camvid, write_camvid, 7)])
def test_a_folder_is_whole_or_not_there(make: Maker, write: Callable, total: int, tmp_path: Path) -> None:
    download, root = make(tmp_path / 'source'), tmp_path / 'data'
    assert next(done for done in write(download, root) if done == 3) and not root.exists()
    assert list(write(download, root))[-1] == total and {path.name for path in tmp_path.iterdir()} == {'source', 'data'}


@pytest.mark.parametrize('make, write, spoil, words', [
    (make_nuclei, write_nuclei, shutil.rmtree, 'source has no folders with images/ and masks/ inside'),
    (make_nuclei, write_nuclei, lambda source: cut(source / '0001/images/0001.png'), '0001.png cannot be read'),
    (make_nuclei, write_nuclei, lambda source: save(source / '0001/masks/0.png', disc(10, 12, 5, 5)),
     '0001/masks/0.png is 10 x 12 pixels (height x width), but its image is 24 x 32'),
    (make_camvid, write_camvid, shutil.rmtree, 'source/train has no images (.png)'),
    (make_camvid, write_camvid, lambda source: save(source / VAL_LABELS, np.full((36, 48), 12, np.uint8)),
     'val_1.png has the value 12, but must be a grey image of classes 0 to 10')])
def test_what_is_wrong_with_a_download_is_one_sentence(make: Maker, write: Callable, spoil: Callable, words: str,
                                                       tmp_path: Path) -> None:
    spoil(make(tmp_path / 'source'))
    assert words in refusal(list, write(tmp_path / 'source', tmp_path / 'data'))
    assert not (tmp_path / 'data').exists()


@pytest.mark.parametrize('name, classes, palette', [
    ('camvid_360x480', CAMVID_CLASSES, CAMVID_PALETTE), ('camvid_192x256', CAMVID_CLASSES, CAMVID_PALETTE),
    ('nuclei_instance', ('nucleus',), None), ('toy_shapes_instance', CLASSES, PALETTE),
    ('toy_shapes_semantic', ('background', *CLASSES), ((0, 0, 0), *PALETTE))])
def test_the_configs_have_their_classes(name: str, classes: tuple, palette: tuple | None) -> None:
    meta = Config.fromfile(ROOT / f'configs/_base_/datasets/{name}.py').metainfo
    assert tuple(meta.classes) == classes
    assert palette is None or tuple(map(tuple, meta.palette)) == palette
