import pytest
from mmengine.config import ConfigDict

from cpvt_mm.analysis.sizes import Size, parse_size, set_test_size
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
