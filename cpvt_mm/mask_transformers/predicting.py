"""How queries predict masks: as products with the upscaled patches, at the size of the batch."""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.models.neck import LayerNorm2d
from cpvt_mm.tokens.grid import to_map
from cpvt_mm.tokens.packing import Layout, Packing
from cpvt_mm.tokens.tracing import has_size

Predicted = tuple[Tensor, Tensor]  # normed queries (B, Q, C), and the logits of their masks (B, Q, h, w)


class MaskPredictor(nn.Module):
    """Learnt queries, and their masks: products of the queries after an MLP with the upscaled patches.

    This is the mask module of EoMT (arXiv 2503.19108, section 3.2).
    """

    def __init__(self, dims: int, patch_size: int, num_queries: int) -> None:
        super().__init__()
        doublings = max(1, patch_size.bit_length() - 3)  # to stride 4 if patches have 16 pixels
        self.scale = 2**doublings
        self.queries = nn.Parameter(torch.randn(1, num_queries, dims))
        self.embed = nn.Sequential(
            nn.Linear(dims, dims), nn.GELU(), nn.Linear(dims, dims), nn.GELU(), nn.Linear(dims, dims))
        self.upscale = nn.Sequential(*(nn.Sequential(
            nn.ConvTranspose2d(dims, dims, 2, stride=2), nn.GELU(),
            nn.Conv2d(dims, dims, 3, padding=1, groups=dims, bias=False), LayerNorm2d(dims)) for _ in range(doublings)))

    def forward(self, x: Tensor, layout: Layout) -> list[Predicted]:
        """Returns queries and masks for each group of images; the queries are the last of the extra tokens."""
        predicted, number = [], self.queries.shape[1]
        for tokens, grid in zip(layout.split(x), layout.grids, strict=True):
            queries, cells = tokens[:, grid.extra - number:grid.extra], self.upscale(to_map(grid.cells(tokens), grid))
            predicted.append((queries, torch.einsum('bqc,bchw->bqhw', self.embed(queries), cells)))
        return predicted


def extend(masks: Tensor, height: int, width: int) -> Tensor:
    """Crops masks `(B, Q, h, w)` to a height and width, or repeats their last row and column, without a gradient."""
    masks = masks[:, :, :height, :width]
    if has_size(masks, slice(2, None), (height, width)):
        return masks
    extended = F.pad(masks.detach(), (0, width - masks.shape[3], 0, height - masks.shape[2]), mode='replicate')
    extended[:, :, :masks.shape[2], :masks.shape[3]] = masks
    return extended


def in_batch(predicted: Sequence[Predicted], layout: Layout) -> Predicted:
    """Returns the queries and masks of all images, in the order of the batch. All masks have the size of the largest
    image.
    """
    if not isinstance(layout, Packing):
        return predicted[0]
    height, width = (max(masks.shape[dim] for _, masks in predicted) for dim in (2, 3))
    queries, masks = zip(*((queries, extend(masks, height, width)) for queries, masks in predicted), strict=True)
    order = torch.tensor([image for group in layout.groups for image in group.images]).argsort().to(layout.device)
    return torch.cat(queries)[order], torch.cat(masks)[order]
