"""The heads of plain mask transformers, which classify queries for mmdet's and mmseg's Mask2Former."""
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.structures import InstanceData
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from openmmlab_tools.libraries import require

require('mmdet', 'mmseg')

from mmdet import models, registry  # noqa: E402
from mmseg.models import Mask2FormerHead  # noqa: E402

from .losses import losses_at  # noqa: E402
from .predicting import Predicted  # noqa: E402


@MODELS.register_module()
class PlainMaskHead(models.Mask2FormerHead):
    """Classifies the queries of a plain mask transformer, in mmdet's Mask2Former.

    The losses compare masks in images without their padding.

    Args:
        in_channels: The width of the backbone.
        num_things_classes: Number of classes of objects. Defaults to 80.
        num_stuff_classes: Number of classes without objects. Defaults to 53.
        train_cfg: The assigner and the points of the losses, as in Mask2Former. Defaults to None: prediction only.
        test_cfg: As in Mask2Former. Defaults to None.
    """

    def __init__(self, in_channels: int, num_things_classes: int = 80, num_stuff_classes: int = 53,
                 train_cfg: dict[str, Any] | None = None, test_cfg: dict[str, Any] | None = None) -> None:
        super(models.AnchorFreeHead, self).__init__()  # as Mask2FormerHead does, whose constructor builds a decoder
        self.num_things_classes, self.num_stuff_classes = num_things_classes, num_stuff_classes
        self.num_classes, self.train_cfg, self.test_cfg = num_things_classes + num_stuff_classes, train_cfg, test_cfg
        if train_cfg:
            self.assigner = registry.TASK_UTILS.build(train_cfg['assigner'])
            for key in ('num_points', 'oversample_ratio', 'importance_sample_ratio'):
                setattr(self, key, train_cfg[key])
        self.cls_embed = nn.Linear(in_channels, self.num_classes + 1)
        self.class_weight = [1.] * self.num_classes + [0.1]
        build, entropy = registry.MODELS.build, 'mmdet.CrossEntropyLoss'
        self.loss_cls = build(dict(type=entropy, loss_weight=2., class_weight=self.class_weight))
        self.loss_mask = build(dict(type=entropy, use_sigmoid=True, loss_weight=5.))
        self.loss_dice = build(dict(type='mmdet.DiceLoss', naive_dice=True, eps=1., loss_weight=5.))

    def init_weights(self) -> None:
        """Leaves the weights as torch has set them."""

    def forward(self, x: Sequence[Predicted], batch_data_samples: object) -> tuple[list[Tensor], list[Tensor]]:
        """Returns logits of classes, `(B, Q, num_classes + 1)`, and of masks, `(B, Q, h, w)`, for each pair in `x`.

        The last class means no object.
        """
        self.num_queries = x[0][0].shape[1]
        return [self.cls_embed(queries) for queries, _ in x], [masks for _, masks in x]

    def loss_by_feat(self, all_cls_scores: Sequence[Tensor], all_mask_preds: Sequence[Tensor],
                     batch_gt_instances: list[InstanceData], batch_img_metas: list[dict[str, Any]]
                     ) -> dict[str, Tensor]:
        """Returns the losses of each layer, as Mask2Former names them; the last layer has the short names."""
        counted = [self.counted_pixels(instances.masks, meta)
                   for instances, meta in zip(batch_gt_instances, batch_img_metas, strict=True)]
        losses, last = dict[str, Tensor](), len(all_cls_scores) - 1
        for layer, (scores, masks) in enumerate(zip(all_cls_scores, all_mask_preds, strict=True)):
            prefix = '' if layer == last else f'd{layer}.'
            each = losses_at(counted, self, scores, masks, batch_gt_instances)
            losses.update(zip((f'{prefix}loss_{name}' for name in ('cls', 'mask', 'dice')), each, strict=True))
        return losses

    def counted_pixels(self, masks: Tensor, meta: dict[str, Any]) -> Tensor:
        """Returns the pixels that count in the losses of masks `(N, H, W)`: `(H, W)` in bool, False in padding."""
        height, width = meta['img_shape'][:2]
        counted = masks.new_zeros(masks.shape[1:], dtype=torch.bool)
        counted[:height, :width] = True
        return counted


@MODELS.register_module()
class PlainMaskSegHead(PlainMaskHead, Mask2FormerHead):
    """Classifies the queries of a plain mask transformer, in mmseg.

    The losses compare masks at labelled pixels only. This differs from mmseg's heads with mask queries and from the
    authors' code, where an unlabelled pixel is background in every mask.

    Args:
        in_channels: The width of the backbone.
        num_classes: Number of classes.
        ignore_index: The label of pixels without a class. Defaults to 255.
        train_cfg: The assigner and the points of the losses, as in Mask2Former. Defaults to None: prediction only.
    """

    def __init__(self, in_channels: int, num_classes: int, ignore_index: int = 255,
                 train_cfg: dict[str, Any] | None = None) -> None:
        super().__init__(in_channels, num_classes, 0, train_cfg)
        self.align_corners, self.out_channels, self.ignore_index = False, num_classes, ignore_index

    def counted_pixels(self, masks: Tensor, meta: dict[str, Any]) -> Tensor:
        """Returns the pixels that have a label, `(H, W)` in bool: each of them is in a mask."""
        return masks.any(0)

    def predict(self, x: Sequence[Predicted], batch_img_metas: list[dict[str, Any]], test_cfg: dict[str, Any]
                ) -> Tensor:
        """Returns the scores of classes, `(B, num_classes, H, W)`.

        In sliding windows they have the size of the window, which mmseg puts into `img_shape`.
        """
        hidden = ('pad_shape',) if test_cfg.get('mode') == 'slide' else ()  # it describes the whole image
        metas = [{key: value for key, value in meta.items() if key not in hidden} for meta in batch_img_metas]
        return super().predict(x, metas, test_cfg)
