"""A config of each family trains a step at odd sizes, and predicts; each encoding learns."""
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.runner import Runner
from torch import Tensor

from lab.commands.toy_quarters import write_toy_quarters
from openmmlab_tools.engine import load_config, train

from .test_configs import ARCH_IN_NAME, ARCHS, BASELINES, CONFIGS, EXAMPLES


def smallest_of_each_family() -> list[Path]:
    """Returns a config for each head, data set, schedule and kind of backbone: a pyramid, or a plain transformer."""
    actual: dict[str, tuple[int, Path]] = {}
    for path in (path for path in CONFIGS if path not in EXAMPLES + BASELINES):
        match = ARCH_IN_NAME.search(path.stem)
        sized = list(ARCHS).index(match[1]) if match and match[1] else len(ARCHS), path
        family = re.sub('(pyramid-cpvt|pvtv2)-[a-z0-9]+(-conv|-pretrained)?', 'pyramid', path.stem)
        family = re.sub(r'(cpvt|dinov\d|lingbot)(-[a-z]+)?_', 'plain_', family)
        family = re.sub(r'-\d+x\d+$|_layer-decay', '', family)  # cut down, or tested elsewhere
        actual[family] = min(actual.get(family, sized), sized)
    return sorted(path for _, path in actual.values())


def shrink_images(node: Any) -> None:
    """Sets the sizes in pipelines to odd ones under 100 px."""
    if isinstance(node, list):
        for item in node:
            shrink_images(item)
    elif isinstance(node, dict):
        small = {'Resize': dict(scale=(97, 65)), 'RandomResize': dict(scale=(97, 65)),
                 'RandomChoiceResize': dict(scales=[(97, 65)]), 'RandomCrop': dict(crop_size=(61, 63))}
        node.update(small.get(node.get('type'), {}))
        for value in node.values():
            shrink_images(value)


def cut_down(cfg: Config, data: Path) -> None:
    """Leaves one iteration on two images and one prediction, at odd sizes, with few proposals; no other change."""
    toy = 'toy' in cfg.filename
    own = next((name for name in ('nuclei', 'boxes') if name in cfg.filename), 'coco')
    annotations = 'instances' if toy else own
    for loader, images in ((cfg.train_dataloader, 2), (cfg.val_dataloader, 1)):
        loader.update(batch_size=images, num_workers=0, persistent_workers=False)
        loader.dataset.update(data_root=f'{data / "quarters" if "quarters" in cfg.filename else data}/', indices=images)
        shrink_images(loader.dataset.pipeline)
        split = 'training' if images == 2 else 'validation'
        loader.dataset.update(
            dict(ann_file=f'{annotations}_{split}.json', data_prefix=dict(img=f'images/{split}/'))
            if cfg.default_scope == 'mmdet' else
            dict(data_prefix=dict(img_path=f'images/{split}', seg_map_path=f'annotations/{split}')))
    cfg.test_dataloader = cfg.val_dataloader
    if cfg.default_scope == 'mmdet':
        cfg.val_evaluator.ann_file = f'{data}/{cfg.val_dataloader.dataset.ann_file}'
        cfg.test_evaluator = cfg.val_evaluator
        divisor = 32 if 'batch' in cfg.default_hooks else 1
        cfg.model.data_preprocessor.update(pad_size_divisor=divisor, batch_augments=None)
        cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg).score_thr = 0  # so that something is predicted
        if cfg.model.type in ('FasterRCNN', 'MaskRCNN'):
            for rpn in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
                rpn.update(nms_pre=20, max_per_img=20)
            cfg.model.train_cfg.rcnn.sampler.num = 16
        if cfg.model.type == 'DINO':  # images have 168 locations
            cfg.model.num_queries = cfg.model.test_cfg.max_per_img = 100
    else:
        cfg.model.data_preprocessor.pop('size_divisor', None)
        cfg.model.data_preprocessor.size = (65, 97) if toy else (64, 96) if 'batch' in cfg.default_hooks else (61, 63)
    by_epoch = 'max_epochs' in cfg.train_cfg
    cfg.train_cfg.update(dict(max_epochs=1) if by_epoch else dict(max_iters=1, val_interval=1))
    cfg.default_hooks.logger.interval = 1
    cfg.default_hooks.checkpoint = None  # up to a gigabyte
    cfg.optim_wrapper.type = 'OptimWrapper'  # mixed precision needs a GPU
    cfg.log_level = 'WARNING'


