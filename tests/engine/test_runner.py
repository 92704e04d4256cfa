"""The runner: what it checks of data, and what it leaves as mmengine has it."""
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from mmengine.registry import init_default_scope
from mmseg.datasets import BaseSegDataset
from PIL import Image
from torch import nn

from cpvt_mm.datasets.checking.pipeline import CheckedPipeline
from cpvt_mm.engine.runner import Runner
from cpvt_mm.errors import UserError


class Videos(BaseDataset):
    """Samples are dicts of lists, as mmdet's of videos."""

    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(img_path=['a.jpg', 'b.jpg'], instances=[[], []], height=[2, 2], width=[3, 3])] * 2


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Runner]:
    """A runner of the parts that its methods read."""
    init_default_scope('mmseg')

    def run(model: nn.Module | None = None, **cfg: Any) -> Runner:
        runner = object.__new__(Runner)
        runner.model, runner.cfg = model or nn.Identity(), Config(cfg)
        return runner

    return run


def loader(dataset: dict[str, Any]) -> dict[str, Any]:
    return dict(dataset=dataset, batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
                collate_fn=dict(type='pseudo_collate'))


def labelled(folder: Path, value: int, **more: Any) -> dict[str, Any]:
    """A loader of one image whose label map has a value."""
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(folder / 'a.jpg')
    Image.fromarray(np.full((20, 30), value, np.uint8)).save(folder / 'a.png')
    return loader(dict(type=BaseSegDataset, data_root=str(folder), metainfo=dict(classes=('a', 'b')), pipeline=[
        dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')], **more))


def test_videos_pass(build: Callable) -> None:
    batches = list(build().build_dataloader(loader(dict(type=Videos, pipeline=[
        lambda data: dict(data, ori_shape=[(2, 3), (2, 3)])]))))
    assert len(batches) == 2 and 'ori_shape' in batches[0]


def test_only_mmengines_own_pipeline_is_replaced(build: Callable) -> None:

    class Own(Compose):
        pass

    class Other(Videos):

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.pipeline = Own([])

    assert type(build().build_dataloader(loader(dict(type=Videos))).dataset.pipeline) is CheckedPipeline
    assert type(build().build_dataloader(loader(dict(type=Other))).dataset.pipeline) is Own


def test_labels_that_are_no_class_are_named(build: Callable, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'a\.png has class 254, but there are 2 classes'):
        list(build().build_dataloader(labelled(tmp_path, 254)))


class Head(nn.Module):

    def __init__(self, **settings: int) -> None:
        super().__init__()
        vars(self).update(settings)


@pytest.mark.parametrize('value, cfg, head, more', [
    (255, {}, {}, dict(ignore_index=254)),
    (254, {}, {}, dict(ignore_index=254)),
    (254, {}, dict(ignore_index=254), {}),
    (254, dict(val_evaluator=[dict(type='IoUMetric', ignore_index=254)]), {}, {}),
    (4, {}, dict(num_classes=5), {}),
    (254, {}, {}, dict(metainfo={})),  # classes are not known
])
def test_labels_that_cannot_be_told_wrong_pass(build: Callable, tmp_path: Path, value: int, cfg: dict, head: dict,
                                               more: dict) -> None:
    data = labelled(tmp_path, value)
    data['dataset'].update(more)
    batch, = build(nn.ModuleDict(dict(decode_head=Head(**head))), **cfg).build_dataloader(data)
    assert torch.as_tensor(batch['gt_seg_map'][0]).eq(value).all()


@pytest.mark.parametrize('more', [{}, dict(ann_file=None)])
def test_a_metric_without_a_file_fails_for_its_own_reason(build: Callable, more: dict) -> None:
    with pytest.raises(KeyError, match='metric should be one of'):
        build().build_evaluator(dict(type='mmdet.CocoMetric', metric='bbx', **more))
