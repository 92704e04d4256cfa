from typing import ClassVar

import pytest
from mmdet.datasets import CocoDataset, CocoPanopticDataset, LVISV1Dataset
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset
from mmengine.registry import init_default_scope
from mmseg.datasets import ADE20KDataset

from cpvt_mm.datasets.checking.layouts import build_unread, dataset_class, layout_of, unwrap, unwrap_built


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
    assert list(unwrap(one)) == [one]
    assert list(unwrap(dict(type='RepeatDataset', times=2, dataset=one))) == [one]
    assert list(unwrap(dict(type='ConcatDataset', datasets=[
        one, dict(type='ClassBalancedDataset', oversample_thr=1e-3, dataset=other)]))) == [one, other]


def test_wrapped_datasets_are_found_when_built() -> None:
    one, other = BaseDataset(lazy_init=True), BaseDataset(lazy_init=True)
    assert list(unwrap_built(ConcatDataset([one, other], lazy_init=True))) == [one, other]
    assert list(unwrap_built(RepeatDataset(one, times=2, lazy_init=True))) == [one]
    assert list(unwrap_built(one)) == [one]


def test_a_dataset_is_built_without_its_files() -> None:
    init_default_scope('mmdet')
    cfg = dict(type='CocoDataset', data_root='nowhere', ann_file='a.json', data_prefix=dict(img='b/'),
               pipeline=[dict(type='NoTransform')])
    assert dataset_class(cfg) is CocoDataset is dataset_class(dict(type=CocoDataset))
    dataset = build_unread(cfg)
    assert (dataset.ann_file, dataset.data_prefix) == ('nowhere/a.json', dict(img='nowhere/b/'))
    with pytest.raises(KeyError, match='NoDataset is in no registry'):
        dataset_class(dict(type='NoDataset'))
