"""Every shipped config builds and has decay keys that match; one of each family trains a step and predicts."""
import copy
import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from mmseg.models.backbones import MixVisionTransformer
from torch import Tensor, nn

from cpvt_mm import engine
from cpvt_mm.engine import load_config, train
from cpvt_mm.engine.run import build_runner
from cpvt_mm.models.position_encodings import PositionEncodings
from cpvt_mm.weights.released import RELEASED, SCHEME
from tests.conftest import MASK2FORMER_VIS, MASK_RCNN, ROOT, UPERNET, build_model, groups_by_name, toy_overrides
from tests.encodings import ENCODINGS

# Those of mmpretrain have tests of their own.
CONFIGS = sorted(path for path in (ROOT / 'configs').glob('[!_]*/*.py') if 'in1k' not in path.stem)
EXAMPLES = [path for path in CONFIGS if path.parent.name == 'position_encodings']
TOYS = [path for path in CONFIGS if path.parent.name == 'toy']
REAL = [path for path in CONFIGS if path.parent.name in ('nuclei', 'camvid')]
BASELINES = [path for path in REAL if 'cpvt' not in path.stem]
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d, nn.SyncBatchNorm)
# How names tell the arch, from the smallest to the largest.
ARCHS = dict(nano='nano', ti='tiny', t='tiny', s='small', b='base', l='large')
ARCH_IN_NAME = re.compile(f'cpvt-({"|".join(ARCHS)})_')


def size(path: Path) -> int:
    """How large a config's arch is; -1 for those that do not tell."""
    match = ARCH_IN_NAME.search(path.stem)
    return list(ARCHS).index(match[1]) if match else -1


@cache
def read(path: Path) -> Config:
    """Reads a config for tests that do not change it."""
    return Config.fromfile(path)


def smallest_of_each_family() -> list[Path]:
    # That of videos has a test of its own; so has what differs with `layer-decay`.
    paths = sorted((path for path in CONFIGS if path not in (*EXAMPLES, MASK2FORMER_VIS)), key=size, reverse=True)
    return sorted({ARCH_IN_NAME.sub('cpvt_', path.stem).replace('_layer-decay', ''): path for path in paths}.values())


def test_each_has_the_arch_of_its_name_and_the_guard_against_losses_that_are_not_finite() -> None:
    for path in CONFIGS:
        match, cfg = ARCH_IN_NAME.search(path.stem), read(path)
        assert cfg.model.backbone.get('arch') == (ARCHS[match[1]] if match else None) or path in TOYS, path
        assert cfg.default_hooks.non_finite_loss == dict(type='cpvt_mm.NonFiniteLossHook'), path


@pytest.mark.parametrize('path', BASELINES, ids=lambda path: path.stem)
def test_a_baseline_has_another_backbone_and_no_other_difference(path: Path) -> None:
    head, _, *rest = path.stem.split('_')
    cfg, ours = copy.deepcopy(read(path)), copy.deepcopy(read(path.with_name(
        f'{"_".join([head, "pyramid-cpvt-nano", *rest])}.py')))
    assert ours.optim_wrapper.paramwise_cfg.custom_keys.pop('position_encoding') == dict(decay_mult=0.)
    for config in (cfg, ours):
        backbone = config.model.pop('backbone')
        assert not backbone.get('init_cfg') and not backbone.get('drop_path_rate')
        for part in ('neck', 'decode_head', 'auxiliary_head'):
            config.model.get(part, {}).pop('in_channels', None)
    assert cfg.to_dict() == ours.to_dict()


def nuclei_backbone(name: str) -> nn.Module:
    with DefaultScope.overwrite_default_scope('mmdet'):
        return MODELS.build(read(ROOT / 'configs/nuclei' / name).model.backbone)


@pytest.mark.parametrize('path', [path for path in REAL if 'nuclei' in path.stem], ids=lambda path: path.stem)
def test_maps_for_roi_align_are_contiguous(path: Path) -> None:
    """mmcv's RoIAlign reads every map as contiguous."""
    assert all(level.is_contiguous() for level in nuclei_backbone(path.name)(torch.rand(2, 3, 64, 96)))


