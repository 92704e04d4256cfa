"""Finds the largest batch whose training step fits into the memory of a GPU."""
import copy
from collections.abc import Callable

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS

from .errors import explain
from .registry import in_scope

MOST = 64  # a larger batch leaves few steps
SHARE = 0.8  # of the free memory: images with more objects, and averaged weights, need more than those measured


def largest_batch(fits: Callable[[int], bool], most: int = MOST) -> int:
    """Returns the largest power of two, up to `most`, that fits, after which it asks for no larger one; 0 if 1 does not
    fit.
    """
    batch = 0
    while max(1, 2 * batch) <= most and fits(max(1, 2 * batch)):
        batch = max(1, 2 * batch)
    return batch


def choose_batch(cfg: Config, default: int) -> tuple[int, str]:
    """Returns a batch size for a config, and a sentence that says why: measured on a GPU, else the default."""
    if not torch.cuda.is_available():
        return default, f'The batch size is {default}, since there is no GPU whose memory could be measured.'
    name = torch.cuda.get_device_name()
    try:
        batch = _measure(cfg)
    except Exception as error:  # models and transforms can raise any error
        return default, f'The batch size is {default}, since none can be measured on {name} ({explain(error)}).'
    if not batch:
        return 1, f'Not even one image fits into {SHARE:.0%} of the free memory of {name}: give a smaller --scale.'
    return batch, (f'The batch size is {batch}, the largest power of two up to {MOST} that fits into {SHARE:.0%} of '
                   f'the free memory of {name}: train with --auto-scale-lr, which scales the learning rate to it.')


def _measure(cfg: Config, device: str = 'cuda') -> int:
    """Trains a model with random weights for a step with each batch that it tries."""
    allowed = SHARE * torch.cuda.mem_get_info()[0]
    with in_scope(cfg.default_scope):
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
        model = MODELS.build(cfg.model).to(device).train()
        optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
        samples = [dataset[index] for index in range(min(MOST, len(dataset)))]

        def fits(batch: int) -> bool:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:  # a copy, because models change the samples
                model.train_step(pseudo_collate(copy.deepcopy(samples[:batch])), optim_wrapper)
            except torch.cuda.OutOfMemoryError:
                return False
            return torch.cuda.max_memory_reserved() <= allowed

        return largest_batch(fits, len(samples))
