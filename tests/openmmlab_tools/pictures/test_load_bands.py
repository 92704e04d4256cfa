"""The loader of images of any channels, their moments, and what check_dataset.py says of them."""
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from mmengine.registry import TRANSFORMS

from openmmlab_tools.data.datasets import SampleFiles
from openmmlab_tools.data.findings import Kind
from openmmlab_tools.own_data.channels import joined, moments_of
from openmmlab_tools.own_data.file_checks import check_sample
from tests.helpers import refusal


def load(path: Path, **settings: Any) -> np.ndarray:
    return TRANSFORMS.build(dict(type='openmmlab_tools.LoadBandsFromFile', **settings))(dict(img_path=str(path)))['img']


def write(path: Path, values: np.ndarray) -> Path:
    tifffile.imwrite(path, values, photometric='minisblack', planarconfig='contig')
    return path


def test_values_are_those_of_the_file_and_damage_is_found(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (8, 6, 5), np.uint16)
    path = write(tmp_path / 'a.tif', values)
    np.testing.assert_array_equal(load(path, channels=5), values.astype(np.float32), strict=True)
    assert f'{path} has shape (8, 6, 5) (height, width, channels), but' in refusal(load, path, channels=4)
    assert 'fill has 2 values, but channels is 5' in refusal(load, path, channels=5, fill=[1, 2], error=ValueError)
    checked = check_sample(SampleFiles(str(path), size=(6, 8)), bands=dict(channels=4))
    assert [finding.kind for finding in checked.findings] == [Kind.CHANNELS, Kind.IMAGE_SIZE]
    assert checked.size == (8, 6) and checked.dtype == 'uint16'
    path.write_bytes(path.read_bytes()[:-9])
    finding, = check_sample(SampleFiles(str(path)), bands=dict(channels=5)).findings
    assert finding.kind is Kind.IMAGE and finding.detail.startswith('cannot be read: it is damaged')


@pytest.mark.parametrize('empty', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('fill, kind', [(None, Kind.NO_VALUE), ([5, 6, 7], Kind.FILLED)])
def test_pixels_without_a_value_are_refused_or_filled(empty: float, fill: list | None, kind: Kind, tmp_path: Path
                                                      ) -> None:
    values = np.ones((10, 10, 3), np.float32)
    values[0, 0, 1] = empty
    path = write(tmp_path / 'a.tif', values)
    finding, = check_sample(SampleFiles(str(path)), bands=dict(channels=3, fill=fill)).findings
    assert finding.kind is kind and finding.is_error == (fill is None)
    if fill is None:
        assert '(NaN, infinite or nodata) at 1 % of its pixels: set fill=' in refusal(load, path, channels=3)
    else:
        values[0, 0, 1] = 6
        np.testing.assert_array_equal(load(path, channels=3, fill=fill), values)


@given(st.integers(1, 5), st.integers(1, 4), st.floats(0, 1e5), st.booleans())
def test_moments_of_images_are_those_of_all_their_values(channels: int, number: int, offset: float, has_empty: bool
                                                         ) -> None:
    rng = np.random.default_rng(0)
    images = [(rng.normal(offset, 10, (4 + index, 3, channels))).astype(np.float32) for index in range(number)]
    if has_empty:
        images[0][0, 0] = np.nan
    actual = joined(map(moments_of, images))
    values = np.concatenate([image.reshape(-1, channels) for image in images]).astype(np.float64)
    for measured, expected in ((actual.mean, np.nanmean), (actual.std, np.nanstd), (actual.least, np.nanmin),
                               (actual.most, np.nanmax)):
        np.testing.assert_allclose(measured, expected(values, axis=0), rtol=1e-5)
    assert (actual.empty > 0) == has_empty


def test_a_channel_of_one_value_can_be_normalized() -> None:
    actual = moments_of(np.full((3, 3, 2), 0.1, np.float32))
    assert actual.std == [1, 1] and moments_of(np.full((3, 3, 1), np.nan)).mean == [0]
