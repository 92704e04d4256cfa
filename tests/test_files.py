import errno
import os
import re
from pathlib import Path
from pickle import PicklingError

import mmcv
import numpy as np
import pytest
import torch

from cpvt_mm.errors import UserError
from cpvt_mm.files import list_images, read_image, write_checkpoint
from cpvt_mm.weights.reading import read_checkpoint


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_checkpoints_are_written_whatever_the_memory_of_tensors(suffix: str, tmp_path: Path) -> None:
    weight = torch.randn(2, 3)
    content = dict(weight=weight, tied=weight, transposed=weight.T, part=weight[1:])
    path = tmp_path / f'a{suffix}'
    write_checkpoint(path, content)
    assert list(tmp_path.iterdir()) == [path]
    read = read_checkpoint(path)
    assert set(read) == set(content) and all(torch.equal(read[name], tensor) for name, tensor in content.items())


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / 'a.pth').write_text('before')
    with pytest.raises((AttributeError, PicklingError)):  # the second one since Python 3.14
        write_checkpoint(tmp_path / 'a.pth', dict(function=lambda: None))
    assert [path.name for path in tmp_path.iterdir()] == ['a.pth']
    assert (tmp_path / 'a.pth').read_text() == 'before'


def test_images_are_resized_where_asked(tmp_path: Path) -> None:
    image, path = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8), tmp_path / 'a.png'
    mmcv.imwrite(image, str(path))
    assert np.array_equal(read_image(path), image[..., ::-1])
    assert read_image(path, (8, 12)).shape == (8, 12, 3)


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
