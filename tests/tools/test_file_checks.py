from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from cpvt_mm.data.findings import Finding, Kind
from cpvt_mm.data.images import LOSES_BITS, decode, has_16_bits
from file_checks import EXIF_ORIENTATION, Labels, check_image, check_pair

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture(params=['jpg', 'png', 'webp'])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f'a.{request.param}'
    Image.fromarray(PIXELS).save(path)
    return path


def test_a_whole_image_of_the_right_size_has_no_fault(image: Path) -> None:
    assert check_image(str(image)) == check_image(str(image), (40, 60)) == []
    if image.suffix == '.png':
        assert np.array_equal(decode(str(image), Kind.IMAGE), PIXELS)


@pytest.mark.parametrize('part', [0.05, 0.5, 0.99])
def test_a_truncated_image_is_found(image: Path, part: float) -> None:
    content = image.read_bytes()
    image.write_bytes(content[:int(part * len(content))])
    finding, = check_image(str(image))
    assert (finding.kind, finding.file) == (Kind.IMAGE, str(image))
    assert finding.detail.startswith('cannot be read: ') or finding.detail == 'is not an image that Pillow can read'


def test_what_else_is_no_image_is_found(image: Path) -> None:
    def only() -> Finding:
        finding, = check_image(str(image))
        return finding

    image.write_bytes(b'')
    assert only() == Finding(Kind.IMAGE, str(image), 'is empty (0 bytes)')
    image.write_text('<html>not found</html>')
    assert only() == Finding(Kind.IMAGE, str(image), 'is not an image that Pillow can read')
    image.unlink()
    assert only() == Finding(Kind.IMAGE, str(image), 'does not exist')


def test_another_size_than_annotated_is_found(image: Path) -> None:
    assert check_image(str(image), (60, 40)) == [Finding(
        Kind.IMAGE_SIZE, str(image), 'is 40 x 60 pixels (height x width), but 60 x 40 in the annotations')]


def test_the_size_is_that_after_the_rotation_of_the_camera(tmp_path: Path) -> None:
    import mmcv
    path, exif = tmp_path / 'a.jpg', Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    Image.fromarray(PIXELS).save(path, exif=exif)
    assert mmcv.imread(str(path)).shape[:2] == (60, 40)
    assert check_image(str(path), (60, 40)) == []


GREY, DEEP = PIXELS[..., 0], np.uint16(16)  # values up to 4080, as of a 12-bit camera


@pytest.mark.parametrize('name', ['a.png', 'a.tif'])
@pytest.mark.parametrize('pixels', [GREY, PIXELS], ids=['grey', 'RGB'])
def test_16_bits_are_found_in_images_but_allowed_in_label_maps(name: str, pixels: np.ndarray, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    cv2.imwrite(path, pixels)
    assert not has_16_bits(Image.open(path)) and check_image(path) == []
    cv2.imwrite(path, pixels * DEEP)
    assert cv2.imread(path).max() <= 16  # what is left of them
    assert has_16_bits(Image.open(path)) and check_image(path) == [Finding(Kind.IMAGE, path, LOSES_BITS)]
    assert not isinstance(decode(path, Kind.LABEL_MAP), Finding)


def test_other_depths_are_not_of_16_bits(tmp_path: Path) -> None:
    for mode in ('1', 'P', 'RGBA'):
        Image.fromarray(PIXELS).convert(mode).save(tmp_path / 'a.png')
        assert not has_16_bits(Image.open(tmp_path / 'a.png'))


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
    expected = [value for value in range(256) if loaded[value] != 255 and loaded[value] >= labels.num_classes]
    assert labels.unknown(range(256)) == expected and len(expected) > 100


@pytest.mark.parametrize('labels', [Labels(2), None])  # None: of an unknown number
def test_a_good_pair_has_no_fault(labels: Labels | None, pair: tuple[str, str]) -> None:
    assert check_pair(*pair, labels) == []


def test_labels_that_are_no_classes_are_found(pair: tuple[str, str]) -> None:
    labels = np.zeros((20, 30), np.uint8)
    labels[3, 4:7] = 1, 7, 9
    Image.fromarray(labels).save(pair[1])
    assert check_pair(*pair, Labels(2)) == [Finding(Kind.LABEL, pair[1], 'has 7, 9, but there are 2 classes')]
    assert check_pair(*pair, Labels(8, True)) == [
        Finding(Kind.LABEL, pair[1], 'has 9, but there are 8 classes and 0 is ignored')]
    assert check_pair(*pair, Labels(10)) == []


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
