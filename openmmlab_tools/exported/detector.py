"""A model of mmdet whose predictions come from an exported file."""
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmdet.models import BaseDetector
from mmengine.structures import InstanceData
from torch import Tensor, nn

from openmmlab_tools.errors import UserError
from openmmlab_tools.registry import MODELS

from .opening import open_file

MASK_THRESHOLD = 0.5  # of probabilities, as in mmdet's configs


@MODELS.register_module()
class ExportedDetector(BaseDetector):
    """Predicts boxes for each image like mmdet's detectors, and masks if the file returns them.

    Args:
        file: The exported file.
        data_preprocessor: The `data_preprocessor` of the exported model's config.
    """

    def __init__(self, file: str, data_preprocessor: dict[str, Any] | None = None) -> None:
        super().__init__(data_preprocessor)
        loaded, digest = open_file(Path(file))
        self.run, self.file, self.num_classes = loaded.run, file, len(json.loads(loaded.description['classes']))
        self.register_buffer('digest', digest.clone())
        if 'masks' in loaded.outputs:
            self.mask_head = nn.Identity()  # shows mmdet, and checks of metrics, that the model predicts masks

    @torch.no_grad()
    def predict(self, batch_inputs: Tensor, batch_data_samples: Sequence[Any], rescale: bool = True) -> list[Any]:
        """Returns the data samples with `pred_instances`, in pixels of the original images if `rescale` is set."""
        dets, labels, images, *masks = (x.to(batch_inputs.device) for x in self.run(batch_inputs.cpu()))
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.num_classes:
            raise UserError(f'{self.file} finds class {labels.max()}, but its last class has the number '
                            f'{self.num_classes - 1}: export the model again.')
        results = []
        for index, sample in enumerate(batch_data_samples):
            of_image = images == index
            boxes, scores = dets[of_image].split([4, 1], dim=1)
            height, width = sample.img_shape[:2]
            boxes = torch.minimum(boxes.clamp(min=0), boxes.new_tensor([width, height, width, height]))
            instances = InstanceData(bboxes=boxes, scores=scores[:, 0], labels=labels[of_image])
            if masks:
                instances.masks = masks[0][of_image]
            instances = instances[(boxes[:, 2:] > boxes[:, :2]).all(1)]  # not those in the padding
            size = height, width
            if rescale:
                instances.bboxes = instances.bboxes / instances.bboxes.new_tensor(sample.scale_factor).repeat(2)
                size = sample.ori_shape[:2]
            if masks:
                instances.masks = paste(instances.masks, instances.bboxes, size)
            results.append(instances)
        return self.add_pred_to_datasample(batch_data_samples, results)

    def loss(self, batch_inputs: Tensor, batch_data_samples: Sequence[Any]) -> dict[str, Tensor]:
        raise NotImplementedError('an exported file cannot be trained')

    def _forward(self, batch_inputs: Tensor, batch_data_samples: Sequence[Any] | None = None) -> list[Tensor]:
        return self.run(batch_inputs.cpu())

    def extract_feat(self, batch_inputs: Tensor) -> list[Tensor]:
        raise NotImplementedError('an exported detector has no features')


def paste(masks: Tensor, boxes: Tensor, size: Sequence[int]) -> Tensor:
    """Pastes masks into an image: probabilities `(N, h, w)` on a grid over each box `(N, 4)` -> `(N, H, W)`, bool.

    A pixel is in a mask if the probability at its centre, interpolated linearly, is at least `MASK_THRESHOLD`.
    """
    height, width = size
    pasted = masks.new_zeros(len(masks), height, width, dtype=torch.bool)
    for mask, (left, top, right, bottom), whole in zip(masks, boxes.tolist(), pasted, strict=True):
        rows, columns = (slice(math.floor(low), min(math.ceil(high), end)) for low, high, end in (
            (top, bottom, height), (left, right, width)))
        y, x = (2 * (torch.arange(span.start, span.stop, device=masks.device) + 0.5 - low) / (high - low) - 1
                for span, low, high in ((rows, top, bottom), (columns, left, right)))
        grid = torch.stack(torch.broadcast_tensors(x, y[:, None]), dim=-1)
        whole[rows, columns] = F.grid_sample(mask[None, None], grid[None], align_corners=False)[0, 0] >= MASK_THRESHOLD
    return pasted
