"""Images are read as mmcv's loader reads them, and are refused before they take memory or time."""
import errno
import io
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import cv2
import mmcv
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from cpvt_mm import images
from cpvt_mm.data.findings import Finding, Kind, decode
from cpvt_mm.errors import UserError
from cpvt_mm.images import EXIF_ORIENTATION, read_image, size_as_loaded
from tests.conftest import refusal

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


def test_images_are_resized_where_asked(tmp_path: Path) -> None:
    image, path = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8), tmp_path / 'a.png'
    mmcv.imwrite(image, str(path))
    assert np.array_equal(read_image(path), image[..., ::-1])
    assert read_image(path, (8, 12)).shape == (8, 12, 3)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'text.jpg').write_text('text')
    (tmp_path / 'empty.jpg').touch()
    damaged = 'it is damaged or not an image'
    for name, reason in (('text.jpg', damaged), ('empty.jpg', damaged), ('no.jpg', os.strerror(errno.ENOENT))):
        with pytest.raises(UserError, match=f'image {re.escape(str(tmp_path / name))} cannot be read.*{reason}'):
            read_image(tmp_path / name)


def test_too_many_pixels_are_refused_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / 'a.png'
    mmcv.imwrite(np.zeros((20, 30, 3), np.uint8), str(path))
    assert read_image(path, max_pixels=600).shape == (20, 30, 3)
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


def test_the_installed_opencv_is_asked_what_it_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    Image.fromarray(PIXELS).save(tmp_path / 'a.webp', exif=exif)
    monkeypatch.setattr(cv2, 'imdecode', lambda content, flags: np.asarray(Image.open(io.BytesIO(content))))
    images.is_turned.cache_clear()
    try:
        with Image.open(tmp_path / 'a.webp') as image:
            assert size_as_loaded(image) == read_image(tmp_path / 'a.webp').shape[:2] == (40, 60)
    finally:
        images.is_turned.cache_clear()


def test_what_opencv_alone_knows_is_not_decoded(tmp_path: Path) -> None:
    (tmp_path / 'a.png').write_bytes(b'#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 20000 +X 20000\n' + bytes(99))
    script = ('import sys; from cpvt_mm.images import read_image\ntry: read_image(sys.argv[1], max_pixels=10**6)\n'
              'except ValueError as error: print(error)')
    done = subprocess.run([sys.executable, '-c', script, tmp_path / 'a.png'], capture_output=True, text=True,
                          timeout=99, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)))
    assert f'image {tmp_path}/a.png cannot be read: it is damaged or not an image' in done.stdout, done.stderr


def test_a_size_that_libraries_read_differently_is_that_of_the_decoder(tmp_path: Path) -> None:
    """libtiff takes the first of two widths, and Pillow the last."""
    Image.fromarray(PIXELS[..., 0]).save(tmp_path / 'a.tif')
    content = bytearray((tmp_path / 'a.tif').read_bytes())
    start = int.from_bytes(content[4:8], 'little') + 2
    width, second = content[start:start + 12], start + 24
    content[second:second + 12] = width  # a second width
    content[start + 8:start + 12] = (60_000).to_bytes(4, 'little')
    (tmp_path / 'a.tif').write_bytes(content)
    try:
        assert read_image(tmp_path / 'a.tif', max_pixels=10_000).shape[0] * 60 <= 10_000
    except UserError as error:
        assert 'cannot be read' in str(error) or 'at most 10000' in str(error)


def test_a_text_that_pillow_refuses_is_a_sentence(tmp_path: Path) -> None:
    text = PngInfo()
    text.add_text('comment', 'x' * 2**21, zip=True)
    Image.new('RGB', (30, 20)).save(tmp_path / 'a.png', pnginfo=text)
    assert 'a.png cannot be read: it is damaged or not an image (Decompressed data too large' in refusal(
        read_image, tmp_path / 'a.png', error=UserError)


@pytest.mark.parametrize('kind', ['pipe', 'socket', 'device', 'folder'])
def test_what_may_never_end_is_not_opened(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / 'a.png'
    if kind == 'pipe':
        os.mkfifo(path)
    elif kind == 'device':
        path.symlink_to('/dev/zero')
    elif kind == 'folder':
        path.mkdir()
    else:
        monkeypatch.chdir(tmp_path)  # the names of sockets are short
        socket.socket(socket.AF_UNIX).bind('a.png')
    assert refusal(read_image, path, error=UserError).startswith(f'{path} is a ')
    found = decode(str(path), Kind.IMAGE)
    assert isinstance(found, Finding) and found.detail.startswith('is a ')
