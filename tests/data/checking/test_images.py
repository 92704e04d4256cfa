from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from cpvt_mm.data.checking.findings import Finding, Kind
from cpvt_mm.data.checking.images import EXIF_ORIENTATION, LOSES_BITS, check_image, decode, has_16_bits

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture(params=['jpg', 'png', 'webp'])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f'a.{request.param}'
    Image.fromarray(PIXELS).save(path)
    return path


def test_a_whole_image_of_the_right_size_has_no_fault(image: Path) -> None:
    assert check_image(str(image)) == check_image(str(image), (40, 60)) == []


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


def test_decoding_gives_the_pixels(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / 'a.png')
    assert np.array_equal(decode(str(tmp_path / 'a.png'), Kind.IMAGE), PIXELS)


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
