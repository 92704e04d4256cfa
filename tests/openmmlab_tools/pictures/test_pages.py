"""Files of several images: each of them is predicted, and none is learnt as if it were the whole."""
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from openmmlab_tools.data.findings import Finding, Kind
from openmmlab_tools.data.image_files import faults_of
from openmmlab_tools.pictures.bands import read_bands, read_header
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.predict.sources import images_of, pages_of
from openmmlab_tools.readers.form.label_map_files import open_label_map
from tests.helpers import refusal

GREYS = 51, 102, 204  # of the palette that Pillow takes
SEVERAL = 'has 3 images (pages or frames), but only the first is read: save each of them as a file of its own'


def pages(path: Path, as_rgb: bool = True) -> list[tuple[str, object]]:
    return [page for named in images_of(path) for page in pages_of(named, as_rgb)]


@pytest.mark.parametrize('name, mode, settings', [
    ('a.gif', 'P', {}), ('a.png', 'RGB', {}), ('a.webp', 'RGB', dict(lossless=True)), ('a.tif', 'RGB', {}),
    ('a.tif', 'L', {}), ('a.tif', '1', {}), ('a.tif', 'I;16', {}), ('a.tiff', 'RGBA', dict(compression='tiff_lzw'))])
def test_each_page_is_an_image_and_where_one_is_read_several_are_told(
        name: str, mode: str, settings: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / name
    first, *more = (Image.new('RGB', (40, 30), (grey,) * 3).convert(mode) for grey in GREYS)
    first.save(path, save_all=True, append_images=more, **settings)
    actual = pages(path)
    assert [page for page, _ in actual] == [f'{name}_00000{number}' for number in (1, 2, 3)]
    for (_, image), grey in zip(actual, GREYS, strict=True):
        assert image.shape == (30, 40, 3)
        if mode not in ('1', 'I;16'):  # black and white in turn, and too dark for eight bits
            assert (image == grey).all()
    assert pages(path, as_rgb=False) == [(name, path)]
    assert refusal(read_image, path) == f'image {path} {SEVERAL}.'
    assert faults_of(str(path), Kind.IMAGE) == [Finding(Kind.IMAGE, str(path), SEVERAL)]
    assert refusal(open_label_map, path) == f'label map {path} {SEVERAL}.'
    if mode in ('L', '1', 'I;16'):  # pages are channels, which mmcv's loader would not read
        assert read_bands(path).shape == (30, 40, 3) and not read_header(path).pixels.is_plain
    else:
        assert refusal(read_bands, path) == refusal(read_header, path) == f'image {path} {SEVERAL}.'


def test_what_is_one_image_stays_one(tmp_path: Path) -> None:
    """Smaller copies and masks of a TIFF, the preview in a phone's JPEG, channels, and files with one page."""
    first, second = (Image.new('RGB', size, 'red') for size in ((40, 30), (20, 15)))
    first.save(tmp_path / 'phone.jpg', format='MPO', save_all=True, append_images=[second.copy()])
    for name in ('one.gif', 'one.png', 'one.tif', 'one.webp', 'one.jpg'):
        first.save(tmp_path / name)
    for name, kind in (('copy.tif', 1), ('mask.tif', 4)):
        first.save(tmp_path / name, save_all=True, append_images=[second], tiffinfo={254: 0})
        with tifffile.TiffFile(tmp_path / name, mode='r+') as file:
            file.pages[1].tags[254].overwrite(kind)
    planes = np.full((3, 30, 40), 9, np.uint8)
    tifffile.imwrite(tmp_path / 'planes.tif', planes, photometric='rgb', planarconfig='separate')
    with tifffile.TiffWriter(tmp_path / 'pyramid.tif') as file:
        file.write(np.full((64, 64, 3), 9, np.uint8), photometric='rgb', subifds=1)
        file.write(np.full((32, 32, 3), 9, np.uint8), photometric='rgb', subfiletype=1)
    for path in tmp_path.iterdir():
        assert pages(path) == [(path.name, path)], path
        assert read_image(path).ndim == read_bands(path).ndim == 3 and read_header(path).pixels.is_plain
        assert faults_of(str(path), Kind.IMAGE) == []


def test_series_of_a_tiff_and_times_are_no_channels(tmp_path: Path) -> None:
    """Pages that were written one by one, of equal or other sizes, with copies beside them."""
    path, grey, small = tmp_path / 'a.tif', np.zeros((64, 64), np.uint16), np.zeros((32, 32), np.uint16)

    def write(*images: tuple[np.ndarray, int], **settings: object) -> None:
        with tifffile.TiffWriter(path) as file:
            for image, kind in images:
                file.write(image, subfiletype=kind, **settings)

    for images, settings in (([(grey, 0)] * 3, {}), (
            [(grey, 0), (small[:20], 0), (grey[:60], 0), (small, 1)], dict(metadata=None))):
        write(*images, **settings)
        assert refusal(read_bands, path) == refusal(read_header, path) == f'image {path} {SEVERAL}.'
    write((grey, 0), (small, 1), (small, 1), metadata=None)
    assert read_bands(path).shape == (64, 64, 1)
    tifffile.imwrite(path, np.zeros((4, 64, 64), np.uint16), ome=True, metadata=dict(axes='TYX'))
    assert 'has the axes TYX of lengths (4, 64, 64), but must' in refusal(read_bands, path)
