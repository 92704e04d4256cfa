"""Pyramids in configs that libraries ship, and the files that are written; test_swapping_plain.py has CPVT."""
import copy
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mmengine.config import Config
from torch import nn

from cpvt_mm.registry import MODELS
from cpvt_mm.swap import CannotSwap, read_config, swap_backbone, write_config
from cpvt_mm.swap.probing import CannotRun
from cpvt_mm.zoo.members import IMAGENET
from openmmlab_tools.config_files import check_model_of
from openmmlab_tools.libraries import shipped_configs
from tests.helpers import refusal
from tests.odd_texts import ODD

MEAN, STD = map(list, IMAGENET)
RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'


def test_written_config_inherits_and_is_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = read_config(RETINANET)
    new = swap_backbone(old, 'nano').config
    write_config(old, new, RETINANET, tmp_path / 'swapped.py')
    assert (tmp_path / 'swapped.py').read_text() == (
        f"_base_ = '{RETINANET}'\n"
        'model = dict(\n'
        "    backbone=dict(_delete_=True, type='cpvt_mm.PyramidCPVT', arch='nano'),\n"
        '    neck=dict(in_channels=[32, 64, 128, 192]),\n'
        ')\n')
    assert list(tmp_path.rglob('*')) == [tmp_path / 'swapped.py']
    written = Config.fromfile(tmp_path / 'swapped.py')
    assert written.model.neck.in_channels == [32, 64, 128, 192]
    assert written.train_dataloader == old.train_dataloader
    # Odd names are written as they are.
    monkeypatch.setenv('HOME', "'+str(1/0)+'")
    odd = dict(classes=ODD, names={name: name for name in ODD})
    new.train_dataloader.dataset.metainfo = odd
    write_config(old, new, RETINANET, tmp_path / '{{ fileDirname }}.py')
    written = Config.fromfile(tmp_path / '{{ fileDirname }}.py')
    assert written.train_dataloader.dataset.metainfo == odd and not written.env_variables


def test_a_message_names_a_config_of_a_library_as_it_was_typed() -> None:
    cfg = read_config(RETINANET)
    cfg.model.backbone.depth = 7
    assert refusal(check_model_of, cfg).startswith(f'the RetinaNet of config {RETINANET} cannot be built (')


def test_what_cannot_be_read_or_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(read_config, 'no.py').startswith('config no.py does not exist: check the path')
    told = refusal(read_config, 'mmdet::no/such.py')
    assert told.startswith('config mmdet::no/such.py cannot be read ')
    assert ': correct its name, or name the path' in told
    old, there = read_config(RETINANET), tmp_path / 'there.py'
    new = old.copy()
    new.pop('optim_wrapper')  # inheritance cannot take it away
    assert 'cannot inherit from config' in refusal(write_config, old, new, RETINANET, tmp_path / 'out.py')
    assert not list(tmp_path.iterdir())
    there.write_text('mine')
    monkeypatch.setattr(Path, 'write_bytes', Mock(side_effect=OSError(28, 'No space left on device')))
    for path, words in ((there, 'there.py exists already: choose another file'),
                        (tmp_path / 'out.yaml', 'out.yaml is not a name for a config: use the suffix .py'),
                        (tmp_path / 'out.py', 'out.py cannot be written (No space left on device): choose another')):
        assert words in refusal(write_config, old, old, RETINANET, path)
    assert there.read_text() == 'mine'


WIDTHS = [64, 128, 320, 512]
NEW = dict(type='cpvt_mm.PyramidCPVT', arch='small', drop_path_rate=0.2)


def shipped(name: str) -> Config:
    """Reads a config that a library ships: 'mmdet/family/name.py'."""
    library, _, path = name.partition('/')
    return read_config(str(shipped_configs(library) / path))


