import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from cpvt_mm.data import nuclei
from cpvt_mm.data.nuclei import find_originals, split_of, write_nuclei
from cpvt_mm.errors import UserError
from tests.conftest import ROOT

from .originals import disc, make_stage1_train, save


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_stage1_train(tmp_path / 'stage1_train')


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob('*') if path.is_file()}


def test_images_are_rgb_and_each_mask_is_an_instance(source: Path, tmp_path: Path) -> None:
    assert list(write_nuclei(source, tmp_path / 'nuclei')) == list(range(1, 13))
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
            original = Image.open(source / name / 'images' / f'{name}.png')
            assert np.array_equal(np.asarray(pixels), np.asarray(original)[..., :3])
            annotations = coco.imgToAnns[image['id']]
            assert len(annotations) == 1 + int(name, 16) % 3
            for k, annotation in enumerate(annotations):
                mask = coco.annToMask(annotation)
                assert np.array_equal(255 * mask, disc(*mask.shape, 8, 6 + 9 * k))
                assert annotation['area'] == mask.sum()
                assert annotation['bbox'] == [2 + 9 * k, 4, 9, 9]
    assert sorted(seen) == sorted(path.name for path in source.iterdir())
    assert {path.name for path in (tmp_path / 'nuclei').iterdir()} == {
        'train', 'val', 'instances_train.json', 'instances_val.json'}


def test_one_image_in_five_validates() -> None:
    names = [sha256(bytes([i])).hexdigest() for i in range(256)]  # as the download has them
    assert [split_of(name) for name in names].count('val') == pytest.approx(51, abs=19)  # three standard deviations
    assert list(map(split_of, names[:4])) == ['train', 'train', 'val', 'val']


def test_an_interrupted_run_leaves_no_dataset_and_the_next_one_goes_on(source: Path, tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    root, whole = tmp_path / 'nuclei', tmp_path / 'whole'
    assert len(list(write_nuclei(source, whole))) == 12
    for done in write_nuclei(source, root):
        if done == 5:
            break
    assert not root.exists()
    unfinished = root.with_name('nuclei.unfinished')
    (unfinished / 'train/0000.png.1.tmp').write_bytes(b'of a process that was killed')
    read = []
    monkeypatch.setattr(nuclei, 'read_masks', lambda folder, size, real=nuclei.read_masks: (
        read.append(folder.name), real(folder, size))[1])
    assert list(write_nuclei(source, root))[-1] == 12
    assert read == [f'{i:04x}' for i in range(5, 12)]
    assert contents(root) == contents(whole)
    assert not unfinished.exists()


def test_another_download_does_not_go_on_with_the_files_of_the_first(source: Path, tmp_path: Path) -> None:
    next(write_nuclei(source, tmp_path / 'nuclei'))
    with pytest.raises(UserError, match=r'nuclei\.unfinished has files of .*stage1_train, not of .*other'):
        next(write_nuclei(make_stage1_train(tmp_path / 'other'), tmp_path / 'nuclei'))


def test_a_mask_without_a_pixel_is_no_instance(source: Path, tmp_path: Path) -> None:
    save(source / '0000/masks/9.png', np.zeros((40, 40), np.uint8))
    assert len(list(write_nuclei(source, tmp_path / 'nuclei'))) == 12
    [part] = [json.loads((tmp_path / f'nuclei/instances_{split}.json').read_text()) for split in (split_of('0000'),)]
    [image] = [image['id'] for image in part['images'] if image['file_name'] == '0000.png']
    assert [a['image_id'] for a in part['annotations']].count(image) == 1


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize('spoil, words', [
    (lambda source: truncate(source / '0001/images/0001.png'), r'0001/images/0001\.png cannot be read'),
    (lambda source: truncate(source / '0001/masks/0.png'), r'0001/masks/0\.png cannot be read'),
    (lambda source: save(source / '0001/masks/0.png', disc(10, 12, 5, 5)),
     r'0001/masks/0\.png is 10 x 12 pixels \(height x width\), but its image is 24 x 32: unpack'),
    (lambda source: save(source / '0001/images/a.png', disc(24, 32, 5, 5)), r'0001/images has 2 images, but must'),
    (lambda source: (source / '0000/masks/0.png').unlink(), r'0000 has no masks: pass the folder of stage1_train'),
])
def test_what_is_wrong_with_a_download_is_one_sentence(spoil: object, words: str, source: Path, tmp_path: Path) -> None:
    spoil(source)
    with pytest.raises(UserError, match=words):
        list(write_nuclei(source, tmp_path / 'nuclei'))
    assert not (tmp_path / 'nuclei').exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'nowhere has no folders with images/ and masks/ inside: pass the folder'):
        find_originals(tmp_path / 'nowhere')


def test_a_dataset_that_is_there_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / 'nuclei').mkdir()
    with pytest.raises(UserError, match='nuclei exists already: remove it, or choose another folder'):
        next(write_nuclei(source, tmp_path / 'nuclei'))


def test_the_configs_have_its_class() -> None:
    from mmengine.config import Config
    cfg = Config.fromfile(ROOT / 'configs/_base_/datasets/nuclei_instance.py')
    assert cfg.metainfo.classes == (nuclei.CLASS,)
