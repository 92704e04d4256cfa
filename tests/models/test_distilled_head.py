import pytest
import torch
import torch.nn.functional as F

from cpvt_mm.stack import require

require('mmpretrain')

from mmpretrain.structures import DataSample  # noqa: E402

from cpvt_mm.models.distillation import DistilledHead  # noqa: E402

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
    samples = model.predict(FEATS)
    torch.testing.assert_close(torch.stack([sample.pred_score for sample in samples]), expected)
    assert [sample.pred_label.item() for sample in samples] == expected.argmax(dim=1).tolist()


def test_a_certain_classifier_has_half_of_the_say() -> None:
    # It would have all, were logits averaged.
    model = head()
    for layer, bias in ((model.fc, [4., 3.9, 0, 0, 0]), (model.fc_dist, [0., 40., 0, 0, 0])):
        torch.nn.init.zeros_(layer.weight)
        layer.bias.data = torch.tensor(bias)
    assert model(FEATS).exp()[0].tolist() == pytest.approx([0.256, 0.731, 0.005, 0.005, 0.005], abs=1e-2)


@pytest.mark.parametrize('loss, mixed', [
    (dict(type='mmpretrain.CrossEntropyLoss'), False),
    (dict(type='mmpretrain.LabelSmoothLoss', label_smooth_val=0.1, mode='original'), False),
    (dict(type='mmpretrain.LabelSmoothLoss', label_smooth_val=0.1, mode='original'), True),
])
def test_the_loss_is_the_papers(loss: dict, mixed: bool) -> None:
    model = head(loss=loss)
    labels, teacher_labels = torch.tensor([0, 4, 2, 2]), torch.tensor([1, 4, 2, 0])
    targets = F.one_hot(labels, 5).float()
    samples = [DataSample().set_gt_label(label) for label in labels]
    if mixed:
        targets = 0.7 * targets + 0.3 * targets.flip(0)
        samples = [DataSample().set_gt_score(target) for target in targets]
    if 'label_smooth_val' in loss:
        targets = 0.9 * targets + 0.1 / 5
    log_p = model.fc(POOLED).log_softmax(dim=1)
    log_p_token = model.fc_dist(TOKEN).log_softmax(dim=1)
    losses = model.loss(FEATS, samples, teacher_labels)
    torch.testing.assert_close(losses['loss_cls'], -(targets * log_p).sum(dim=1).mean() / 2)
    torch.testing.assert_close(losses['loss_distill'], -log_p_token[range(4), teacher_labels].mean() / 2)


def test_single_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"DistilledHead needs pairs .* out_type to 'cls_token' or 'gap'"):
        head()([torch.zeros(2, 3)])
    with pytest.raises(ValueError, match='num_classes is 0'):
        DistilledHead(num_classes=0, in_channels=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden_dim'"):
        DistilledHead(num_classes=5, in_channels=3, hidden_dim=4)