def test_mit_b0_of_mmdet_is_that_of_mmseg() -> None:
    backbone = nuclei_backbone('mask-rcnn_mit-b0_fpn_nuclei.py').double().eval()
    original = MixVisionTransformer(embed_dims=32, num_layers=[2, 2, 2, 2], num_heads=[1, 2, 5, 8]).double().eval()
    original.load_state_dict(dict(zip(original.state_dict(), backbone.state_dict().values(), strict=True)))
    image = torch.rand(1, 3, 70, 100, dtype=torch.float64)
    for level, expected in zip(backbone(image), original(image), strict=True):
        torch.testing.assert_close(level, expected)


@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.stem)
def test_an_example_switches_the_encoding_and_no_other_key(path: Path) -> None:
    head, arch, encoding, *rest = path.stem.split('_')
    cfg = copy.deepcopy(read(path))
    base = copy.deepcopy(read(ROOT / 'configs/pyramid_cpvt' / f'{"_".join([head, arch, *rest])}.py'))
    assert 'position_encoding' not in base.model.backbone
    wanted = {'learnable': 'learnable-2d', 'sinusoidal': 'sinusoidal-2d'}.get(encoding, encoding)
    assert cfg.model.backbone.pop('position_encoding') == ENCODINGS[wanted]
    assert cfg.model.backbone.pop('init_cfg') is None and base.model.backbone.pop('init_cfg')
    build_model(load_config(path), 'meta')
    if 'learnable' in encoding and head == 'upernet':  # the table is for the crops
        assert cfg.model.backbone.pop('img_size') == cfg.crop_size[0] == 512
    assert cfg.to_dict() == base.to_dict()


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_those_of_coco_and_ade20k_start_from_released_weights_or_say_why_not(path: Path) -> None:
    backbone = read(path).model.backbone
    names = [name for name, released in RELEASED.items()
             if (f'cpvt_mm.{released.backbone}', released.arch) == (backbone.type, backbone.get('arch'))]
    is_benchmark = 'coco' in path.stem or 'ade20k' in path.stem
    if is_benchmark and names and path not in EXAMPLES:
        assert [backbone.init_cfg.checkpoint] == [SCHEME + name for name in names]
    else:
        assert backbone.get('init_cfg') is None
        assert not is_benchmark or '# From random weights: ' in path.read_text()


@pytest.mark.parametrize('pattern, lr, weight_decay, length, warm_up, batch, drop_path_rate', [
    ('pyramid_cpvt/mask-rcnn*_1x_*', 2e-4, 1e-4, 12, 500, 16, 0.2),
    ('pyramid_cpvt/retinanet*_1x_*', 1e-4, 1e-4, 12, 500, 16, 0.2),
    ('pyramid_cpvt/mask-rcnn*_amp-ms-crop-3x_*', 1e-4, 0.05, 36, 500, 16, 0.2),
    ('pyramid_cpvt/upernet*_8xb2-160k_*', 6e-5, 0.01, 160000, 1500, 16, 0.2),
    ('pyramid_cpvt/semantic-fpn*_8xb4-80k_*', 1e-4, 1e-4, 80000, None, 32, 0.2),
    ('cpvt/mask-rcnn*_1x_*', 1e-4, 0.1, 12, 500, 16, 0.1),
    ('cpvt/upernet*_8xb2-160k_*', 6e-5, 0.01, 160000, 1500, 16, 0.1),
])
def test_schedules_are_those_of_the_sources(pattern: str, lr: float, weight_decay: float, length: int,
                                            warm_up: int | None, batch: int, drop_path_rate: float) -> None:
    paths = list((ROOT / 'configs').glob(f'{pattern}.py'))
    assert len(paths) >= 3
    for path in paths:
        cfg = read(path)
        optimizer = cfg.optim_wrapper.optimizer
        assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', lr, weight_decay)
        assert cfg.train_cfg.get('max_epochs', cfg.train_cfg.get('max_iters')) == length
        assert [s.end for s in cfg.param_scheduler if s.type == 'LinearLR'] == ([warm_up] if warm_up else [])
        assert cfg.param_scheduler[-1].end == length
        assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size == batch
        assert cfg.model.backbone.drop_path_rate == drop_path_rate
        assert (cfg.optim_wrapper.type == 'AmpOptimWrapper') == ('amp' in path.stem)


