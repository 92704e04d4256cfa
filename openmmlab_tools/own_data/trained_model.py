"""A new config for a model that is trained already: it gets images as before, and learns more slowly."""
from collections.abc import Mapping
from typing import Any, TypeGuard

from mmengine.config import Config

from openmmlab_tools.checkpoints.fitting import renamed
from openmmlab_tools.checkpoints.loading import build_model
from openmmlab_tools.checkpoints.reading import open_checkpoint
from openmmlab_tools.config_walk import walk
from openmmlab_tools.readers.form.dataset import LabelledData

from .image_sizes import Fit, boxes_of, crop_for

SLOWER = 10  # divides the learning rate if the whole model starts from trained weights, not only the backbone
VALIDATE_FIRST = dict(validate_first=dict(type='openmmlab_tools.ValidateFirstHook'))  # for `default_hooks`


def is_trained(cfg: Config, checkpoint: str) -> bool:
    """Returns whether a checkpoint fills more of a config's model than the backbone, such as a neck or heads."""
    model = build_model(cfg)
    given = renamed(model, open_checkpoint(checkpoint).state_dict)
    return any(getattr(given.get(name), 'shape', None) == tensor.shape for name, tensor in model.state_dict().items()
               if '.backbone.' not in f'.{name}')


def slow_down(cfg: Config) -> str:
    """Divides the learning rate of a config by `SLOWER`, in place. Returns a sentence for readers."""
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer') or {}
    rate = optimizer.get('lr')
    if not isinstance(rate, int | float):
        return 'The learning rate is not changed, because optim_wrapper.optimizer.lr is not set.'
    optimizer['lr'] = float(f'{rate / SLOWER:.6g}')
    return f'The learning rate is {optimizer["lr"]:g}, a tenth of {rate:g}.'


def sizes_as_trained(cfg: Config, data: LabelledData, limit: int) -> tuple[Fit, str] | None:
    """Returns the sizes that images have in the tests of a trained model's config, and a clause for readers.

    Returns None if its test pipeline has no Resize with a scale or a factor, or crops for label maps that are not
    square. `limit` is the largest crop of images that keep their sizes.
    """
    resize = next((part for _, part in walk((cfg.get('test_dataloader') or {}).get('dataset'))
                   if str(part.get('type')).rpartition('.')[2] == 'Resize'), None)
    if resize is None:
        return None
    scale, factor = resize.get('scale'), resize.get('scale_factor')
    if _is_pair(scale):
        width, height = scale
        crop = _crop_of_label_maps(cfg.model, (height, width)) if data.is_semantic else 0
        if crop is None:
            return None
        return Fit((width, height), crop, boxes_of(data, (width, height))), f'scaled to {width} x {height} pixels'
    if isinstance(factor, int | float) and not data.is_semantic:
        boxes = boxes_of(data) * (factor, 1)
        return Fit((0, 0), crop_for(data, limit, factor), boxes, factor=float(factor)), f'{factor:g} times their size'
    return None


def _is_pair(scale: Any) -> TypeGuard[tuple[int, int]]:
    return isinstance(scale, list | tuple) and len(scale) == 2 and all(isinstance(side, int) for side in scale)


def _crop_of_label_maps(model: Mapping[str, Any], size: tuple[int, int]) -> int | None:
    """Returns the side of the crops that a segmentor is trained with; 0 for whole images, None for other crops."""
    crop = tuple((model.get('data_preprocessor') or {}).get('size') or size)
    return 0 if crop == size else crop[0] if len({*crop}) == 1 else None
