from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cpvt_mm.data.checking.findings import Finding, Kind
from cpvt_mm.data.checking.label_maps import Labels, check_pair

VALUES = range(256)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """An image of 20 x 30 pixels and a label map of 0 and 1."""
    image, labels = str(tmp_path / 'a.jpg'), str(tmp_path / 'a.png')
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(image)
    Image.fromarray(np.eye(20, 30, dtype=np.uint8)).save(labels)
    return image, labels


@pytest.mark.parametrize('labels', [
    Labels(3), Labels(3, reduce_zero_label=True), Labels(2, label_map={0: 255, 1: 0, 2: 1}),
    Labels(150, reduce_zero_label=True),
])
def test_known_values_are_those_that_mmseg_loads_as_classes(labels: Labels, tmp_path: Path) -> None:
    from mmseg.datasets.transforms import LoadAnnotations
    path = tmp_path / 'a.png'
    Image.fromarray(np.arange(256, dtype=np.uint8)[None].repeat(2, 0)).save(path)
    loaded = LoadAnnotations()(dict(seg_map_path=str(path), reduce_zero_label=labels.reduce_zero_label, seg_fields=[],
                                    label_map=labels.label_map))['gt_seg_map'][0]
    expected = [value for value in VALUES if loaded[value] != 255 and loaded[value] >= labels.num_classes]
    assert labels.unknown(VALUES) == expected and len(expected) > 100


def test_a_good_pair_has_no_fault(pair: tuple[str, str]) -> None:
    assert check_pair(*pair, Labels(2)) == []


def test_labels_that_are_no_classes_are_found(pair: tuple[str, str]) -> None:
    labels = np.zeros((20, 30), np.uint8)
    labels[3, 4:7] = 1, 7, 9
    Image.fromarray(labels).save(pair[1])
    assert check_pair(*pair, Labels(2)) == [Finding(Kind.LABEL, pair[1], 'has 7, 9, but there are 2 classes')]
    assert check_pair(*pair, Labels(8, True)) == [
        Finding(Kind.LABEL, pair[1], 'has 9, but there are 8 classes and 0 is ignored')]
    assert check_pair(*pair, Labels(10)) == []


def test_labels_of_unknown_number_are_not_looked_at(pair: tuple[str, str]) -> None:
    assert check_pair(*pair, None) == []


def test_sixteen_bits_are_not_taken_for_eight(pair: tuple[str, str]) -> None:
    Image.fromarray(np.full((20, 30), 257, np.uint16)).save(pair[1])
    assert check_pair(*pair, Labels(2)) == [Finding(Kind.LABEL, pair[1], 'has 257, but there are 2 classes')]


def test_another_size_and_colours_are_found(pair: tuple[str, str]) -> None:
    Image.fromarray(np.zeros((10, 15), np.uint8)).save(pair[1])
    assert check_pair(*pair, Labels(2)) == [Finding(
        Kind.LABEL_MAP_SIZE, pair[1], 'is 10 x 15 pixels (height x width), but its image 20 x 30')]
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(pair[1])
    assert check_pair(*pair, Labels(2)) == [Finding(
        Kind.LABEL_MAP, pair[1], 'has 3 channels, but a label map has one')]


def test_what_cannot_be_read_is_found_in_both(pair: tuple[str, str]) -> None:
    for path in map(Path, pair):
        path.write_bytes(path.read_bytes()[:-30])
    image, label_map = check_pair(*pair, Labels(2))
    assert (image.kind, image.file, label_map.kind, label_map.file) == (Kind.IMAGE, pair[0], Kind.LABEL_MAP, pair[1])
    Path(pair[1]).unlink()
    assert check_pair(*pair, Labels(2))[1] == Finding(Kind.LABEL_MAP, pair[1], 'does not exist')