def test_layers_of_a_vit_b_learn_at_vitdets_rates() -> None:
    cfg, base = (copy.deepcopy(read(ROOT / f'configs/cpvt/mask-rcnn_cpvt-b_sfp_{rest}_coco.py'))
                 for rest in ('layer-decay_1x', '1x'))
    assert cfg.optim_wrapper.pop('constructor') == 'cpvt_mm.LayerDecayOptimWrapperConstructor'
    assert cfg.optim_wrapper.paramwise_cfg.pop('layer_decay_rate') == 0.7
    assert cfg.to_dict() == base.to_dict()


@pytest.mark.parametrize('path', [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if '-b_' in path.stem or '-l_' in path.stem else [])
    for path in CONFIGS if path not in (*EXAMPLES, *BASELINES)])
def test_position_encodings_and_norms_have_no_weight_decay(path: Path, log: list[tuple[str, str]]) -> None:
    cfg = load_config(path)
    assert not [message for _, message in log if 'is not used' in message]  # each line is read
    cfg.optim_wrapper.type = 'OptimWrapper'
    model = build_model(cfg, 'meta')
    groups = groups_by_name(model, build_optim_wrapper(model, cfg.optim_wrapper))
    keys = list(cfg.optim_wrapper.paramwise_cfg.custom_keys)
    norms = [name for name, module in model.named_modules() if isinstance(module, NORMS)]
    assert keys == ['position_encoding', *([] if path in REAL else ['norm'])]
    for key in keys:
        assert any(key in name for name in groups)
    words = (*keys, 'cls_token', 'dist_token')
    for name, group in groups.items():
        exempt = any(word in name for word in words) or (path in REAL and name.rpartition('.')[0] in norms)
        assert group['weight_decay'] == (0 if exempt else cfg.optim_wrapper.optimizer.weight_decay), name
    assert all('norm' in name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))


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
    annotations = 'instances' if toy else 'nuclei' if 'nuclei' in cfg.filename else 'coco'
    for loader, images in ((cfg.train_dataloader, 2), (cfg.val_dataloader, 1)):
        loader.update(batch_size=images, num_workers=0, persistent_workers=False)
        loader.dataset.update(data_root=f'{data}/', indices=images)
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
        cfg.model.data_preprocessor.pad_size_divisor = 1
        cfg.model.test_cfg.get('rcnn', cfg.model.test_cfg).score_thr = 0  # so that something is predicted
        if cfg.model.type == 'MaskRCNN':
            few = dict(nms_pre=20, max_per_img=20)
            cfg.model.train_cfg.rpn_proposal.update(few)
            cfg.model.test_cfg.rpn.update(few)
            cfg.model.train_cfg.rcnn.sampler.num = 16
    else:
        cfg.model.data_preprocessor.pop('size_divisor', None)
        cfg.model.data_preprocessor.size = (65, 97) if toy else (61, 63)
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
def data(toy_shapes: Path) -> Path:
    """The toy data, also with the categories of COCO, whose first ones stand for the shapes, and as nuclei."""
    from mmdet.datasets import CocoDataset
    categories = [dict(id=i, name=name) for i, name in enumerate(CocoDataset.METAINFO['classes'], start=1)]
    for split in ('training', 'validation'):
        coco = json.loads((toy_shapes / f'instances_{split}.json').read_text())
        (toy_shapes / f'coco_{split}.json').write_text(json.dumps(dict(coco, categories=categories)))
        (toy_shapes / f'nuclei_{split}.json').write_text(json.dumps(dict(
            coco, categories=[dict(id=1, name='nucleus')],
            annotations=[dict(annotation, category_id=1) for annotation in coco['annotations']])))
    return toy_shapes


