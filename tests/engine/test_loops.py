"""What loops check of data and model, before training and while data is loaded."""
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import BaseDataset, Compose
from mmengine.model import BaseDataPreprocessor, ImgDataPreprocessor
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from cpvt_mm import PyramidCPVT
from cpvt_mm.data.checked_pipeline import CheckedPipeline
from cpvt_mm.engine.loops import check_normalization, check_while_loading
from cpvt_mm.errors import UserError


class Videos(BaseDataset):
    """Samples are dicts of lists, as mmdet's of videos."""

    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(img_path=['a.jpg', 'b.jpg'], instances=[[], []], height=[2, 2], width=[3, 3])] * 2


class Own(Compose):
    pass


@pytest.fixture(autouse=True)
def scope() -> None:
    init_default_scope('mmseg')


def checked(dataset: dict[str, Any], model: nn.Module | None = None, cfg: dict[str, Any] | None = None) -> DataLoader:
    """A loader whose datasets are checked while they load."""
    loader = Runner.build_dataloader(dict(
        dataset=dataset, batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='pseudo_collate')))
    check_while_loading(loader, model or nn.Identity(), cfg or {})
    return loader


def labelled(folder: Path, value: int, **more: Any) -> dict[str, Any]:
    """A dataset of one image whose label map has a value."""
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(folder / 'a.jpg')
    Image.fromarray(np.full((20, 30), value, np.uint8)).save(folder / 'a.png')
    return dict(type=BaseSegDataset, data_root=str(folder), **{'metainfo': dict(classes=('a', 'b')), **more}, pipeline=[
        dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')])


def test_videos_pass() -> None:
    batches = list(checked(dict(type=Videos, pipeline=[lambda data: dict(data, ori_shape=[(2, 3), (2, 3)])])))
    assert len(batches) == 2 and 'ori_shape' in batches[0]


def test_only_mmengines_own_pipeline_is_replaced() -> None:
    for kind, expected in ((Compose, CheckedPipeline), (Own, Own)):
        loader = DataLoader(Videos())
        loader.dataset.pipeline = kind([])
        check_while_loading(loader, nn.Identity(), {})
        assert type(loader.dataset.pipeline) is expected


def test_labels_that_are_no_class_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'a\.png has class 254, but there are 2 classes'):
        list(checked(labelled(tmp_path, 254)))


@pytest.mark.parametrize('value, cfg, head, more', [
    (255, {}, {}, dict(ignore_index=254)), (254, {}, {}, dict(ignore_index=254)), (254, {}, dict(ignore_index=254), {}),
    (254, dict(val_evaluator=[dict(type='IoUMetric', ignore_index=254)]), {}, {}),
    (4, {}, dict(num_classes=5), {}),
    (254, {}, {}, dict(metainfo={})),  # classes are not known
])
def test_labels_that_cannot_be_told_wrong_pass(tmp_path: Path, value: int, cfg: dict, head: dict, more: dict) -> None:
    decode_head = nn.Module()
    vars(decode_head).update(head)
    batch, = checked(labelled(tmp_path, value, **more), nn.ModuleDict(dict(decode_head=decode_head)), cfg)
    assert torch.as_tensor(batch['gt_seg_map'][0]).eq(value).all()


@pytest.mark.parametrize('in_channels, preprocessor, is_told', [
    (3, dict(mean=[1.] * 3, std=[2.] * 3), False), (1, dict(mean=[1.] * 3, std=[2.] * 3), True),
    (4, dict(mean=[1.] * 3, std=[2.] * 3), True), (1, dict(mean=[1.], std=[2.]), False),
    (4, dict(mean=[1.], std=[2.]), False),  # one for all
    (4, dict(), False), (4, None, False),
])
def test_a_mean_is_for_each_channel_or_for_all(in_channels: int, preprocessor: dict | None, is_told: bool) -> None:
    detector = nn.Module()
    detector.backbone = PyramidCPVT('nano', in_channels=in_channels, out_indices=(0,))
    detector.data_preprocessor = BaseDataPreprocessor() if preprocessor is None else ImgDataPreprocessor(**preprocessor)
    message = rf'mean has 3 values, but backbone.in_channels is {in_channels}: give'
    with pytest.raises(UserError, match=message) if is_told else nullcontext():
        check_normalization(nn.ModuleDict(dict(student=detector)))


def test_without_a_backbone_nothing_is_checked() -> None:
    check_normalization(nn.Linear(1, 1))
