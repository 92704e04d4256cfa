"""A model of mmseg whose predictions come from an exported file."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmseg.models import BaseSegmentor
from torch import Tensor

from openmmlab_tools.registry import MODELS

from .opening import open_file


@MODELS.register_module()
class ExportedSegmentor(BaseSegmentor):
    """Predicts label maps as mmseg's segmentors do. It computes whole images, also if the config has windows ('slide').

    Args:
        file: The exported file.
        data_preprocessor: The `data_preprocessor` of the exported model's config.
    """
    align_corners = False  # of logits that are resized to the original image

    def __init__(self, file: str, data_preprocessor: dict[str, Any] | None = None) -> None:
        super().__init__(data_preprocessor)
        loaded, digest = open_file(Path(file))
        self.run = loaded.run
        self.register_buffer('digest', digest.clone())

    @torch.no_grad()
    def encode_decode(self, inputs: Tensor, batch_data_samples: Sequence[Any] | None = None) -> Tensor:
        """Returns logits: `(B, 3, H, W)` -> `(B, classes, H, W)`."""
        return self.run(inputs.cpu())[0].to(inputs.device)

    def predict(self, inputs: Tensor, data_samples: Sequence[Any] | None = None) -> list[Any]:
        return self.postprocess_result(self.encode_decode(inputs), data_samples)

    def _forward(self, inputs: Tensor, data_samples: Sequence[Any] | None = None) -> Tensor:
        return self.encode_decode(inputs)

    def loss(self, inputs: Tensor, data_samples: Sequence[Any]) -> dict[str, Tensor]:
        raise NotImplementedError('an exported file cannot be trained')

    def extract_feat(self, inputs: Tensor) -> list[Tensor]:
        raise NotImplementedError('an exported segmentor has no features')
