"""Images are read as mmcv's loader reads them, and are refused before they take memory or time."""
import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import cv2
import mmcv
import numpy as np
import pytest
from PIL import Image

from openmmlab_tools.data.findings import Kind
from openmmlab_tools.data.image_files import faults_of
from openmmlab_tools.pictures.images import EXIF_ORIENTATION, read_image, size_as_loaded
from tests.helpers import refusal

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
DAMAGED = 'image {} cannot be read: it is damaged or not an image'


@pytest.mark.parametrize('make, words', [
    (lambda path: path.write_text('text'), DAMAGED), (Path.touch, DAMAGED),
    (lambda path: path.write_bytes(cv2.imencode('.hdr', PIXELS.astype(np.float32))[1].tobytes()),
     f'{DAMAGED} that Pillow knows.'),  # but OpenCV does
    (lambda path: None, f'image {{}} cannot be read: {os.strerror(errno.ENOENT)}'),
    # What may never end is not opened.
    (os.mkfifo, '{} is a named pipe'), (lambda path: path.symlink_to('/dev/zero'), '{} is a device'),
    (os.mkdir, '{} is a folder')])
def test_what_is_no_image_is_refused(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    path = tmp_path / 'a.png'
    make(path)
    assert refusal(read_image, path).startswith(words.format(path))
    finding, = faults_of(str(path), Kind.IMAGE)
    assert finding.detail.startswith(('is ', 'cannot be read: it is ', 'does not exist'))


def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / 'a.png'
    mmcv.imwrite(np.zeros((20, 30, 3), np.uint8), str(path))
    assert read_image(path, max_pixels=600).shape == (20, 30, 3) and read_image(path, (8, 12)).shape == (8, 12, 3)
    monkeypatch.setattr(Image.Image, 'load', Mock(side_effect=AssertionError))
    assert refusal(read_image, path, max_pixels=599) == (
        f'image {path} has 30 x 20 pixels (width x height), but at most 599 are allowed: scale it down.')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 200)
    assert refusal(read_image, path).startswith(f'image {path} has too many pixels (Image size (600 pixels) exceeds')


@pytest.mark.parametrize('mode', ['1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'CMYK', 'I;16'])
@pytest.mark.parametrize('format', ['JPEG', 'PNG', 'TIFF', 'BMP', 'WEBP', 'GIF'])
def test_pixels_are_those_of_mmcv(format: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / 'a.img'
    image = Image.fromarray(PIXELS[..., 0] * np.uint16(257))
    image = image if mode == 'I;16' else Image.fromarray(PIXELS).convert(mode)
    try:
        image.save(path, format)
    except (OSError, ValueError):
        pytest.skip(f'{format} has no {mode}')
    expected = mmcv.imread(path, channel_order='rgb')
    assert expected is not None and np.ptp(expected) > 99
    np.testing.assert_allclose(read_image(path).astype(int), expected.astype(int), atol=mode == 'CMYK')


@pytest.mark.parametrize('format', ['JPEG', 'PNG', 'TIFF', 'WEBP', 'MPO', 'BMP'])
@pytest.mark.parametrize('orientation', range(1, 9))
def test_images_are_turned_as_mmcv_turns_them(format: str, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    Image.fromarray(PIXELS).save(tmp_path / 'a.img', format, exif=exif)
    expected = mmcv.imread(tmp_path / 'a.img', channel_order='rgb')
    assert np.array_equal(read_image(tmp_path / 'a.img'), expected)
    with Image.open(tmp_path / 'a.img') as image:
        assert size_as_loaded(image) == expected.shape[:2]
