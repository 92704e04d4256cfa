import errno
import os
import re
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from cpvt_mm.analysis.inputs import list_images, read_image, read_square, smooth_noise, to_input
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from tests.conftest import UPERNET


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    path = tmp_path / 'photograph.png'
    mmcv.imwrite(np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8), str(path))
    return path


@pytest.mark.parametrize('is_rgb', [True, False])
def test_input_is_what_the_library_makes_of_the_image(is_rgb: bool, photograph: Path) -> None:
    cfg = load_config(UPERNET)
    cfg.model.data_preprocessor.update(bgr_to_rgb=is_rgb, size_divisor=None, size=(20, 30))
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        preprocessor = MODELS.build(cfg.model.data_preprocessor)
    loaded = torch.from_numpy(mmcv.imread(photograph)).permute(2, 0, 1)
    expected = preprocessor(dict(inputs=[loaded]))['inputs']
    torch.testing.assert_close(to_input(read_image(photograph), cfg), expected)


def test_mmpretrain_keeps_its_preprocessor_beside_the_model(photograph: Path) -> None:
    values = dict(mean=[100, 110, 120], std=[50, 60, 70])
    inside, outside = dict(data_preprocessor=dict(values, bgr_to_rgb=True)), dict(values, to_rgb=True)
    image = read_image(photograph)
    assert torch.equal(to_input(image, Config(dict(model=inside))),
                       to_input(image, Config(dict(model={}, data_preprocessor=outside))))


def test_images_are_resized_where_asked(photograph: Path) -> None:
    assert read_image(photograph).shape == (20, 30, 3)
    assert read_image(photograph, (8, 12)).shape == (8, 12, 3)
    assert np.array_equal(read_square(photograph, 20), read_image(photograph)[:, 5:25])


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / 'text.jpg').write_text('text')
    (tmp_path / 'empty.jpg').touch()
    damaged = 'it is damaged or not an image'
    for name, reason in (('text.jpg', damaged), ('empty.jpg', damaged), ('no.jpg', os.strerror(errno.ENOENT)),
                         ('.', os.strerror(errno.EISDIR))):
        with pytest.raises(UserError, match=f'image {re.escape(str(tmp_path / name))} cannot be read.*{reason}'):
            read_image(tmp_path / name)


def test_a_folder_gives_its_images_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'has no image \(\.jpg, \.jpeg, \.png'):
        list_images(tmp_path)
    for name in ('b.jpg', 'a.PNG', 'c.txt', 'd.TIF', 'e.tiff'):
        (tmp_path / name).touch()
    assert [path.name for path in list_images(tmp_path)] == ['a.PNG', 'b.jpg', 'd.TIF', 'e.tiff']
    with pytest.raises(UserError, match=r'folder .* does not exist'):
        list_images(tmp_path / 'no')


def test_noise_is_of_unit_variance_and_the_same_for_a_seed() -> None:
    noise = smooth_noise(64, seed=1)
    assert noise.shape == (1, 3, 64, 64)
    assert noise.mean().abs() < 1e-5 and (noise.std() - 1).abs() < 1e-5
    assert torch.equal(noise, smooth_noise(64, seed=1)) and not torch.equal(noise, smooth_noise(64, seed=2))
    assert noise.diff(dim=3).std() < 0.5  # neighbours are alike
