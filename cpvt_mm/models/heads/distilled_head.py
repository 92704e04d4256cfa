"""A head with two classifiers: one for the image's features, one for the distillation token."""
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from cpvt_mm.stack import require

from ..arguments import check_keywords, check_positive

require('mmpretrain')

from mmpretrain.models.heads import ClsHead  # noqa: E402
from mmpretrain.structures import DataSample  # noqa: E402


@MODELS.register_module()
class DistilledHead(ClsHead):
    """A linear classifier for the pooled features and one for the distillation token (DeiT, arXiv 2012.12877, sec. 4).

    The prediction is the mean of both softmaxes, as in the paper. DeiT's code and mmpretrain's DeiTClsHead average the
    logits instead.

    Args:
        num_classes: Number of classes; the same for labels and teacher.
        in_channels: Channels of the features, and of the token.
        loss: The config of the loss against the labels. Defaults to `dict(type='mmpretrain.CrossEntropyLoss')`.
        init_cfg: mmengine's initialisation config. Defaults to DeiT's, a truncated normal of std 0.02.

    Raises:
        ValueError: If a number is not positive.
        TypeError: If an argument's name is unknown.
    """

    @check_keywords
    def __init__(self, num_classes: int, in_channels: int,
                 loss: dict[str, Any] = dict(type='mmpretrain.CrossEntropyLoss'),
                 init_cfg: dict[str, Any] | list[dict[str, Any]] | None = dict(
                     type='TruncNormal', layer='Linear', std=0.02)) -> None:
        super().__init__(loss=loss, init_cfg=init_cfg)
        check_positive('num_classes', num_classes)
        check_positive('in_channels', in_channels)
        self.num_classes = num_classes
        self.fc = nn.Linear(in_channels, num_classes)
        self.fc_dist = nn.Linear(in_channels, num_classes)

    def logits(self, feats: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Computes the logits of both classifiers.

        Args:
            feats: The last item is a pair of pooled features and distillation token, each `(B, in_channels)`.

        Returns:
            Two tensors `(B, num_classes)`.

        Raises:
            ValueError: If the last item is a single tensor.
        """
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
        """Computes the two terms of the paper's equation 3, each with its factor of 1/2.

        Args:
            feats: See `logits`.
            data_samples: The samples with the labels.
            teacher_labels: The classes that the teacher predicts, `(B,)`, int64.

        Returns:
            `loss_cls`, against the labels, and `loss_distill`, against `teacher_labels`.
        """
        logits, token_logits = self.logits(feats)
        return dict(
            loss_cls=self._get_loss(logits, data_samples)['loss'] / 2,
            # The paper does not smooth the teacher's labels.
            loss_distill=F.cross_entropy(token_logits, teacher_labels) / 2)