class Start(Hook):
    """Keeps the weights that training starts from, and the names of those that the optimizer leaves alone."""

    def before_train(self, runner: Runner) -> None:
        self.weights = {name: tensor.clone() for name, tensor in runner.model.backbone.state_dict().items()}

    def after_train(self, runner: Runner) -> None:
        learned = runner.optim_wrapper.optimizer.state
        self.unused = [name for name, parameter in runner.model.named_parameters()
                       if parameter.requires_grad and parameter not in learned]


@pytest.mark.slow
@pytest.mark.parametrize('path', smallest_of_each_family(), ids=lambda path: path.stem)
def test_trains_a_step_and_predicts_at_odd_sizes(path: Path, data: Path, tmp_path: Path,
                                                 fake_released: Callable[[str], dict[str, Tensor]]) -> None:
    cfg = load_config(path, work_dir=str(tmp_path))
    cut_down(cfg, data)
    init_cfg = cfg.model.backbone.get('init_cfg')
    weights = fake_released(init_cfg.checkpoint) if init_cfg else {}
    start = Start()
    train(cfg, hooks=[start])
    assert start.unused == []  # several processes need no find_unused_parameters
    for name in weights.keys() & start.weights.keys():
        assert torch.equal(weights[name], start.weights[name]), name
    # DeiT has no PEG.
    assert not weights or all('position_encoding' in name for name in start.weights.keys() - weights.keys())
    assert_losses_are_finite()
    metric = 'val/coco/bbox_mAP' if cfg.default_scope == 'mmdet' else 'val/mIoU'
    assert metric in MessageHub.get_current_instance().log_scalars


@pytest.mark.slow
@pytest.mark.parametrize('ndim, window', [(2, None), (3, 3)])
def test_trains_a_step_on_videos_and_predicts_them_whole_or_in_windows(ndim: int, window: int | None, toy_video: Path,
                                                                       tmp_path: Path) -> None:
    options = toy_overrides(toy_video, **{
        'train_cfg.max_iters': 1, 'train_cfg.val_interval': 10, 'default_hooks.checkpoint.interval': 1,
        'model.backbone.position_encoding.ndim': ndim, 'test_dataloader.dataset.indices': 2,
        'model.data_preprocessor.window': window})
    train(load_config(MASK2FORMER_VIS, options, str(tmp_path)))
    assert_losses_are_finite()
    cfg = load_config(MASK2FORMER_VIS, options, str(tmp_path))
    assert 'youtube_vis/segm_mAP' in engine.test(cfg, tmp_path / 'iter_1.pth', tmp_path / 'painted')
    assert {path.name for path in (tmp_path / 'painted').iterdir()} == {
        f'{video:06d}_{frame:05d}.png' for video in range(2) for frame in range(8)}


# One encoding for each point of the contract (the combination has two of them), also in a plain transformer.
STEPS = [(UPERNET, name) for name in ('peg-qk', 'rotary', 'relative', 'peg-fixed')] + [
    (MASK_RCNN, 'peg-learnable'), (ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py', 'relative')]


@pytest.mark.slow
@pytest.mark.parametrize('path, encoding', STEPS, ids=lambda value: getattr(value, 'stem', value))
def test_encodings_learn_at_odd_sizes(path: Path, encoding: str, data: Path, tmp_path: Path) -> None:
    cfg = load_config(path, work_dir=str(tmp_path))
    cut_down(cfg, data)
    cfg.model.backbone.position_encoding = ENCODINGS[encoding]
    for key in ('val_cfg', 'val_dataloader', 'val_evaluator'):
        cfg[key] = None
    runner = build_runner(cfg)
    encodings = [module for module in runner.model.modules() if isinstance(module, PositionEncodings)]
    parameters = [parameter for part in encodings for parameter in part.parameters()]
    buffers = [buffer for part in encodings for buffer in part.buffers()]
    assert bool(parameters) == (encoding not in ('rotary', 'peg-fixed')) and bool(buffers) == (encoding == 'peg-fixed')
    before = [tensor.clone() for tensor in (*parameters, *buffers)]
    runner.train()
    assert_losses_are_finite()
    changed = [not torch.equal(*pair) for pair in zip(before, (*parameters, *buffers), strict=True)]
    assert changed == [True] * len(parameters) + [False] * len(buffers)
