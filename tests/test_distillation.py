import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from openmmlab_runs.errors import UserError
from openmmlab_runs.libraries import require

require('mmpretrain')

from mmpretrain.registry import MODELS as MMPRETRAIN_MODELS  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402

from cpvt_mm.distillation import DistilledHead  # noqa: E402

CLASSES = 5
TEACHER = dict(
    type='mmpretrain.ImageClassifier',
    backbone=dict(type='mmpretrain.ResNet', depth=18, stem_channels=8, base_channels=8, zero_init_residual=False),
    neck=dict(type='mmpretrain.GlobalAveragePooling'),
    head=dict(type='mmpretrain.LinearClsHead', num_classes=CLASSES, in_channels=64),
    data_preprocessor=dict(type='mmpretrain.ClsDataPreprocessor'))
BACKBONE = dict(type='cpvt_mm.CPVT', arch=dict(embed_dims=24, depth=2, num_heads=2), cls_token=False, dist_token=True,
                out_type='gap')
HEAD = dict(type='cpvt_mm.DistilledHead', num_classes=CLASSES, in_channels=24)
SMOOTH = dict(type='mmpretrain.LabelSmoothLoss', label_smooth_val=0.1, mode='original')
IMAGES = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = [0, 1, 2, 3, 4, 0]


def classifier(**options: Any) -> nn.Module:
    return MODELS.build({**dict(
        type='cpvt_mm.DistilledClassifier', backbone=BACKBONE, head=dict(HEAD, loss=SMOOTH), teacher=TEACHER,
        data_preprocessor=dict(type='mmpretrain.ClsDataPreprocessor', num_classes=CLASSES)), **options})


def samples() -> list[DataSample]:
    return [DataSample().set_gt_label(label) for label in LABELS]


@pytest.fixture
def teacher() -> nn.Module:
    """With statistics unlike those of a batch, and classes that differ between images."""
    teacher = MMPRETRAIN_MODELS.build(dict(TEACHER, _scope_='mmpretrain'))
    for module in teacher.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        teacher.head.fc.bias -= teacher.eval()(IMAGES).mean(dim=0)
    return teacher


@pytest.fixture
def checkpoint(teacher: nn.Module, tmp_path: Path) -> str:
    path = tmp_path / 'teacher.pth'
    torch.save(dict(state_dict=teacher.state_dict()), path)
    return str(path)


@pytest.fixture
def model(checkpoint: str) -> nn.Module:
    model = classifier(teacher_checkpoint=checkpoint)
    model.init_weights()
    return model.train()


def test_the_teacher_judges_the_batch_that_the_student_sees(model: nn.Module, teacher: nn.Module) -> None:
    with torch.no_grad():
        teacher_labels = teacher.eval()(IMAGES).argmax(dim=1)
    assert len(set(teacher_labels.tolist())) > 1
    losses = model.loss(IMAGES, samples())
    assert set(losses) == {'loss_cls', 'loss_distill'}
    torch.testing.assert_close(losses, model.head.loss(model.backbone(IMAGES), samples(), teacher_labels))


@pytest.mark.parametrize('scope', ['mmengine', 'mmdet'])  # mmdet has losses of the same names
def test_its_parts_are_mmpretrains_whatever_the_current_scope(scope: str, checkpoint: str) -> None:
    with DefaultScope.overwrite_default_scope(scope):
        model = classifier(teacher_checkpoint=checkpoint, data_preprocessor=dict(num_classes=CLASSES), head=HEAD)
        model.init_weights()
        data = model.data_preprocessor(dict(inputs=IMAGES, data_samples=samples()), training=True)
        assert all(loss.isfinite() for loss in model(**data, mode='loss').values())
    parts = model.data_preprocessor, model.head.loss_module, model.teacher.head.loss_module
    assert [f'{type(part).__module__.split(".")[0]}.{type(part).__name__}' for part in parts] == [
        'mmpretrain.ClsDataPreprocessor', 'mmpretrain.CrossEntropyLoss', 'mmpretrain.CrossEntropyLoss']
    assert classifier(data_preprocessor=model.data_preprocessor).data_preprocessor is model.data_preprocessor


