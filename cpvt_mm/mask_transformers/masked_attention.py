"""Masked attention in training: a query sees only the cells of its mask, with a probability that falls to 0."""
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from torch import Tensor

from cpvt_mm.encodings.base import PositionEncodings
from cpvt_mm.registry import HOOKS
from cpvt_mm.tokens.grid import Grid


class MaskedEncodings(PositionEncodings):
    """Position encodings that also mask attention: tokens attend where masks `(n, 1, N, N)` are True.

    There is one mask for each group of images.
    """

    def __init__(self, encodings: PositionEncodings, masks: Sequence[Tensor]) -> None:
        super().__init__(list[Any](encodings))
        self.masks, self.act_in_attention = masks, True

    def attention(self, *args: Any) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None] | None]:
        q, k, v, biases = super().attention(*args)
        return q, k, v, [mask if bias is None else bias.masked_fill(~mask, -math.inf)
                         for bias, mask in zip(biases or [None] * len(self.masks), self.masks, strict=True)]


def attention_mask(masks: Tensor, grid: Grid, prob: float) -> Tensor:
    """Returns to which tokens each token attends, `(n, 1, N, N)` in bool.

    With the probability `prob`, a query attends only to the cells of its mask, `(n, Q, h, w)` with logits above 0, and
    to the extra tokens. Other tokens attend to all tokens.
    """
    number, total = masks.shape[1], grid.extra + grid.size
    shrunk = F.interpolate(masks.detach(), (grid.height, grid.width), mode='bilinear').flatten(2)
    seen = torch.ones(len(masks), 1, total, total, dtype=torch.bool, device=masks.device)
    seen[:, 0, grid.extra - number:grid.extra, grid.extra:] = (shrunk > 0) | (
        torch.rand(*shrunk.shape[:2], 1, device=masks.device) > prob)
    return seen


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Masks the attention of a `PlainMaskTransformer` at the start of training, with a falling probability.

    The probability of each block falls from 1 to 0 within a sixth of the training: first in the first block with
    queries, and last in the last block, from two thirds of the training on. This is the schedule of the authors'
    configs (EoMT, arXiv 2503.19108, section 3.3).
    """

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: object = None) -> None:
        probs = getattr(runner.model, 'module', runner.model).backbone.mask_probs
        for index in range(len(probs)):
            end = (2 + 3 * index / max(len(probs) - 1, 1)) / 6  # as the authors' configs have it
            probs[index] = min(max(6 * (end - runner.iter / runner.max_iters), 0.), 1.)**0.9
