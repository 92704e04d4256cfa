"""Every head of mmdet and mmseg that has classes learns and finds those of the data; keys that do not fit are named."""
import copy
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.logging import MessageHub, MMLogger
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from torch import nn

from cpvt_mm.data_config import new_config
from cpvt_mm.swap import read_config
from openmmlab_tools.checkpoints.loading import build_model
from openmmlab_tools.config_walk import walk
from openmmlab_tools.engine import load_config, prepare
from openmmlab_tools.libraries import require, shipped_configs
from openmmlab_tools.model_keys import NUMBERS, Classes, keys_of_classes, limits_of_boxes
from openmmlab_tools.own_data.fitted_model import check_demands, fit_classes, fit_model, forget_pipelines
from tests.heads import (
    DETECTORS,
    QUERIES,
    SEGMENTORS,
    shrunken,
    with_few_proposals,
    write_base,
    write_maps,
    write_objects,
)
from tests.helpers import ROOT, refusal
from tests.openmmlab_tools.readers.layouts import NO_WORKERS

HEADS = [*(('mmdet', name) for name in DETECTORS), *(('mmseg', name) for name in SEGMENTORS)]
FAST = ('detr/detr', 'mask2former/mask2former_r50', 'maskformer/maskformer_r50', 'retinanet/', 'knet/',
        'seesaw_loss/', 'pspnet/')
NEEDS = {'boxinst/': 'skimage', 'paa/': 'sklearn'}
SIDES = {'ssd300': 300, 'lraspp': 400}  # needed by kernels on the smallest maps
# Base classes, and heads whose classes are not those of the data.
NOT_FITTED = {
    'AnchorFreeHead', 'AnchorHead', 'BasePanopticFusionHead', 'BaseSemanticHead', 'GuidedAnchorHead', 'RTMDetHead',
    'RTMDetInsHead', 'RPNHead', 'GARPNHead', 'CascadeRPNHead', 'StageCascadeRPNHead', 'LinearReIDHead', 'STDCHead',
    'ReIDDataPreprocessor', 'VPDDepthHead', 'FusedSemanticHead', 'SCNetSemanticHead', 'GroundingDINOHead',
    'ATSSVLFusionHead',
    # What their models need, new data does not have, so they are refused; test_what_data_lacks_is_refused has them.
    'CenterNetHead', 'GlobalContextHead', 'HeuristicFusionHead', 'LADHead', 'Mask2FormerTrackHead',
    'PanopticFPNHead', 'SCNetBBoxHead', 'SCNetMaskHead',
    'LDHead',  # GFLHead, with another detector that must be there
    # Losses; the fitting of one is tested with SeesawLoss.
    'CrossEntropyCustomLoss', 'FocalCustomLoss', 'EQLV2Loss'}


def fitted(library: str, name: str, classes: int, root: Path) -> Config:
    """The config that new-config writes for data of a number of classes, from a shrunken one of a library."""
    data = (write_maps if library == 'mmseg' else write_objects)(root / 'data', classes)
    side = next((side for key, side in SIDES.items() if key in name), None)
    new_config(data, root / 'my.py', base=str(write_base(shrunken(library, name), root / 'base.py')), iters=2, batch=2,
               scale=side and (side, side))
    cfg = prepare(load_config(root / 'my.py', NO_WORKERS, str(root / 'work')))
    with_few_proposals(cfg.model)
    return cfg