@pytest.fixture
def detector() -> Config:
    """A small config of a detector's."""
    return Config(dict(
        default_scope='mmdet',
        model=dict(type='RetinaNet', data_preprocessor=dict(type='DetDataPreprocessor', mean=[1.], std=[1.]),
                   backbone=dict(type='ResNet', depth=18), neck=dict(type='FPN', in_channels=[64, 128, 256, 512],
                                                                     out_channels=16, num_outs=5),
                   bbox_head=dict(type='RetinaHead', num_classes=3, in_channels=16)), load_from='detector.pth'))


def get(cfg: Config, key: str) -> Any:
    for part in key.split('.'):
        cfg = cfg[int(part)] if part.isdigit() else cfg[part]
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'expected'), [
    ('mmdet/dino/dino-4scale_r50_8xb2-12e_coco.py',
     {'neck.in_channels': WIDTHS[1:], 'backbone.out_indices': (1, 2, 3)}),
    ('mmdet/yolo/yolov3_d53_8xb8-320-273e_coco.py', {'neck.in_channels': [512, 320, 128]}),
    ('mmdet/ssd/ssd300_coco.py', {
        'neck.in_channels': (128, 320), 'bbox_head.in_channels': (128, 320, 512, 256, 256, 256)}),
    ('mmdet/faster_rcnn/faster-rcnn_r50-caffe-dc5_1x_coco.py', {
        'backbone.out_indices': (2,), 'rpn_head.in_channels': 320, 'roi_head.bbox_head.in_channels': 320,
        'roi_head.bbox_roi_extractor.out_channels': 320, 'roi_head.bbox_roi_extractor.featmap_strides': [16]}),
    ('mmdet/soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.1-coco.py', {
        'detector.neck.in_channels': WIDTHS, 'data_preprocessor.data_preprocessor.mean': MEAN,
        'detector.data_preprocessor.mean': MEAN}),
    ('mmseg/upernet/upernet_r50_4xb4-80k_ade20k-512x512.py', {
        'pretrained': None, 'decode_head.in_channels': WIDTHS, 'auxiliary_head.in_channels': 320}),
    ('mmseg/knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py', {
        'decode_head.kernel_generate_head.in_channels': WIDTHS, 'decode_head.kernel_update_head.0.in_channels': 512})])
def test_what_depends_on_channels_follows(name: str, expected: dict) -> None:
    old = shipped(name)
    before = old.to_dict()
    model = swap_backbone(old).config.model
    assert old.to_dict() == before
    owner = model.get('detector', model)
    assert {**owner.backbone, 'out_indices': None} == dict(NEW, out_indices=None)
    assert {key: get(model, key) for key in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'reason'), [
    ('mmdet/detectors/htc_r50-rfp_1x_coco.py', 'returns maps with strides 1, 4, 8, 16, 32, but the'),
    ('mmdet/faster_rcnn/faster-rcnn_r50-caffe_c4-1x_coco.py', 'shared_head, ResLayer, is the last stage of the old'),
    ('mmdet/misc/d2_retinanet_r50-caffe_fpn_ms-90k_coco.py', 'the config has no backbone with a type'),
    ('mmseg/vit/vit_deit-s16_upernet_8xb2-80k_ade20k-512x512.py',
     'returns maps with strides 16, 16, 16, 16, but the .* pyramid have strides 4, 8, 16, 32: use CPVT instead of')])
def test_config_that_cannot_take_a_pyramid_says_why(name: str, reason: str) -> None:
    assert re.search(reason, refusal(swap_backbone, shipped(name), error=CannotSwap))


@MODELS.register_module(force=True)
class PickyNeck(nn.Identity):
    """Takes the channels of ResNet-18 only."""

    def __init__(self, in_channels: list[int]) -> None:
        super().__init__()
        assert in_channels == [64, 128, 256, 512]


def test_a_neck_that_takes_the_old_channels_only_is_a_failure_of_the_swap(detector: Config) -> None:
    detector.model.neck = dict(type='cpvt_mm.PickyNeck', in_channels=[64, 128, 256, 512])
    assert 'its neck cpvt_mm.PickyNeck on maps of 64, 128, 320, 512 channels cannot be' in (
        refusal(swap_backbone, detector, error=CannotRun))


