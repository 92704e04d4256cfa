from typing import ClassVar

import pytest
from mmdet.datasets import CocoDataset, CocoPanopticDataset, LVISV1Dataset
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset
from mmengine.registry import init_default_scope
from mmseg.datasets import ADE20KDataset

from cpvt_mm.data.datasets import build_unread, classes_of, layout_of, loads_masks, unwrap, unwrap_built


class Own(CocoDataset):
    METAINFO: ClassVar = dict(classes=('a', 'b'))


class OwnReader(CocoDataset):

    def parse_data_info(self, raw_data_info: dict) -> dict:
        return raw_data_info


@pytest.mark.parametrize('cls, layout', [
    (CocoDataset, 'coco'), (Own, 'coco'), (ADE20KDataset, 'label maps'),
    # They read files of their own.
    (OwnReader, 'images'), (LVISV1Dataset, 'images'), (CocoPanopticDataset, 'images'), (BaseDataset, 'images'),
])
def test_the_layout_is_that_of_the_reader(cls: type, layout: str) -> None:
    assert layout_of(cls) == layout


def test_wrapped_datasets_are_found() -> None:
    one, other = dict(type='A'), dict(type='B')
    assert list(unwrap(one, 'a')) == [('a', one)]
    assert list(unwrap(dict(type='RepeatDataset', times=2, dataset=one), 'a')) == [('a.dataset', one)]
    assert list(unwrap(dict(type='ConcatDataset', datasets=[
        one, dict(type='ClassBalancedDataset', oversample_thr=1e-3, dataset=other)]), 'a')) == [
            ('a.datasets.0', one), ('a.datasets.1.dataset', other)]


def test_wrapped_datasets_are_found_when_built() -> None:
    one, other = BaseDataset(lazy_init=True), BaseDataset(lazy_init=True)
    assert list(unwrap_built(ConcatDataset([one, other], lazy_init=True))) == [one, other]
    assert list(unwrap_built(RepeatDataset(one, times=2, lazy_init=True))) == [one]
    assert list(unwrap_built(one)) == [one]


@pytest.mark.parametrize('own', [dict(datasets=['a', 'b']), dict(datasets=None), dict(datasets='ab'),
                                 dict(dataset='a'), dict(dataset=dict(a=1)), dict(datasets=dict(a=1))])
def test_arguments_of_a_datasets_own_wrap_nothing(own: dict) -> None:
    cfg = dict(type='A', **own)
    assert list(unwrap(cfg, 'a')) == [('a', cfg)]
    dataset = BaseDataset(lazy_init=True)
    vars(dataset).update(own)
    assert list(unwrap_built(dataset)) == [dataset]


@pytest.mark.parametrize('metainfo, classes', [({}, []), (dict(classes=None), []), (dict(classes='cat'), ['cat']),
                                               (dict(classes=('cat', 'dog')), ['cat', 'dog'])])
def test_classes_may_be_none_or_one(metainfo: dict, classes: list[str]) -> None:
    assert classes_of(BaseDataset(metainfo=metainfo, lazy_init=True)) == classes


def test_pipelines_that_load_masks_are_known() -> None:
    pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_mask=True)]
    assert loads_masks(dict(pipeline=pipeline))
    for other in (dict(pipeline=[dict(pipeline[1], with_mask=False)]), dict(pipeline=[len]), {}):
        assert not loads_masks(other)


def test_a_dataset_is_built_without_its_files() -> None:
    init_default_scope('mmdet')
    dataset = build_unread(dict(type='CocoDataset', data_root='nowhere', ann_file='a.json', data_prefix=dict(img='b/'),
                                pipeline=[dict(type='NoTransform')]))
    assert (dataset.ann_file, dataset.data_prefix) == ('nowhere/a.json', dict(img='nowhere/b/'))
