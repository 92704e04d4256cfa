import numpy as np
import pytest
from mmdet.registry import TRANSFORMS
from mmengine.config import ConfigDict

from cpvt_mm.analysis.sizes import Size, parse_size, set_shorter_test_side, set_test_size, shorter_test_side
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from tests.conftest import MASK_RCNN


def test_sizes_are_read_and_written_width_first() -> None:
    assert parse_size('512') == Size(width=512, height=512) and str(Size(512, 512)) == '512'
    assert parse_size('1333x800') == Size(width=1333, height=800) and str(Size(1333, 800)) == '1333x800'


def test_every_resize_of_the_test_pipeline_gets_the_size() -> None:
    cfg = load_config(MASK_RCNN)
    cfg.test_dataloader.dataset.pipeline.append(ConfigDict(type='mmdet.Resize', scale=(7, 7)))
    set_test_size(cfg, Size(1333, 800))
    assert [transform.get('scale') for transform in cfg.test_dataloader.dataset.pipeline] == [
        None, (1333, 800), None, None, (1333, 800)]


@pytest.mark.parametrize('dataset', [dict(type='ConcatDataset', datasets=[]), dict(pipeline=[dict(type='Pad')])])
def test_a_pipeline_without_resize_is_refused(dataset: dict) -> None:
    cfg = load_config(MASK_RCNN)
    cfg.test_dataloader.dataset = ConfigDict(dataset)
    with pytest.raises(UserError, match='has no Resize'):
        set_test_size(cfg, Size(1, 1))


@pytest.mark.parametrize('scale, shorter, doubled', [
    ((1333, 800), 800, (2666, 1600)), ((512, 2048), 512, (1024, 4096)), (160, 160, (320, 320))])
def test_the_scale_of_the_config_grows_with_its_shorter_side(scale: object, shorter: int, doubled: tuple) -> None:
    cfg = load_config(MASK_RCNN)
    resize = cfg.test_dataloader.dataset.pipeline[1]
    resize.scale = scale
    assert shorter_test_side(cfg) == shorter
    set_shorter_test_side(cfg, 2 * shorter)
    assert resize.scale == doubled


def test_a_config_that_keeps_the_sizes_of_images_starts_at_512_pixels() -> None:
    cfg = load_config('configs/nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py')
    resize = cfg.test_dataloader.dataset.pipeline[1]
    assert 'scale' not in resize
    assert shorter_test_side(cfg) == 512
    set_shorter_test_side(cfg, 256)
    assert TRANSFORMS.build(resize)(dict(img=np.zeros((40, 60, 3))))['img'].shape == (171, 256, 3)
