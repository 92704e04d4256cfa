"""The losses are the paper's, the teacher is frozen and no part of the student, and what does not fit is refused."""
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import DefaultScope
from torch import nn

from cpvt_mm.registry import MODELS
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import UserError
from openmmlab_tools.libraries import require

require('mmpretrain')

from mmpretrain.registry import MODELS as MMPRETRAIN_MODELS  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from projects.hard_distillation import DistilledHead  # noqa: E402
from tests.helpers import build_model  # noqa: E402

CONFIGS = sorted(Path(__file__).parent.glob('configs/*.py'))
CLASSES = 5
TEACHER = dict(
    type='mmpretrain.ImageClassifier',
    backbone=dict(type='mmpretrain.ResNet', depth=18, stem_channels=8, base_channels=8, zero_init_residual=False),
    neck=dict(type='mmpretrain.GlobalAveragePooling'),
    head=dict(type='mmpretrain.LinearClsHead', num_classes=CLASSES, in_channels=64),
    data_preprocessor=dict(type='mmpretrain.ClsDataPreprocessor'))
BACKBONE = dict(type='cpvt_mm.CPVT', arch=dict(embed_dims=24, depth=2, num_heads=2, dist_token=True),
                cls_token=False, out_type='gap')
HEAD = dict(type='cpvt_mm.DistilledHead', num_classes=CLASSES, in_channels=24)
SMOOTH = dict(type='mmpretrain.LabelSmoothLoss', label_smooth_val=0.1, mode='original')
IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def classifier(**options: Any) -> nn.Module:
    return MODELS.build({**dict(type='cpvt_mm.DistilledClassifier', backbone=BACKBONE, head=HEAD, teacher=TEACHER,
                                data_preprocessor=dict(num_classes=CLASSES)), **options})


def samples() -> list[DataSample]:
    return [DataSample().set_gt_label(label) for label in (0, 1, 2, 3, 4, 0)]


@pytest.fixture
def teacher(tmp_path: Path) -> nn.Module:
    """With statistics unlike those of a batch, and classes that differ between images; also in teacher.pth."""
    teacher = MMPRETRAIN_MODELS.build(dict(TEACHER, _scope_='mmpretrain'))
    for module in teacher.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        teacher.head.fc.bias -= teacher.eval()(IMAGES).mean(dim=0)
    torch.save(dict(state_dict=teacher.state_dict()), tmp_path / 'teacher.pth')
    return teacher


@pytest.fixture
def checkpoint(teacher: nn.Module, tmp_path: Path) -> str:
    return str(tmp_path / 'teacher.pth')


@pytest.mark.parametrize('scope', ['mmengine', 'mmdet'])  # mmdet has losses of the same names
def test_the_teacher_judges_the_mixed_batch_that_the_student_sees(scope: str, checkpoint: str, teacher: nn.Module
                                                                  ) -> None:
    with DefaultScope.overwrite_default_scope(scope):
        model = classifier(teacher_checkpoint=checkpoint,
                           train_cfg=dict(augments=dict(type='mmpretrain.Mixup', alpha=0.8)))
        model.init_weights()
        data = model.data_preprocessor(dict(inputs=IMAGES, data_samples=samples()), training=True)
        losses = model.train()(**data, mode='loss')
    assert not torch.equal(data['inputs'], IMAGES)
    with torch.no_grad():
        labels = teacher.eval()(data['inputs']).argmax(dim=1)
    assert len(set(labels.tolist())) > 1
    torch.testing.assert_close(losses, model.head.loss(model.backbone(data['inputs']), data['data_samples'], labels))
    assert {type(part).__module__.split('.')[0] for part in (
        model.data_preprocessor, model.head.loss_module, model.teacher.head.loss_module)} == {'mmpretrain'}


def test_the_teacher_is_fixed_and_no_part_of_the_model(checkpoint: str) -> None:
    model = classifier(teacher_checkpoint=checkpoint)
    model.init_weights()
    model.eval().train().requires_grad_(True)
    assert not any(module.training for module in model.teacher.modules())
    assert not any(parameter.requires_grad for parameter in model.teacher.parameters())
    for names in (model.state_dict(), dict(model.named_parameters()), dict(model.named_modules())):
        assert not any('teacher' in name for name in names)
    copied = copy.deepcopy(model)  # as EMA's hook makes one
    assert copied.teacher is None and list(copied.state_dict()) == list(model.state_dict())
    model.double().loss(IMAGES.double(), samples())
    assert {parameter.dtype for parameter in model.teacher.parameters()} == {torch.float64}


def test_what_does_not_fit_is_refused(checkpoint: str, teacher: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'^model\.teacher_checkpoint is not set'):
        classifier().loss(IMAGES, samples())
    torch.save(teacher.backbone.state_dict(), path := tmp_path / 'other.pth')
    with pytest.raises(UserError, match=r'other\.pth does not fit the ImageClassifier it is for'):
        classifier(teacher_checkpoint=str(path)).init_weights()
    for model, words in (
            (dict(teacher_checkpoint=checkpoint, head=dict(HEAD, num_classes=6)), 'but the head has num_classes 6'),
            (dict(teacher_checkpoint=checkpoint, backbone=dict(BACKBONE, out_type='raw')), 'gives single tensors')):
        with pytest.raises(ValueError, match=words):
            classifier(**model).loss(IMAGES, samples())


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_the_configs_predict_without_a_teacher(path: Path) -> None:
    model = build_model(load_config(path)).eval()
    scores = torch.stack([sample.pred_score for sample in model(IMAGES[:2], mode='predict')])
    assert model.teacher is None and scores.shape == (2, 1000)
    torch.testing.assert_close(scores, model(IMAGES[:2]).exp())


@pytest.mark.parametrize('mixed', [False, True])
def test_prediction_and_loss_are_the_papers(mixed: bool) -> None:
    pooled, token = torch.randn(2, 4, 3)
    model = DistilledHead(num_classes=5, in_channels=3, loss=SMOOTH)
    model.init_weights()
    expected = (model.fc(pooled).softmax(dim=1) + model.fc_dist(token).softmax(dim=1)) / 2
    torch.testing.assert_close(model([(pooled, token)]).exp(), expected)
    labels, teacher_labels = torch.tensor([0, 4, 2, 2]), torch.tensor([1, 4, 2, 0])
    targets = F.one_hot(labels, 5).float()
    given = [DataSample().set_gt_label(label) for label in labels]
    if mixed:
        targets = 0.7 * targets + 0.3 * targets.flip(0)
        given = [DataSample().set_gt_score(target) for target in targets]
    losses = model.loss([(pooled, token)], given, teacher_labels)
    log_p = model.fc(pooled).log_softmax(dim=1)
    smoothed = -((0.9 * targets + 0.1 / 5) * log_p).sum(dim=1).mean() / 2
    torch.testing.assert_close(losses['loss_cls'], smoothed)
    log_p = model.fc_dist(token).log_softmax(dim=1)
    torch.testing.assert_close(losses['loss_distill'], -log_p[range(4), teacher_labels].mean() / 2)
