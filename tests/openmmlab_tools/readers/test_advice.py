"""Data that once raised an error with useless advice: now it is read, or the error says why not."""
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pycocotools import mask as coco_mask

from openmmlab_tools.readers.form.brushes import read_brush
from openmmlab_tools.readers.own_data import find_data, task_for
from tests.helpers import refusal
from tests.openmmlab_tools.readers import layouts


@pytest.mark.parametrize('write, words', [
    (layouts.labelme(layouts.shape('line', [[1, 1], [9, 9]])), '4 objects are of type line, which has no area'),
    (layouts.cvat('<polyline label="{}" points="1,1;2,2"/>'), '4 objects are of type polyline, which has no area'),
    (layouts.label_studio('keypointlabels', dict(x=1, y=2, width=1)), '4 objects are of type keypointlabels')])
def test_without_an_object_the_account_says_why(write: layouts.Write, words: str, tmp_path: Path) -> None:
    write(tmp_path)
    message = refusal(find_data, tmp_path)
    assert 'has no annotation to train on (4 of 4 images are used' in message and words in message


def test_images_of_lvis_are_found_by_their_address(tmp_path: Path) -> None:
    def change(split: str, content: dict) -> None:
        for image in content['images']:
            image['coco_url'] = f'http://images.cocodataset.org/{split}2017/{image.pop("file_name")}'

    layouts.coco(tmp_path, change)
    data = find_data(tmp_path)
    assert {split: [one.path.parent.name for one in pictures] for split, pictures in data.splits.items()} == dict(
        train=['train2017'] * 2, val=['val2017'] * 2)
    assert any('has no file_name in images[0], so it is the end of coco_url' in note for note in data.notes)


def brush(pixels: np.ndarray, lengths: tuple[int, ...] = (3, 4, 8, 16), most: int = 2**16) -> list[int]:
    """Packs a mask, `(H, W)`, uint8, as Label Studio's brush does: runs of equal values, and others as they are."""
    values = np.repeat(pixels.ravel(), 4)
    bits = f'{len(values):032b}{7:05b}' + ''.join(f'{length - 1:04b}' for length in lengths)
    starts = [0, *(np.flatnonzero(np.diff(values.astype(int))) + 1).tolist(), len(values)]
    for start, end in itertools.pairwise(starts):
        while start < end:
            length = min(end - start, most)
            kind = next(kind for kind, one in enumerate(lengths) if length <= 2**one)
            own = values[start:start + 1] if length > 4 else values[start:start + length]
            bits += f'{int(length > 4)}{kind:02b}{length - 1:0{lengths[kind]}b}' + ''.join(f'{one:08b}' for one in own)
            start += length
    return [int(bits[place:place + 8].ljust(8, '0'), 2) for place in range(0, len(bits), 8)]


@given(arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.sampled_from((0, 1, 255))),
       st.sampled_from((1, 7, 2**16)))
def test_brush_masks_are_unpacked(pixels: np.ndarray, most: int) -> None:
    size = pixels.shape[1], pixels.shape[0]
    code = brush(pixels, most=most)
    np.testing.assert_array_equal(read_brush(code, size), pixels > 0)
    with pytest.raises(ValueError, match=r'it has \d+ values, but|it ends after'):
        read_brush(code, (size[0] + 1, size[1]))
    with pytest.raises(ValueError, match='it ends after'):
        read_brush(code[:-2], size)


def test_brush_masks_of_label_studio_are_read(tmp_path: Path) -> None:
    value = dict(format='rle', rle=brush(layouts.label_map(255)))
    layouts.label_studio('brushlabels', value)(tmp_path)
    data = find_data(tmp_path)
    masks = [other.keys['segmentation'] for pictures in data.splits.values() for picture in pictures
             for other in picture.objects]
    assert len(masks) == 4 and task_for(data, None, None) == 'instances'
    for mask in masks:
        np.testing.assert_array_equal(coco_mask.decode(mask), layouts.label_map())
    value['rle'] = [1, 2]
    layouts.label_studio('brushlabels', value)(tmp_path)
    assert 'has a brush mask that cannot be read (it ends after 16 bits): export it' in refusal(find_data, tmp_path)