def test_the_batch_is_mixed_for_both(checkpoint: str) -> None:
    model = classifier(teacher_checkpoint=checkpoint, train_cfg=dict(augments=dict(type='mmpretrain.Mixup', alpha=0.8)))
    model.init_weights()
    seen: dict[str, Tensor] = {}
    for name, network in dict(student=model.backbone, teacher=model.teacher).items():
        network.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
    images = torch.randint(0, 256, (6, 3, 32, 32))
    data = model.data_preprocessor(dict(inputs=images, data_samples=samples()), training=True)
    model(**data, mode='loss')
    assert torch.equal(seen['student'], seen['teacher'])
    assert not torch.equal(seen['student'], images.float())


def test_the_teacher_is_fixed_and_no_part_of_the_model(model: nn.Module) -> None:
    model.eval().train().requires_grad_(True)
    assert not any(module.training for module in model.teacher.modules())
    assert not any(parameter.requires_grad for parameter in model.teacher.parameters())
    for names in (model.state_dict(), dict(model.named_parameters()), dict(model.named_modules())):
        assert not any('teacher' in name for name in names)
    copied = copy.deepcopy(model)  # as EMA's hook makes one
    assert copied.teacher is None and list(copied.state_dict()) == list(model.state_dict())
    model.double()
    model.loss(IMAGES.double(), samples())
    assert {parameter.dtype for parameter in model.teacher.parameters()} == {torch.float64}


def test_what_does_not_fit_is_refused(checkpoint: str, teacher: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'^model\.teacher_checkpoint is not set'):
        classifier().loss(IMAGES, samples())
    torch.save(teacher.backbone.state_dict(), path := tmp_path / 'other.pth')
    with pytest.raises(UserError, match=r'other\.pth does not fit the ImageClassifier it is for'):
        classifier(teacher_checkpoint=str(path)).init_weights()
    with pytest.raises(ValueError, match='teacher has 5 classes, but the head has num_classes 6'):
        classifier(teacher_checkpoint=checkpoint, head=dict(HEAD, num_classes=CLASSES + 1)).loss(IMAGES, samples())
    with pytest.raises(ValueError, match=r'has no distillation token.* set its dist_token to True'):
        classifier(backbone=dict(type='cpvt_mm.PyramidCPVT', arch='nano'))
    with pytest.raises(ValueError, match="out_type of the backbone is 'raw', but must be 'cls_token' or 'gap'"):
        classifier(backbone=dict(BACKBONE, out_type='raw'))
    with pytest.raises(ValueError, match='num_classes is 0'):
        DistilledHead(num_classes=0, in_channels=3)


def test_predicts_without_a_teacher() -> None:
    model = classifier().eval()
    predictions = model(IMAGES, mode='predict')
    assert model.teacher is None
    scores = torch.stack([sample.pred_score for sample in predictions])
    torch.testing.assert_close(scores, model(IMAGES).exp())


POOLED, TOKEN = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
FEATS = [(torch.zeros(4, 3), torch.zeros(4, 3)), (POOLED, TOKEN)]


def head(**options: object) -> DistilledHead:
    head = DistilledHead(num_classes=5, in_channels=3, **options)
    head.init_weights()
    return head


def test_predicts_the_mean_of_both_softmaxes() -> None:
    model = head()
    expected = (model.fc(POOLED).softmax(dim=1) + model.fc_dist(TOKEN).softmax(dim=1)) / 2
    torch.testing.assert_close(model(FEATS).exp(), expected)
    assert [sample.pred_label.item() for sample in model.predict(FEATS)] == expected.argmax(dim=1).tolist()


@pytest.mark.parametrize('mixed', [False, True])
def test_the_loss_is_the_papers(mixed: bool) -> None:
    model = head(loss=SMOOTH)
    labels, teacher_labels = torch.tensor([0, 4, 2, 2]), torch.tensor([1, 4, 2, 0])
    targets = F.one_hot(labels, 5).float()
    samples = [DataSample().set_gt_label(label) for label in labels]
    if mixed:
        targets = 0.7 * targets + 0.3 * targets.flip(0)
        samples = [DataSample().set_gt_score(target) for target in targets]
    targets = 0.9 * targets + 0.1 / 5
    log_p = model.fc(POOLED).log_softmax(dim=1)
    log_p_token = model.fc_dist(TOKEN).log_softmax(dim=1)
    losses = model.loss(FEATS, samples, teacher_labels)
    torch.testing.assert_close(losses['loss_cls'], -(targets * log_p).sum(dim=1).mean() / 2)
    torch.testing.assert_close(losses['loss_distill'], -log_p_token[range(4), teacher_labels].mean() / 2)