def step_and_validate(cfg: Config) -> tuple[nn.Module, dict[str, Any]]:
    """Builds a model, trains a step and validates it on the data of its config, as a runner does."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        MMLogger.get_instance('heads', log_level='ERROR')  # of each weight, mmengine logs how it begins
        model: Any = build_model(cfg)
        if cfg.model.type != 'MultimodalEncoderDecoder':
            model.init_weights()
        else:  # waits for weights of CLIP
            for parameter in model.parameters():
                nn.init.normal_(parameter, std=0.02)
        for name, module in model.named_modules():
            # mmdet cannot paste masks if all boxes are outside of the image.
            if name.endswith('fc_reg') and isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)
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
    numbers = [module.num_classes for name, module in model.named_modules() if hasattr(module, 'num_classes')
               and not re.search('rpn|backbone', name) and type(module).__name__ != 'STDCHead']
    assert numbers and {*numbers} == {classes}
    for module in model.modules():
        weights = getattr(module, 'class_weight', None)
        if isinstance(weights, list | tuple | torch.Tensor):
            assert len(weights) in (classes, classes + 1) and len({float(weight) for weight in weights[:classes]}) == 1


@pytest.mark.parametrize('classes', [1, 2, 7])
@pytest.mark.parametrize('library, name', [
    pytest.param(*head, id='-'.join(head), marks=[] if head[1].startswith(FAST) else pytest.mark.slow)
    for head in HEADS])
def test_a_head_learns_and_finds_the_classes_of_the_data(library: str, name: str, classes: int, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    for start, module in NEEDS.items():
        if name.startswith(start) and find_spec(module) is None:
            pytest.skip(f'{name} needs {module}')
    if library == 'mmseg' and classes == 1:  # mmseg would predict a second class, and learns nothing
        model = shrunken(library, name).model
        assert "only the class 'sky', but training needs at least two" in refusal(
            fit_classes, model, Classes(['sky']), library)
        return
    if name.startswith('pidnet'):
        assert 'needs edges of classes (GenerateEdge in the pipeline)' in refusal(
            fitted, library, name, classes, tmp_path)
        return
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


EOMT = ROOT / 'configs/eomt/eomt_cpvt-ti_nuclei.py'


@pytest.mark.parametrize('library, name', [
    ('mmdet', 'mask2former/mask2former_r50_8xb2-lsj-50e_coco'),
    ('mmdet', 'maskformer/maskformer_r50_ms-16xb1-75e_coco'),
    ('mmdet', 'detr/detr_r50_8xb2-150e_coco'), ('mmseg', 'mask2former/mask2former_r50_8xb2-160k_ade20k-512x512'),
    ('cpvt_mm', 'a base of one class')])
def test_the_last_class_is_learnt_as_an_object(library: str, name: str, tmp_path: Path) -> None:
    """If all classes have equal scores, the loss differs only for the class in the data, whose score it raises."""
    if library == 'cpvt_mm':
        new_config(write_objects(tmp_path / 'data', 2), tmp_path / 'my.py', base=str(EOMT), iters=2, batch=2)
        cfg = prepare(load_config(tmp_path / 'my.py', NO_WORKERS, str(tmp_path / 'work')))
    else:
        cfg = fitted(library, name, 2, tmp_path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        MMLogger.get_instance('heads', log_level='ERROR')
        model: Any = build_model(cfg).train()
        batch = model.data_preprocessor(next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0))), True)
        for sample in batch['data_samples']:
            if library == 'mmseg':
                sample.gt_sem_seg.data.fill_(255)[:, :32, :32] = 1
            else:
                sample.gt_instances = sample.gt_instances[sample.gt_instances.labels == 1]
        layers = [module for name, module in model.named_modules() if name.endswith(('.cls_embed', '.fc_cls'))]
        assert layers
        for layer in layers:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        losses = model(**batch, mode='loss')
        sum(value for key, value in losses.items() if 'loss_cls' in key).backward()
    for layer in layers:
        first, last, _ = layer.bias.grad
        assert last < first - 1e-3


@pytest.mark.parametrize('before, after', [(QUERIES, QUERIES), (5, 100)])  # the data has 9 objects
def test_queries_are_as_many_as_objects_and_limits_as_the_scores(before: int, after: int, tmp_path: Path) -> None:
    cfg = shrunken('mmdet', 'detr/detr_r50_8xb2-150e_coco')
    cfg.model.num_queries = before
    new_config(write_objects(tmp_path / 'data', 9), tmp_path / 'my.py', base=str(write_base(cfg, tmp_path / 'base.py')))
    model = load_config(tmp_path / 'my.py').model
    assert model.num_queries == after
    assert model.test_cfg.max_per_img == after  # of a softmax, a query has one box


def test_queries_of_a_trained_model_stay_and_a_sentence_says_what_is_missed() -> None:
    model = dict(copy.deepcopy(QUERY_MODELS['DINO']), test_cfg=dict(max_per_img=300))
    objects: Any = [SimpleNamespace(objects=[None] * 50)]
    data: Any = SimpleNamespace(splits=dict(train=objects), classes=['cat'], is_semantic=False)
    fit: Any = SimpleNamespace(boxes=np.ones((50, 2)))
    told, = fit_model(model, data, fit, 'mmdet', is_trained=True)
    assert told.startswith('An image has 50 objects, but model.num_queries is 30, and each query finds one')
    assert model['num_queries'] == model['test_cfg']['max_per_img'] == 30


QUERY_MODELS: dict[str, Any] = dict(
    DETR=dict(type='DETR', bbox_head=dict(type='DETRHead', num_classes=3)),
    DINO=dict(type='DINO', num_queries=30, bbox_head=dict(type='DINOHead', num_classes=3, loss_cls=dict(
        type='FocalLoss', use_sigmoid=True))),
    QueryInst=dict(type='SparseRCNN', rpn_head=dict(type='EmbeddingRPNHead', num_proposals=30), roi_head=dict(
        type='SparseRoIHead', bbox_head=[dict(type='DIIHead', num_classes=3)], mask_head=[dict(
            type='DynamicMaskHead', num_classes=3)])),
    Mask2Former=dict(type='Mask2Former', panoptic_head=dict(type='Mask2FormerHead', num_queries=30),
                     panoptic_fusion_head=dict(type='MaskFormerFusionHead')),
    EoMT=dict(type='Mask2Former', backbone=dict(type='cpvt_mm.PlainMaskTransformer', num_queries=30),
              panoptic_head=dict(type='cpvt_mm.PlainMaskHead', in_channels=8),
              panoptic_fusion_head=dict(type='MaskFormerFusionHead')))


@pytest.mark.parametrize('kind, test_cfg, classes, expected', [
    ('DETR', dict(max_per_img=200), 3, 100), ('DETR', dict(max_per_img=50), 1, 50), ('DETR', {}, 3, None),
    ('DINO', dict(max_per_img=200), 3, 90), ('DINO', dict(max_per_img=200), 1, 30),
    ('QueryInst', dict(rcnn=dict(max_per_img=200)), 3, 30), ('QueryInst', dict(rcnn=dict(max_per_img=10)), 3, 30),
    ('Mask2Former', {}, 2, 60), ('Mask2Former', dict(max_per_image=60), 2, 60),
    ('EoMT', dict(max_per_image=200), 1, 30)])
def test_a_limit_is_at_most_the_number_of_scores(kind: str, test_cfg: dict[str, Any], classes: int,
                                                 expected: int | None) -> None:
    model = dict(copy.deepcopy(QUERY_MODELS[kind]), test_cfg=test_cfg)
    fit_classes(model, Classes(list('abc')[:classes]), 'mmdet')
    limits = test_cfg.get('rcnn', test_cfg)
    assert limits.get('max_per_img', limits.get('max_per_image')) == expected
    keys = limits_of_boxes(model, Classes(list('abc')[:classes]), 'mmdet')
    assert all(key.value == key.needed for key in keys)


ONES = [1.] * 80
MASK2FORMER = dict(panoptic_head=dict(type='Mask2FormerHead', loss_cls=dict(
    type='CrossEntropyLoss', class_weight=[*ONES, *[1.] * 53, 0.1])), panoptic_fusion_head=dict(
        type='MaskFormerFusionHead', num_things_classes=80, num_stuff_classes=53))
PANOPTIC_FPN = dict(
    semantic_head=dict(type='PanopticFPNHead', loss_seg=dict(type='CrossEntropyLoss', class_weight=[2.] * 54)),
    roi_head=dict(bbox_head=dict(type='Shared2FCBBoxHead', loss_cls=dict(type='CrossEntropyLoss', class_weight=[
        *ONES, 0.5])), mask_head=dict(type='FCNMaskHead')), rpn_head=dict(type='RPNHead'))
WEIGHTED = dict(type='CrossEntropyLoss', class_weight=[0.8, 0.9, 1.1])


@pytest.mark.parametrize('scope, model, classes, expected', [
    ('mmdet', MASK2FORMER, Classes('ab'), {
        'panoptic_head.num_things_classes': 2, 'panoptic_head.num_stuff_classes': 0,
        'panoptic_head.loss_cls.class_weight': [1., 1., 0.1], 'panoptic_fusion_head.num_things_classes': 2,
        'panoptic_fusion_head.num_stuff_classes': 0, 'test_cfg': dict(
            panoptic_on=False, instance_on=True)}),
    ('mmdet', MASK2FORMER, Classes('abcde', stuff=3), {
        'panoptic_head.num_things_classes': 2, 'panoptic_head.num_stuff_classes': 3,
        'panoptic_head.loss_cls.class_weight': [1.] * 5 + [0.1], 'test_cfg.panoptic_on': True}),
    ('mmdet', PANOPTIC_FPN, Classes('abcde', stuff=3), {
        'semantic_head.num_things_classes': 2, 'semantic_head.num_stuff_classes': 3,
        'semantic_head.loss_seg.class_weight': [2.] * 4, 'roi_head.bbox_head.num_classes': 2,
        'roi_head.bbox_head.loss_cls.class_weight': [1., 1., 0.5], 'roi_head.mask_head.num_classes': 2,
        'rpn_head': dict(type='RPNHead')}),
    ('mmdet', dict(roi_head=dict(bbox_head=dict(type='BBoxHead', loss_cls=dict(type='SeesawLoss')), semantic_head=dict(
        type='FusedSemanticHead', num_classes=183))), Classes('ab'), {
            'roi_head.bbox_head.num_classes': 2, 'roi_head.bbox_head.loss_cls.num_classes': 2,
            'roi_head.semantic_head.num_classes': 183}),
    # A class that takes none from a config gets none, and backbones keep theirs.
    ('mmseg', dict(backbone=dict(type='MobileNetV3', num_classes=1000), decode_head=dict(
        type='IterativeDecodeHead', kernel_generate_head=dict(type='FCNHead', num_classes=150), kernel_update_head=[
            dict(type='KernelUpdateHead')])), Classes('abc'), {
                'decode_head': dict(type='IterativeDecodeHead', kernel_generate_head=dict(
                    type='FCNHead', num_classes=3), kernel_update_head=[dict(type='KernelUpdateHead', num_classes=3)]),
                'backbone.num_classes': 1000}),
    ('mmseg', dict(decode_head=dict(type='Mask2FormerHead', num_classes=150, out_channels=256, loss_cls=dict(
        class_weight=[1.] * 150 + [0.1]))), Classes('ab'), {
            'decode_head': dict(type='Mask2FormerHead', num_classes=2, out_channels=256, loss_cls=dict(
                class_weight=[1., 1., 0.1]))}),
    # Weights of other classes are lost, but those of as many classes stay. Detail heads learn boundaries.
    ('mmseg', dict(decode_head=dict(type='FCNHead', num_classes=3, loss_decode=[WEIGHTED, dict(WEIGHTED)]),
                   auxiliary_head=dict(type='STDCHead', num_classes=2)), Classes('ab'), {
        'decode_head.loss_decode.0.class_weight': None, 'decode_head.loss_decode.1.class_weight': None,
        'auxiliary_head.num_classes': 2}),
    ('mmseg', dict(decode_head=dict(type='FCNHead', num_classes=19, loss_decode=WEIGHTED)), Classes('abc'), {
        'decode_head.loss_decode': WEIGHTED}),
    ('mmseg', dict(decode_head=dict(type='FCNHead', num_classes=19, loss_decode=dict(class_weight='weights.npy'))),
     Classes('abc'), {'decode_head.loss_decode.class_weight': None}),
    # One channel tells two classes apart.
    *(('mmseg', dict(decode_head=dict(type='FCNHead', num_classes=2, channels=8, out_channels=1)), Classes(names), {
        'decode_head.num_classes': len(names), 'decode_head.out_channels': channels})
      for names, channels in (('ab', 1), ('abc', 3))),
    ('mmseg', dict(text_encoder=dict(type='CLIPTextEncoder', dataset_name='voc'), decode_head=dict(
        type='SideAdapterCLIPHead', num_classes=20, loss_decode=[dict(loss_name='loss_cls_ce', class_weight=[
            1.] * 20 + [0.1]), dict(loss_name='loss_mask_ce', use_sigmoid=True)])), Classes(['cat', 'dog']), {
                'text_encoder': dict(type='CLIPTextEncoder', dataset_name=None, vocabulary=['cat', 'dog']),
                'decode_head.num_classes': 2, 'decode_head.loss_decode.0.class_weight': [1., 1., 0.1]})])
def test_keys_get_what_the_classes_need(scope: str, model: dict[str, Any], classes: Classes, expected: dict[str, Any]
                                        ) -> None:
    model = copy.deepcopy(model)
    fit_classes(model, classes, scope)
    for key, value in expected.items():
        part: Any = model
        for name in key.split('.'):
            part = part[int(name)] if name.isdigit() else part[name]
        assert part == value, key
    keys = [*keys_of_classes(model, classes, scope)]
    assert keys and all(key.value == key.needed for key in keys)


@pytest.mark.parametrize('name, lost, kept', [
    ('rtmdet/rtmdet-ins_tiny_8xb32-300e_coco', {'PipelineSwitchHook'}, {'EMAHook'}),
    ('yolox/yolox_nano_8xb8-300e_coco', {'YOLOXModeSwitchHook'}, {'SyncNormHook', 'EMAHook'}),
    ('retinanet/retinanet_r50_fpn_1x_coco', set(), set())])
def test_a_model_without_its_pipelines_pads_images_and_has_no_hook_of_them(name: str, lost: set[str], kept: set[str]
                                                                           ) -> None:
    """Its neck joins maps whose sides must be multiples of 32."""
    cfg = read_config(f'mmdet::{name}.py')
    hooks = {hook.type for hook in cfg.get('custom_hooks', ())}
    assert lost < hooks or not lost
    forget_pipelines(cfg)
    assert hooks - {hook.type for hook in cfg.get('custom_hooks', ())} == lost
    assert kept <= {hook.type for hook in cfg.get('custom_hooks', ())}
    assert cfg.model.data_preprocessor.pad_size_divisor == 32


def test_weights_of_other_classes_are_none_in_mmseg() -> None:
    """With weights, its losses fail at pixels that are ignored."""
    cfg = read_config(str(shipped_configs('mmseg') / 'cgnet/cgnet_fcn_4xb8-60k_cityscapes-512x1024.py'))
    [line] = fit_classes(cfg.model, Classes(['sky', 'ground']), 'mmseg')
    assert 'all classes have the same weight' in line
    loss = dict(cfg.model.decode_head.loss_decode)
    assert loss.pop('class_weight') is None
    labels = torch.tensor([[[0, 1], [255, 0]]])
    assert MODELS.build(dict(loss, type='mmseg.CrossEntropyLoss'))(
        torch.zeros(1, 2, 2, 2), labels, ignore_index=255) > 0


@pytest.mark.parametrize('library, name, told', [
    ('mmdet', 'htc/htc_r50_fpn_1x_coco', 'needs a label map beside the objects of each image (model.roi_head.sem'),
    ('mmdet', 'scnet/scnet_r50_fpn_1x_coco', 'needs a label map beside'),
    ('mmdet', 'panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco', 'needs a label map beside'),
    ('mmdet', 'grounding_dino/grounding_dino_r50_scratch_8xb2_1x_coco', 'needs the names of classes as texts (model.l'),
    ('mmdet', 'glip/glip_atss_swin-t_a_fpn_dyhead_pretrain_obj365', 'needs the names of classes as texts'),
    ('mmdet', 'mask2former_vis/mask2former_r50_8xb2-8e_youtubevis2019', 'needs videos (model.'),
    ('mmdet', 'soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco', 'needs images without annota'),
    ('mmdet', 'fast_rcnn/fast-rcnn_r50_fpn_1x_coco', 'needs files of proposals (model.type=FastRCNN)'),
    ('mmdet', 'centernet/centernet_r18_8xb16-crop512-140e_coco', 'needs test images padded by RandomCenterCropPad'),
    ('mmdet', 'lad/lad_r101-paa-r50_fpn_2xb8_coco_1x', 'needs a teacher that was trained on it (model.teacher_'),
    ('mmdet', 'rpn/rpn_r50_fpn_1x_coco', 'the model RPN has no head that predicts classes'),
    ('mmdet', 'reid/reid_r50_8xb32-6e_mot15train80_test-mot15val20', 'the model BaseReID has no head that predicts'),
    ('mmseg', 'vpd/vpd_sd_4xb8-25k_nyu-480x480', 'the model DepthEstimator has no head that predicts')])
def test_what_data_lacks_is_refused(library: str, name: str, told: str) -> None:
    cfg = read_config(str(shipped_configs(library) / f'{name}.py'))

    def fit() -> None:
        check_demands(cfg.model, {})
        fit_classes(cfg.model, Classes('ab'), library)

    assert told in refusal(fit)


@pytest.mark.slow
def test_the_table_has_all_heads_with_classes() -> None:
    tried = {str(part['type']).rpartition('.')[2] for library, name in HEADS
             for _, part in walk(shrunken(library, name).model) if 'type' in part}
    for library in ('mmdet', 'mmseg'):
        require(library)
        with MODELS.switch_scope_and_registry(library) as registry:
            known = {name: cls for name, cls in registry.module_dict.items() if isinstance(cls, type)
                     and cls.__module__.startswith(f'{library}.')}
        heads = {name for name, cls in known.items() if any(
            key in inspect.signature(base.__init__).parameters for base in cls.__mro__[:-1] for key in NUMBERS)
            and issubclass(cls, nn.Module)}
        assert len(heads) > 30 and heads - tried - NOT_FITTED == set()
