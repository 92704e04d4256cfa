"""Every head of mmdet and mmseg that has classes learns and finds those of the data; keys that do not fit are named."""
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.logging import MessageHub, MMLogger
from mmengine.optim import OptimWrapper
from mmengine.registry import DefaultScope
from mmengine.runner import Runner
from torch import nn

from cpvt_mm.data_config import new_config
from openmmlab_data.fitted_model import fit_classes
from openmmlab_runs.checkpoints.loading import build_model
from openmmlab_runs.engine import load_config
from openmmlab_runs.engine.prepare import prepare
from openmmlab_runs.model_keys import Classes
from tests.conftest import refusal
from tests.heads import DETECTORS, SEGMENTORS, shrunken, with_few_proposals, write_base, write_maps, write_objects
from tests.openmmlab_data.layouts import NO_WORKERS
from tests.tools.conftest import save

HEADS = [*(('mmdet', name) for name in DETECTORS), *(('mmseg', name) for name in SEGMENTORS)]
FAST = ('detr/detr', 'mask2former/mask2former_r50', 'maskformer/maskformer_r50', 'retinanet/', 'queryinst/', 'knet/',
        'seesaw_loss/', 'pspnet/')
NEEDS = {'boxinst/': 'skimage', 'paa/': 'sklearn'}
SIDES = {'ssd300': 300}
# Base classes, and heads whose classes are not those of the data.
NOT_FITTED = {
    'AnchorFreeHead', 'AnchorHead', 'BasePanopticFusionHead', 'BaseSemanticHead', 'GuidedAnchorHead', 'RTMDetHead',
    'RTMDetInsHead', 'RPNHead', 'GARPNHead', 'CascadeRPNHead', 'StageCascadeRPNHead', 'LinearReIDHead', 'STDCHead',
    'ReIDDataPreprocessor', 'FusedSemanticHead', 'SCNetSemanticHead', 'GroundingDINOHead', 'ATSSVLFusionHead',
    # What their models need, new data does not have, so they are refused; test_what_data_lacks_is_refused has them.
    'CenterNetHead', 'GlobalContextHead', 'HeuristicFusionHead', 'LADHead', 'LDHead', 'Mask2FormerTrackHead',
    'PanopticFPNHead', 'SCNetBBoxHead', 'SCNetMaskHead',
    # Losses; the fitting of one is tested with SeesawLoss.
    'CrossEntropyCustomLoss', 'FocalCustomLoss', 'EQLV2Loss'}


def fitted(library: str, name: str, classes: int, root: Path) -> Config:
    """The config that new-config writes for data of a number of classes, from a shrunken one of a library."""
    is_mmseg = library == 'mmseg'
    # The command refuses label maps of one class; `swap --data` takes those of a dataset that says so.
    data = (write_maps if is_mmseg else write_objects)(root / 'data', max(classes, 1 + is_mmseg))
    side = next((side for key, side in SIDES.items() if key in name), None)
    new_config(data, root / 'my.py', base=str(write_base(shrunken(library, name), root / 'base.py')), iters=2, batch=2,
               scale=side and (side, side))
    cfg = prepare(load_config(root / 'my.py', NO_WORKERS, str(root / 'work')))
    if is_mmseg and classes == 1:
        only = ('class 0',)
        fit_classes(cfg.model, Classes(only), 'mmseg')
        for split in ('train', 'val'):
            cfg[f'{split}_dataloader'].dataset.metainfo = dict(classes=only)
        for path in root.rglob('*_mask.png'):
            save(path, np.where(np.arange(96) < 48, 0, 255).astype(np.uint8)[None].repeat(96, 0))
    with_few_proposals(cfg.model)
    return cfg


def step_and_validate(cfg: Config) -> tuple[nn.Module, dict[str, Any]]:
    """Builds a model, trains a step and validates it on the data of its config, as a runner does."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        MMLogger.get_instance('heads', log_level='ERROR')  # of each weight, mmengine logs how it begins
        model: Any = build_model(cfg)
        model.init_weights()
        for count in ('iter', 'epoch'):
            MessageHub.get_current_instance().update_info(count, 0)
        batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
        losses = model.train().train_step(batch, OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-6)))
        assert torch.isfinite(losses['loss']), losses
        loader, evaluator = Runner.build_dataloader(cfg.val_dataloader), Evaluator([cfg.val_evaluator])
        evaluator.dataset_meta = loader.dataset.metainfo
        model.eval()
        with torch.no_grad():
            for batch in loader:
                samples = model.val_step(batch)
                evaluator.process(samples, batch)
                for sample in samples:
                    labels = sample.pred_sem_seg.data if 'pred_sem_seg' in sample else sample.pred_instances.labels
                    assert set(labels.unique().tolist()) <= {*range(len(loader.dataset.metainfo['classes']))}
        return model, evaluator.evaluate(len(loader.dataset))


def assert_tells_apart(model: nn.Module, classes: int) -> None:
    """Asserts that heads have the classes, and that weights of classes have one for each, and one for no object."""
    numbers = [module.num_things_classes + module.num_stuff_classes if hasattr(module, 'num_things_classes')
               else module.num_classes for name, module in model.named_modules()
               if hasattr(module, 'num_classes') and 'rpn' not in name and type(module).__name__ != 'STDCHead']
    assert numbers and {*numbers} == {classes}
    for module in model.modules():
        weights = getattr(module, 'class_weight', None)
        if isinstance(weights, list | tuple | torch.Tensor):
            assert len(weights) in (classes, classes + 1) and len({float(one) for one in weights[:classes]}) == 1


@pytest.mark.parametrize('classes', [1, 2, 7])
@pytest.mark.parametrize('library, name', [
    pytest.param(*head, id='-'.join(head), marks=[] if head[1].startswith(FAST) else pytest.mark.slow)
    for head in HEADS])
def test_a_head_learns_and_finds_the_classes_of_the_data(library: str, name: str, classes: int, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    for start, module in NEEDS.items():
        if name.startswith(start) and find_spec(module) is None:
            pytest.skip(f'{name} needs {module}')
    if name.startswith('crowddet') and classes > 1:
        assert 'MultiInstanceBBoxHead, which learns one class, but the data has' in refusal(
            fitted, library, name, classes, tmp_path)
        return
    if 'ssd' in name:  # mmdet 3.3 fails to predict with it, whatever the classes are
        from mmdet.models.dense_heads import SSDHead
        monkeypatch.setattr(SSDHead, 'loss_cls', None, raising=False)
    model, metrics = step_and_validate(fitted(library, name, classes, tmp_path))
    assert_tells_apart(model, classes)
    assert np.isfinite(next(iter(metrics.values())))
