"""Writes tests/golden/dino.pth: narrow models of timm and transformers with random weights, and their tokens.

It needs timm 1.0.20 and transformers 4.56 or newer: `python -m lab dino_golden`.
"""
from pathlib import Path

import torch

from tests.zoo.dino import LIBRARIES, NARROW, PATCH_SIZES, reference

ROOT = Path(__file__).parents[2]


def main() -> None:
    torch.manual_seed(0)
    # The first has the size of the tables.
    images = {patch: [torch.randn(1, 3, rows * patch, columns * patch) for rows, columns in ((4, 4), (3, 5), (7, 2))]
              for patch in set(PATCH_SIZES.values())}
    models = {}
    for library in LIBRARIES:
        for kind, patch in PATCH_SIZES.items():
            dims, depth, heads = NARROW.values()
            # timm's giant has another MLP ratio; all models here have the ratio 4.
            model, run = reference(library, kind, dims, depth, heads, 4 * patch)
            models[library, kind] = dict(weights=model.state_dict(), tokens=[run(image) for image in images[patch]])
    torch.save(dict(images=images, models=models), ROOT / 'tests/golden/dino.pth')
