"""Hard distillation of classifiers: a classifier that learns from a teacher, and its head. Both need mmpretrain."""
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from openmmlab_tools.checkpoints.fitting import load_weights
from openmmlab_tools.errors import UserError
from openmmlab_tools.libraries import require

require('mmpretrain')

from mmpretrain.models.classifiers import ImageClassifier  # noqa: E402
from mmpretrain.models.heads import ClsHead  # noqa: E402
from mmpretrain.registry import MODELS as MMPRETRAIN_MODELS  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """An image classifier trained by hard distillation (DeiT, arXiv 2012.12877, section 4).

    The distillation token learns the classes that a teacher predicts for the same batch, after mixing. The teacher is
    frozen, in eval mode, and no submodule: checkpoints contain the student only. Training, also a resumed one, loads
    the teacher from its own checkpoint. Testing needs no teacher.

    Args:
        backbone: The config of a backbone with a distillation token, such as `CPVT` with `dist_token`.
        head: The config of a `DistilledHead`.
        teacher: The config of an mmpretrain classifier, built in mmpretrain's scope. It gets the student's input.
        teacher_checkpoint: Path or URL of the teacher's weights; required for training. Defaults to None.
        train_cfg: mmpretrain's batch augmentations. Defaults to None.
        data_preprocessor: The config of a data preprocessor, or the module. Defaults to mmpretrain's.
        init_cfg: mmengine's initialisation config. Defaults to None.

    Raises a UserError when training begins, if `teacher_checkpoint` is None or does not fit.
    """

    def __init__(self, backbone: dict[str, Any], head: dict[str, Any], teacher: dict[str, Any],
                 teacher_checkpoint: str | None = None, train_cfg: dict[str, Any] | None = None,
                 data_preprocessor: dict[str, Any] | nn.Module | None = None,
                 init_cfg: dict[str, Any] | list[dict[str, Any]] | None = None) -> None:
        # mmpretrain names its own parts without a scope, so another current scope would hide them.
        if not isinstance(data_preprocessor, nn.Module):
            data_preprocessor = {'type': 'mmpretrain.ClsDataPreprocessor', **(data_preprocessor or {})}
        super().__init__(backbone, head=head, train_cfg=train_cfg, data_preprocessor=data_preprocessor,
                         init_cfg=init_cfg)
        self.teacher_config = teacher
        self.teacher_checkpoint = teacher_checkpoint
        self.__dict__['teacher'] = None

    def init_weights(self) -> None:
        """Initialises the student and loads the teacher; called when training begins."""
        super().init_weights()
        self._read_teacher()

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """Computes the losses of normalized images `(B, 3, H, W)`, see `DistilledHead.loss`; raises as the class."""
        if self.teacher is None:
            self._read_teacher()
        self.teacher.to(next(self.parameters()))  # it is no submodule, so it does not move with the student
        with torch.no_grad():
            scores = self.teacher(inputs, mode='tensor')
        if scores.shape[1] != self.head.num_classes:
            raise ValueError(f'The teacher has {scores.shape[1]} classes, but the head has num_classes '
                             f'{self.head.num_classes}: they must be equal.')
        return self.head.loss(self.extract_feat(inputs), data_samples, scores.argmax(dim=1))

    def _read_teacher(self) -> None:
        if self.teacher_checkpoint is None:
            raise UserError('model.teacher_checkpoint is not set, but distillation needs a trained teacher: '
                            "set it in the config, or with --cfg-options, to a file or URL of the teacher's weights.")
        teacher = MMPRETRAIN_MODELS.build({'_scope_': 'mmpretrain', **self.teacher_config})
        load_weights(teacher, self.teacher_checkpoint)
        # nn.Module.__setattr__ would register a submodule.
        self.__dict__['teacher'] = teacher.eval().requires_grad_(False)

    def __getstate__(self) -> dict[str, Any]:
        """Excludes the teacher from copies, such as EMA's, and from pickles."""
        return {**self.__dict__, 'teacher': None}


@MODELS.register_module()
class DistilledHead(ClsHead):
    """A linear classifier for the pooled features and one for the distillation token (DeiT, arXiv 2012.12877, sec. 4).

    The prediction is the mean of both softmaxes, as in the paper; DeiT's code averages the logits instead.

    Args:
        num_classes: Number of classes; the same for labels and teacher.
        in_channels: Channels of the features, and of the token.
        loss: The config of the loss against the labels. Defaults to `dict(type='mmpretrain.CrossEntropyLoss')`.
        init_cfg: mmengine's initialisation config. Defaults to DeiT's, a truncated normal of std 0.02.
    """

    def __init__(self, num_classes: int, in_channels: int,
                 loss: dict[str, Any] = dict(type='mmpretrain.CrossEntropyLoss'),
                 init_cfg: dict[str, Any] | list[dict[str, Any]] | None = dict(
                     type='TruncNormal', layer='Linear', std=0.02)) -> None:
        super().__init__(loss=loss, init_cfg=init_cfg)
        self.num_classes = num_classes
        self.fc = nn.Linear(in_channels, num_classes)
        self.fc_dist = nn.Linear(in_channels, num_classes)

    def logits(self, feats: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Returns both logits, `(B, num_classes)`, of the last of `feats`, two of `(B, in_channels)`."""
        if not isinstance(feats[-1], (list, tuple)):
            raise ValueError('DistilledHead needs pairs of pooled features and distillation token, but the backbone '
                             "gives single tensors: set its out_type to 'cls_token' or 'gap', and dist_token.")
        pooled, token = feats[-1]
        return self.fc(pooled), self.fc_dist(token)

    def forward(self, feats: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Returns the logarithm of the mean of both softmaxes, `(B, num_classes)`. For `feats` see `logits`."""
        log_probabilities = torch.stack([F.log_softmax(logits, dim=1) for logits in self.logits(feats)])
        return log_probabilities.logsumexp(dim=0) - math.log(2)

    def loss(self, feats: Sequence[tuple[Tensor, Tensor]], data_samples: list[DataSample], teacher_labels: Tensor
             ) -> dict[str, Tensor]:
        """Computes the two terms of equation 3: against the labels, and against the teacher's classes `(B,)`, int64."""
        logits, token_logits = self.logits(feats)
        if 'gt_score' in data_samples[0]:  # batch augmentations mix labels
            target = torch.stack([sample.gt_score for sample in data_samples])
        else:
            target = torch.cat([sample.gt_label for sample in data_samples])
        return dict(
            loss_cls=self.loss_module(logits, target, avg_factor=len(logits)) / 2,
            # The paper does not smooth the teacher's labels.
            loss_distill=F.cross_entropy(token_logits, teacher_labels) / 2)
