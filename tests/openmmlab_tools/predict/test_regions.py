"""Regions of TIFF files have the pixels that Pillow reads."""
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from openmmlab_tools.predict.regions import Regions, open_regions

tifffile = pytest.importorskip('tifffile')
FORMS: dict[str, dict[str, Any]] = {
    'strips': {}, 'strips of some rows': dict(rowsperstrip=7), 'tiles': dict(tile=(16, 32)),
    'compressed strips': dict(compression='zlib', rowsperstrip=5),
    'compressed tiles': dict(compression='zlib', tile=(32, 16)),
    'BigTIFF': dict(bigtiff=True, tile=(16, 16))}


def written(path: Path, shape: tuple[int, ...], **options: Any) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    tifffile.imwrite(path, pixels, photometric='minisblack' if len(shape) == 2 else 'rgb', **options)
    return np.asarray(Image.open(path).convert('RGB'))


@pytest.fixture(scope='module')
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    folder = tmp_path_factory.mktemp('regions')
    shapes = {f'{form} {len(shape)}': (shape, options) for form, options in FORMS.items()
              for shape in ((50, 70, 3), (45, 33))}
    return {name: (path := folder / f'{name}.tif', written(path, shape, **options))
            for name, (shape, options) in shapes.items()}


@given(data=st.data())
def test_a_region_has_the_pixels_of_the_image(files: dict[str, tuple[Path, np.ndarray]], data: st.DataObject) -> None:
    path, pixels = files[data.draw(st.sampled_from(sorted(files)))]
    regions = open_regions(path)
    assert regions and regions.size == pixels.shape[:2]
    for _ in range(3):
        rows, columns = (slice(*sorted(data.draw(st.tuples(st.integers(0, length), st.integers(0, length)))))
                         for length in regions.size)
        assert np.array_equal(regions[rows, columns], pixels[rows, columns])


@pytest.mark.parametrize('shape', [(1, 1, 3), (1, 300), (300, 1, 3)])
@pytest.mark.parametrize('form', FORMS)
def test_the_smallest_images_are_read(form: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    pixels = written(tmp_path / 'a.tif', shape, **FORMS[form])
    regions = open_regions(tmp_path / 'a.tif')
    assert regions and np.array_equal(regions[:, :], pixels)


def test_a_large_strip_is_read_in_part_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('openmmlab_tools.predict.regions.KEPT', 3 * 49 * 70)
    monkeypatch.setattr(Regions, '_read', lambda regions, index: pytest.fail('reads the whole strip'))
    pixels = written(tmp_path / 'plain.tif', (50, 70, 3))
    regions = open_regions(tmp_path / 'plain.tif')
    assert regions and np.array_equal(regions[3:20, 10:70], pixels[3:20, 10:70])
    written(tmp_path / 'packed.tif', (50, 70, 3), compression='zlib', rowsperstrip=50)
    assert open_regions(tmp_path / 'packed.tif') is None


def test_files_that_must_be_read_as_a_whole_are_left_to_others(tmp_path: Path) -> None:
    path, generator = tmp_path / 'a.tif', np.random.default_rng(0)
    rgb = generator.integers(0, 256, (20, 30, 3), np.uint8)
    for pixels, options in (
            (rgb.astype(np.uint16), dict(photometric='rgb')), (np.stack([rgb, rgb]), dict(photometric='rgb')),
            (rgb.transpose(2, 0, 1), dict(photometric='rgb', planarconfig='separate')),
            (np.dstack([rgb, rgb[..., :1]]), dict(photometric='rgb', extrasamples=['unassalpha'])),
            (rgb[..., 0], dict(photometric='miniswhite')),
            (rgb, dict(photometric='rgb', extratags=[(274, 3, 1, 6, False)]))):
        tifffile.imwrite(path, pixels, **options)
        assert open_regions(path) is None
    Image.fromarray(rgb).save(tmp_path / 'a.png')
    path.write_bytes(path.read_bytes()[:90])
    (tmp_path / 'b.tif').write_bytes(b'no image')
    assert not any(map(open_regions, (tmp_path / 'a.png', path, tmp_path / 'b.tif', tmp_path / 'no.tif', rgb)))