def test_weights_of_the_old_backbone_are_forgotten(detector: Config) -> None:
    detector.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='resnet.pth')
    detector.model.init_cfg = dict(type='Pretrained', checkpoint='retinanet.pth')
    new = swap_backbone(detector).config
    assert new.model.backbone == NEW
    assert new.model.init_cfg is None and new.load_from is None
    around = dict(type='QDTrack', detector=detector.model, init_cfg=dict(type='Pretrained', checkpoint='qdtrack.pth'))
    assert swap_backbone(Config(dict(default_scope='mmdet', model=around))).config.model.init_cfg is None
    reid = dict(backbone=dict(type='mmpretrain.ResNet', depth=50), init_cfg=dict(checkpoint='reid.pth'))
    tracker = Config(dict(default_scope='mmdet', model=dict(type='DeepSORT', detector=detector.model, reid=reid)))
    model = swap_backbone(tracker).config.model
    assert model.reid == reid and model.detector.backbone == NEW  # the network for reidentification stays


def test_import_of_mmpretrain_goes_with_its_backbone(detector: Config) -> None:
    for imports, more, goes in ((['mmpretrain.models'], {}, True), (['mmpretrain.models', 'json'], {}, False),
                                (['mmpretrain.models'], dict(extra=dict(type='mmpretrain.LinearClsHead')), False)):
        old = Config(dict(detector, model={**detector.model, **more}, custom_imports=dict(imports=imports)))
        assert swap_backbone(old).config.custom_imports == (None if goes else dict(imports=imports))


def test_images_are_normalized_as_weights_of_the_backbone_expect_and_its_other_arguments_are_kept(detector: Config
                                                                                                 ) -> None:
    old = copy.deepcopy(detector)
    old.model.backbone.update(in_channels=4, with_cp=True)
    model = swap_backbone(old).config.model
    assert model.backbone == dict(NEW, in_channels=4, with_cp=True)
    assert model.data_preprocessor == old.model.data_preprocessor  # statistics of other images
    assert swap_backbone(detector).config.model.data_preprocessor == dict(
        type='DetDataPreprocessor', mean=MEAN, std=STD, bgr_to_rgb=True)
    del detector.model.data_preprocessor
    detector.data_preprocessor = dict(type='ClsDataPreprocessor', to_rgb=False)
    assert swap_backbone(detector).config.data_preprocessor == dict(
        type='ClsDataPreprocessor', to_rgb=True, mean=MEAN, std=STD)


def test_a_config_of_this_backbone_gets_another_arch(detector: Config) -> None:
    assert "'ViT' is not a backbone that can be swapped in; allowed are same, P" in refusal(
        swap_backbone, detector, backbone='ViT', error=ValueError)
    detector.model.backbone = own = dict(type='cpvt_mm.PyramidCPVT', arch='nano', drop_path_rate=0., frozen_stages=1,
                                         padding='exact', position_encoding=dict(type='RotaryPE'))
    detector.model.neck.in_channels = [32, 64, 128, 192]
    model = swap_backbone(detector, 'small').config.model
    assert model.backbone == {**own, 'arch': 'small'} and model.neck.in_channels == WIDTHS


@pytest.mark.parametrize('source, told', [
    ("default_scope = None\nmodel = dict(type='MaskRCNN', backbone=dict(type='ResNet'))",
     "has the model MaskRCNN, but no default_scope: set it to mmdet or mmseg or mmpretrain."),
    ("model = dict(type='MaskRCNN', backbone=dict(type='ResNet'))", 'but no default_scope: set it to '),
    ("custom_imports = dict(imports=['no_mod'], allow_failed_imports=False)",
     "No module named 'no_mod'): install the package with the module no_mod, add the folder that has it to PYTHONPATH"),
    ('1 / 0', '(ZeroDivisionError: division by zero): correct its name, or name the path of its file.')])
def test_what_a_config_lacks_is_named(source: str, told: str, tmp_path: Path) -> None:
    (tmp_path / 'a.py').write_text(source)
    assert told in refusal(read_config, str(tmp_path / 'a.py'))
