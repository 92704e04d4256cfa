from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config, ConfigDict

from cpvt_lab.sweep import (
    Mode,
    Size,
    Sweep,
    Windows,
    get_test_size,
    parse_size,
    plot,
    resolve_mode,
    set_mode,
    set_test_size,
    sha256,
    to_markdown,
)
from cpvt_mm.engine import load_config
from cpvt_mm.errors import MissingFile, UserError
from tests.conftest import MASK_RCNN, ROOT, UPERNET


def test_a_line_of_the_table_is_a_curve_and_fractions_have_three_digits() -> None:
    assert to_markdown({'AP': {'96': 0.25}, 'AR': {'64x32': 0.5, '96': 1.}}).splitlines() == [
        '| metric | 64x32 px | 96 px |', '|---|---|---|', '| AP |  | 0.250 |', '| AR | 0.500 | 1.000 |']
    assert to_markdown({'mIoU': {'96': 25.}}).endswith('| mIoU | 25.0 |\n')


def test_workers_end_with_each_test(tmp_path: Path) -> None:
    assert Sweep(UPERNET, 'x.pth', tmp_path).load().test_dataloader.persistent_workers is False


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


@pytest.mark.parametrize('scale, size', [((1333, 800), Size(1333, 800)), (160, Size(160, 160))])
def test_the_size_of_a_config_is_the_scale_of_its_resize(scale: object, size: Size) -> None:
    cfg = load_config(MASK_RCNN)
    cfg.test_dataloader.dataset.pipeline[1].scale = scale
    assert get_test_size(cfg) == size


def test_a_config_that_keeps_the_sizes_of_images_has_512_pixels() -> None:
    cfg = load_config(ROOT / 'configs/nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py')
    assert 'scale' not in cfg.test_dataloader.dataset.pipeline[1]
    assert get_test_size(cfg) == Size(512, 512)


@pytest.fixture
def segmentor() -> Callable[..., Config]:

    def load(**test_cfg: object) -> Config:
        cfg = load_config(UPERNET)
        cfg.model.test_cfg = test_cfg
        return cfg

    return load


SLIDE = dict(mode='slide', crop_size=(32, 64), stride=(16, 64))


@pytest.mark.parametrize('test_cfg, arguments, mode', [
    (dict(mode='whole'), (), 'whole'),
    (dict(), (), 'whole'),
    (SLIDE, (), Windows((32, 64), (16, 64))),
    (SLIDE, ('slide', None, [8, 8]), Windows((32, 64), (8, 8))),
    (SLIDE, ('whole',), 'whole'),
    (dict(mode='whole'), ('slide', [32, 32], [32, 32]), Windows((32, 32), (32, 32))),
])
def test_a_mode_is_the_configs_but_for_what_is_given(segmentor: Callable[..., Config], test_cfg: dict,
                                                     arguments: tuple, mode: Mode) -> None:
    assert resolve_mode(segmentor(**test_cfg), *arguments) == mode


@pytest.mark.parametrize('crop_size, stride, message', [
    (None, [8, 8], 'has no crop_size'),
    ([8, 8], None, 'has no stride'),
    ([8, 8], [8, 9], '--stride is 8 9, but must be from 1 to --crop-size'),
    ([8, 8], [0, 8], '--stride is 0 8, but must be from 1 to --crop-size'),
])
def test_windows_that_miss_something_are_refused(segmentor: Callable[..., Config], crop_size: list | None,
                                                 stride: list | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_mode(segmentor(mode='whole'), 'slide', crop_size, stride)


def test_a_mode_is_set_beside_what_else_there_is(segmentor: Callable[..., Config]) -> None:
    cfg = segmentor(mode='whole', other=1)
    set_mode(cfg, Windows((32, 64), (16, 64)))
    assert cfg.model.test_cfg == dict(SLIDE, other=1)
    set_mode(cfg, 'whole')
    assert resolve_mode(cfg) == 'whole'


def test_a_rectangle_stands_where_a_square_of_its_area_does() -> None:
    axes, = plot({'AP': {'100': 1., '400x100': 3., '300': 2.}, 'AR': {'100': 4.}}, 'value', 'a title').axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ['AP', 'AR'] and axes.get_ylabel() == 'value'
    assert list(axes.lines[0].get_xdata()) == [100, 200, 300]
    assert list(axes.lines[0].get_ydata()) == [1, 3, 2] and list(axes.lines[1].get_ydata()) == [4]
    assert [label.get_text() for label in axes.get_xticklabels()] == ['100', '400x100', '300']


def test_a_digest_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / 'a.pth').write_bytes(b'abc')
    assert sha256(tmp_path / 'a.pth').startswith('ba7816bf')
    with pytest.raises(MissingFile, match=r'b\.pth does not exist: check the path'):
        sha256(tmp_path / 'b.pth')
    with pytest.raises(UserError, match=r'cannot be read \(Is a directory\)'):
        sha256(tmp_path)
