"""Images of any number of channels and bits: what is read of their files, and the pictures that are made of them."""
import io
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from openmmlab_tools.pictures.bands import Pixels, decode_bands, read_bands, read_header, read_view, to_view
from openmmlab_tools.pictures.images import EXIF_ORIENTATION, read_image
from tests.helpers import refusal

TYPES = ('uint8', 'uint16', 'float32')


def pixels(height: int = 9, width: int = 12, channels: int = 4, dtype: str = 'uint16') -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 255 if dtype == 'uint8' else 60_000, (height, width, channels)).astype(
        dtype)


def tiff(values: np.ndarray, **settings: object) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **settings)
    return file.getvalue()


def check(content: bytes, expected: np.ndarray) -> Pixels:
    read, header = decode_bands(content, 'a.tif'), read_header(io.BytesIO(content), 'a.tif')
    np.testing.assert_array_equal(read, expected, strict=True)
    assert (header.height, header.width, header.pixels.channels) == expected.shape
    assert header.pixels.dtype == expected.dtype.name
    return header.pixels


@pytest.mark.filterwarnings('ignore:.*are stored as RGB:DeprecationWarning')
@given(st.sampled_from(TYPES), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9),
       st.sampled_from(['last', 'first', 'pages', 'unnamed', 'unnamed first']), st.booleans(), st.booleans())
def test_tiff_is_read_as_it_was_written(dtype: str, height: int, width: int, channels: int, where: str, packed: bool,
                                        is_big: bool) -> None:
    is_unnamed = where.startswith('unnamed')  # then channels are the shortest axis
    expected = pixels(height + 10 * is_unnamed, width + 10 * is_unnamed, channels, dtype)
    planes = np.moveaxis(expected, -1, 0)
    values, how = {
        'last': (expected, dict(planarconfig='contig')), 'first': (planes, dict(planarconfig='separate')),
        'pages': (planes, dict(ome=True, metadata=dict(axes='CYX'))),
        'unnamed': (expected, {}), 'unnamed first': (planes, {})}[where]
    if not is_unnamed:
        values, how = (values, how) if channels > 1 else (planes[0], {})
        how = dict(how, photometric='minisblack')
    actual = check(tiff(values, **how, compression='zlib' if packed else None, bigtiff=is_big), expected)
    if not is_unnamed:  # mmcv reads the first page
        assert actual.is_plain == (dtype == 'uint8' and (channels == 1 or (channels == 3 and where != 'pages')))


@pytest.mark.parametrize('channels', [1, 3, 4])
@pytest.mark.parametrize('dtype', ['uint8', 'uint16'])
def test_png_is_read_red_first(dtype: str, channels: int) -> None:
    expected = pixels(channels=channels, dtype=dtype)
    bgr = expected[..., [2, 1, 0, 3][:channels]] if channels > 1 else expected
    check(cv2.imencode('.png', bgr)[1].tobytes(), expected)


@pytest.mark.parametrize('turn', range(1, 9))
def test_png_of_16_bits_is_turned_as_mmcv_turns_it(turn: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = turn
    path = tmp_path / 'a.png'
    Image.fromarray(pixels()[..., 0]).save(path, exif=exif)
    check(path.read_bytes(), cv2.imread(str(path), cv2.IMREAD_ANYDEPTH)[..., None])


@pytest.mark.parametrize('mode', ['1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'CMYK'])
def test_images_of_8_bits_have_a_picture_that_mmcv_reads_too(mode: str, tmp_path: Path) -> None:
    path = tmp_path / f'a.{"tif" if mode == "CMYK" else "png"}'
    Image.fromarray(pixels(channels=3, dtype='uint8')).convert(mode).save(path)
    bands = {'1': 1, 'L': 1, 'LA': 2, 'RGBA': 4}.get(mode, 3)  # palettes and inks become colours
    with path.open('rb') as file:
        assert read_header(file, path).pixels == (bands, 'uint8', True)
    assert read_bands(path).shape == (*pixels().shape[:2], bands)
    np.testing.assert_array_equal(read_view(path), read_image(path))


@pytest.mark.parametrize('name, is_plain', [('unassalpha', True), ('unspecified', False)])
def test_a_fourth_channel_is_loaded_unless_the_file_calls_it_alpha(name: str, is_plain: bool) -> None:
    expected = pixels(dtype='uint8')
    assert check(tiff(expected, photometric='rgb', extrasamples=[name]), expected).is_plain == is_plain


@pytest.mark.parametrize('dtype', ['int16', 'uint16', 'float32'])
def test_declared_nodata_has_no_value(dtype: str) -> None:
    values = pixels().clip(0, 9000).astype(dtype)
    values[:2, :, 1] = 9999
    read = decode_bands(tiff(values, photometric='minisblack', planarconfig='contig', extratags=[
        (42113, 's', 0, '9999', True)]), 'a.tif')
    np.testing.assert_array_equal(np.isnan(read), values == 9999)
    np.testing.assert_array_equal(read[2:], values[2:])


def test_a_picture_has_three_channels_from_their_2nd_to_98th_percentile() -> None:
    values = np.linspace(100, 1100, 101 * 101, dtype=np.float32).reshape(101, 101, 1) * np.float32([1, 10, -1, 7])
    shown = to_view(values)
    assert shown.shape == (101, 101, 3) and shown.dtype == np.uint8
    assert abs(shown[..., 1].astype(int) - shown[..., 0]).max() <= 1  # rounded
    assert abs(shown[..., 2].astype(int) - (255 - shown[..., 0])).max() <= 1
    assert shown[1, :, 0].max() == 0 and shown[99, 1:, 0].min() == 255 and abs(shown[50, 50, 0] - 127.5) < 1
    values[50] = np.nan
    assert not to_view(values)[50].any() and to_view(values)[99, 1:, 0].min() == 255
    assert not to_view(np.full((2, 2, 1), np.nan)).any() and not to_view(np.full((2, 2, 5), 7.)).any()
    same = pixels(dtype='uint8')
    np.testing.assert_array_equal(to_view(same), same[..., :3])
    np.testing.assert_array_equal(to_view(same[..., :2]), same[..., [0, 0, 0]])


@pytest.mark.filterwarnings('ignore:.*are stored as RGB:DeprecationWarning')
def test_what_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, plain = tiff(pixels(), photometric='minisblack', planarconfig='contig'), io.BytesIO()
    Image.fromarray(pixels(channels=3, dtype='uint8')).save(plain, 'tiff')
    # Tag 259, the compression, which is a short number: from 1, none, to 5, LZW.
    lzw = whole.replace(bytes([3, 1, 3, 0, 1, 0, 0, 0, 1, 0]), bytes([3, 1, 3, 0, 1, 0, 0, 0, 5, 0]))
    for missing, content, words in (
            ('', whole[:-50], 'image a.tif cannot be read: it is damaged'),
            ('', b'no image', 'image a.tif cannot be read: it is damaged or not an image'),
            ('', tiff(np.zeros((2, 3, 4, 5), np.uint16)), 'image a.tif has the axes'),
            ('imagecodecs', lzw, 'pip install imagecodecs, or save it without compression'),
            ('tifffile', whole, 'pip install tifffile, or convert it')):
        if missing:
            monkeypatch.setitem(sys.modules, missing, None)
        assert words in refusal(decode_bands, content, 'a.tif')
    assert check(plain.getvalue(), pixels(channels=3, dtype='uint8')).is_plain  # without tifffile
