import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from tests.tools.dataset_converters.originals import contents
from toy_shapes import CLASSES, LOWER, UPPER, make_image, write_toy_shapes


def test_the_same_seed_gives_the_same_bytes_however_many_there_are(toy_shapes: Path, tmp_path: Path) -> None:
    for name, seed, num_train, num_val in (('again', 0, 8, 4), ('fewer', 0, 2, 1), ('other', 1, 2, 1)):
        assert list(write_toy_shapes(tmp_path / name, num_train, num_val, seed))
    first, again, fewer, other = map(contents, (toy_shapes, *(tmp_path / name for name in ('again', 'fewer', 'other'))))
    assert first == again
    pictures = [name for name in fewer if not name.endswith('.json')]
    assert len(pictures) == 6
    for name in pictures:
        assert first[name] == fewer[name] != other[name]


def test_instances_and_label_maps_agree(toy_shapes: Path) -> None:
    for split, count in (('training', 8), ('validation', 4)):
        coco = COCO(str(toy_shapes / f'instances_{split}.json'))
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CLASSES)
        assert len(coco.imgs) == count
        for image in coco.imgs.values():
            pixels = cv2.imread(str(toy_shapes / 'images' / split / image['file_name']))
            assert pixels.shape == (image['height'], image['width'], 3)
            assert all(64 <= side <= 256 for side in pixels.shape[:2])
            labels = np.zeros(pixels.shape[:2], np.uint8)
            for annotation in coco.imgToAnns[image['id']]:
                mask = coco.annToMask(annotation).astype(bool)
                assert mask.sum() == annotation['area'] > 0
                assert not labels[mask].any()  # what is hidden belongs to what hides it
                labels[mask] = annotation['category_id']
                rows, columns = np.nonzero(mask)
                x, y, width, height = annotation['bbox']
                assert (x, y, x + width, y + height) == (
                    columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            written = toy_shapes / 'annotations' / split / f'{image["id"]:06d}.png'
            assert np.array_equal(cv2.imread(str(written), cv2.IMREAD_UNCHANGED), labels)


def test_twins_are_told_apart_by_their_half_alone() -> None:
    seen = {name: 0 for name in CLASSES}
    for seed in range(60):
        image, _, instances = make_image(np.random.default_rng(seed))
        for label, mask in instances:
            name, middle = CLASSES[label], image.shape[0] / 2
            seen[name] += 1
            rows = np.nonzero(mask)[0]
            if name in UPPER:
                assert rows.min() < middle
            if name in LOWER:
                assert rows.max() > middle
            if name in UPPER + LOWER:
                assert mask[[0, -1]].sum() < 0.02 * mask.sum()  # not cut by the border, which would be a hint
    assert min(seen.values()) > 10


def test_an_interrupted_run_leaves_no_dataset_and_the_next_one_is_whole(tmp_path: Path) -> None:
    root = tmp_path / 'toy'
    for written in write_toy_shapes(root, num_train=3, num_val=1):
        if written == 2:
            break
    assert not root.exists()
    assert list(write_toy_shapes(root, num_train=3, num_val=1)) == [1, 2, 3, 4]
    assert json.loads((root / 'made_from.json').read_text()) == dict(num_train=3, num_val=1, seed=0)
    assert not root.with_name('toy.unfinished').exists()


def test_what_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('cv2.imwrite', lambda *args: False)
    with pytest.raises(OSError, match=r'000000\.jpg cannot be written'):
        next(write_toy_shapes(tmp_path / 'toy'))
    assert not (tmp_path / 'toy').exists()