def assert_losses_are_finite() -> None:
    scalars = MessageHub.get_current_instance().log_scalars
    losses = {name: buffer.current() for name, buffer in scalars.items() if 'loss' in name}
    assert 'train/loss' in losses and all(map(math.isfinite, losses.values())), losses


@pytest.fixture(scope='session')
def data(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the toy data, also with the categories of COCO, whose first stand for the shapes, with one class, and
    with the quarters of images as classes.
    """
    from mmdet.datasets import CocoDataset
    root = shutil.copytree(toy_shapes, tmp_path_factory.mktemp('data') / 'toy_shapes')
    list(write_toy_quarters(root / 'quarters', num_train=2, num_val=1))
    categories = [dict(id=i, name=name) for i, name in enumerate(CocoDataset.METAINFO['classes'], start=1)]
    for split in ('training', 'validation'):
        coco = json.loads((root / f'instances_{split}.json').read_text())
        (root / f'coco_{split}.json').write_text(json.dumps(dict(coco, categories=categories)))
        for name, category in (('nuclei', 'nucleus'), ('boxes', 'object')):
            (root / f'{name}_{split}.json').write_text(json.dumps(dict(
                coco, categories=[dict(id=1, name=category)],
                annotations=[dict(annotation, category_id=1) for annotation in coco['annotations']])))
    return root


class Watch(Hook):
    """Keeps the backbone's weights from before training, which of them change, and what the optimizer leaves alone."""

    def before_train(self, runner: Runner) -> None:
        self.weights = {name: tensor.clone() for name, tensor in runner.model.backbone.state_dict().items()}

    def after_train(self, runner: Runner) -> None:
        after, learned = runner.model.backbone.state_dict(), runner.optim_wrapper.optimizer.state
        self.changed = {name for name, tensor in self.weights.items() if not torch.equal(tensor, after[name])}
        self.unused = [name for name, parameter in runner.model.named_parameters()
                       if parameter.requires_grad and parameter not in learned]


@pytest.mark.slow
@pytest.mark.parametrize('path', smallest_of_each_family(), ids=lambda path: path.stem)
def test_trains_a_step_and_predicts_at_odd_sizes(path: Path, data: Path, tmp_path: Path,
                                                 fake_released: Callable[[str], dict[str, Tensor]]) -> None:
    cfg = load_config(path, work_dir=str(tmp_path))
    cut_down(cfg, data)
    init_cfg = cfg.model.backbone.get('init_cfg')
    weights = fake_released(init_cfg.checkpoint) if init_cfg and 'checkpoint' in init_cfg else {}
    watch = Watch()
    train(cfg, hooks=[watch])
    assert watch.unused == []  # several processes need no find_unused_parameters
    for name in weights.keys() & watch.weights.keys():
        assert torch.equal(weights[name], watch.weights[name]), name
    # DeiT has no PEG, and the queries and the decoder of a mask transformer are new.
    new = watch.weights.keys() - weights.keys()
    assert not weights or all(re.search('position_encoding|decoder', name) for name in new)
    assert any('decoder' not in name for name in watch.changed) != ('frozen' in path.stem)
    assert_losses_are_finite()
    metric = 'val/coco/bbox_mAP' if cfg.default_scope == 'mmdet' else 'val/mIoU'
    assert metric in MessageHub.get_current_instance().log_scalars
