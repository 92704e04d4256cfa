"""Pictures of large images show every n-th row and column of the image and of what is predicted."""
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from openmmlab_tools.pictures.prediction import Prediction
from openmmlab_tools.predict.reduced import reduced
from openmmlab_tools.predict.regions import open_regions

tifffile = pytest.importorskip('tifffile')
SIZE = 301, 407
MOST = 14_000  # pixels, so that every third row and column is shown
STEP = 3


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)


@pytest.mark.parametrize('suffix', ['.png', '.tif'])
def test_a_picture_has_every_nth_row_and_column(suffix: str, image: np.ndarray, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f'a{suffix}'
    if suffix == '.tif':
        tifffile.imwrite(path, image, tile=(16, 32), photometric='rgb')
        monkeypatch.setattr(Image, 'open', lambda path: pytest.fail('opens the whole image'))
        monkeypatch.setattr('openmmlab_tools.predict.reduced.ROWS', 17)
    else:
        Image.fromarray(image).save(path)
    label_map = image[..., 0] // 100
    whole = Prediction(SIZE, ('a', 'b', 'c'), label_map=label_map, image=path)
    small = reduced(whole, MOST, open_regions(path))
    assert small.size == (101, 136)
    assert np.array_equal(small.image, image[::STEP, ::STEP])
    assert np.array_equal(small.label_map, label_map[::STEP, ::STEP])
    assert reduced(whole, SIZE[0] * SIZE[1]) is whole
    assert reduced(replace(whole, image=image), MOST).size == small.size


def test_a_file_is_not_in_memory_while_its_picture_is_made(tmp_path: Path) -> None:
    size, path = (2560, 1000), tmp_path / 'a.tif'
    tifffile.imwrite(path, np.zeros((*size, 3), np.uint8), photometric='rgb')  # one strip without compression
    whole = Prediction(size, ('a',), label_map=np.zeros(size, np.uint8), image=path)
    tracemalloc.start()
    try:
        small = reduced(whole, MOST, open_regions(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A tenth of the rows is in memory at once. What tifffile and Python need besides is far below a tenth.
    assert peak - small.image.nbytes < .2 * 3 * size[0] * size[1]


def test_boxes_and_masks_become_smaller_and_objects_without_pixels_go(image: np.ndarray) -> None:
    generator = np.random.default_rng(0)
    bits = np.zeros((9, *SIZE), np.uint8)
    for index in range(8):
        top, left = generator.integers(0, 290), generator.integers(0, 390)
        blob = bits[index, top:top + 30, left:left + 30]
        blob[:] = generator.integers(0, 2, blob.shape)
    bits[8, 1:3, 1:3] = 1  # between the pixels that are shown
    masks = [coco_mask.encode(np.asfortranarray(mask)) for mask in bits]
    boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in map(coco_mask.toBbox, masks)], np.float32)
    whole = Prediction(SIZE, ('a',), boxes, np.zeros(9, np.int64), np.linspace(0, 1, 9, dtype=np.float32),
                       [dict(mask, counts=mask['counts'].decode()) for mask in masks], image=image)
    small = reduced(whole, MOST)
    assert small.masks and small.boxes is not None and small.scores is not None
    assert np.array_equal(coco_mask.decode(small.masks).transpose(2, 0, 1), bits[:8, ::STEP, ::STEP])
    assert np.array_equal(small.boxes, boxes[:8] / STEP) and np.array_equal(small.scores, whole.scores[:8])
    without = reduced(replace(whole, masks=None), MOST)
    assert without.masks is None and without.boxes is not None and len(without.boxes) == 9
    assert small.plot(0.).shape == (101, 136, 3)
