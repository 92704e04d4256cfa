"""A model of mmdet that merges the boxes of several views of an image."""
from collections.abc import Sequence
from itertools import chain
from typing import Any

from mmdet.models import DetTTAModel

from openmmlab_runs.registry import MODELS


@MODELS.register_module()
class BoxTTAModel(DetTTAModel):
    """mmdet's model, which also takes predictions with masks, and leaves the masks out."""

    def merge_preds(self, data_samples_list: Sequence[Sequence[Any]]) -> list[Any]:
        for sample in chain.from_iterable(data_samples_list):
            sample.pred_instances.pop('masks', None)
        return super().merge_preds(data_samples_list)
