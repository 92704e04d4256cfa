"""One sample before training: its image, and its pipeline."""
from pathlib import Path

import numpy as np
import pytest
from mmengine.dataset import BaseDataset
from PIL import Image

from cpvt_mm.data.checking.first_sample import load_first
from cpvt_mm.errors import UserError


class OneImage(BaseDataset):

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        super().__init__(**settings)

    def load_data_list(self) -> list[dict[str, str]]:
        return [dict(img_path=str(self.path))]


def test_an_image_of_16_bits_is_a_warning(tmp_path: Path, log: list) -> None:
    path = tmp_path / 'a.png'
    Image.fromarray(np.full((4, 5), 4080, np.uint16)).save(path)
    assert load_first(OneImage(path), 'train_dataloader.dataset')['img_path'] == str(path)
    (level, message), = [entry for entry in log if str(path) in entry[1]]
    assert level == 'WARNING' and '16 bits' in message


def fail(sample: dict) -> dict:
    raise RuntimeError('too wide\nby far')


def test_a_sample_that_does_not_pass_is_named(tmp_path: Path) -> None:
    path = tmp_path / 'a.png'
    Image.new('L', (4, 5)).save(path)
    with pytest.raises(UserError) as error:
        load_first(OneImage(path, pipeline=[fail]), 'val_dataloader.dataset')
    assert str(error.value) == (
        f'val_dataloader.dataset: the pipeline fails on sample {path} (RuntimeError: too wide): correct '
        'val_dataloader.dataset.pipeline of the config, or the annotation.')
