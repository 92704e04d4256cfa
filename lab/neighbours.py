"""Nearest neighbours of image patches in the features of a student before and after distillation, and of its teacher.
"""
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cpvt_mm.distilling import Distillation, read_images
from openmmlab_tools.errors import UserError

SIDE = 128  # of a patch in pixels
QUERIES, SHOWN = 10, 3  # rows of the figure, and neighbours of a model in a row
COMPARED = 10  # neighbours in `agreement`


def cut_patches(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Cuts images `(3, H, W)` into squares of `SIDE` pixels; returns the squares `(N, 3, SIDE, SIDE)`, and the number
    of the image of each, `(N,)`. What is left at the right and at the bottom is not used.
    """
    patches = [image.unfold(1, SIDE, SIDE).unfold(2, SIDE, SIDE).permute(1, 2, 0, 3, 4).flatten(0, 1)
               for image in images]
    numbers = torch.arange(len(images)).repeat_interleave(torch.tensor([len(squares) for squares in patches]))
    return torch.cat(patches), numbers


def read_patches(folder: Path) -> tuple[Tensor, Tensor]:
    """Reads the patches of the images in a folder, see `cut_patches`. Raises a UserError if fewer than `QUERIES` images
    are large enough for a patch.
    """
    images = [image for image in read_images([str(folder)]).values() if min(image.shape[1:]) >= SIDE]
    if len(images) < QUERIES:
        raise UserError(f'{folder} has {len(images)} images of at least {SIDE} x {SIDE} pixels, but the figure needs '
                        f'{QUERIES}: choose another folder of images.')
    return cut_patches(images)


def nearest(features: Tensor, numbers: Tensor, count: int) -> Tensor:
    """Returns for each patch the `count` nearest patches in other images, `(N, count)`, the nearest first.

    The distance is the cosine of features `(N, C)`, after each channel was scaled to mean 0 and variance 1.
    """
    normal = (features - features.mean(0)) / features.std(0).clamp(min=1e-6)
    normal = normal / normal.norm(dim=1, keepdim=True).clamp(min=1e-6)
    similarity = normal @ normal.T
    similarity[numbers[:, None] == numbers] = -torch.inf
    return similarity.topk(count, dim=1).indices


def agreement(first: Tensor, second: Tensor) -> float:
    """Returns the mean share of neighbours `(N, count)` that two models have in common, from 0 to 1."""
    return float((first[:, :, None] == second[:, None]).any(2).float().mean())


@torch.no_grad()
def mean_features(model: Callable[[Tensor], Sequence[Tensor]], patches: Tensor) -> Tensor:
    """Returns the mean over positions of the last map that a model returns for each patch, `(N, C)`."""
    return torch.cat([model(batch)[-1].mean((2, 3)) for batch in patches.split(64)])


def find_neighbours(model: Distillation, patches: Tensor, numbers: Tensor) -> dict[str, Tensor]:
    """Returns the `COMPARED` nearest patches of each patch, see `nearest`, for a student before and after distillation,
    and for its teacher.
    """
    torch.manual_seed(0)
    before = Distillation(model.student_name, model.teacher_name)
    models = {'random weights': before.eval(), 'distilled': model.eval(), 'teacher': model.teacher.maps}
    return {name: nearest(mean_features(maps_of, patches), numbers, COMPARED) for name, maps_of in models.items()}


def neighbours_figure(patches: Tensor, numbers: Tensor, neighbours: Mapping[str, Tensor]) -> Figure:
    """Draws a row for each of `QUERIES` patches, each of another image: the patch, and its neighbours by model."""
    columns = 1 + SHOWN * len(neighbours)
    figure = Figure(figsize=(columns, QUERIES + 0.3), layout='constrained')
    panels = figure.subplots(QUERIES, columns)
    chosen = torch.linspace(0, int(numbers.max()), QUERIES).long()
    for row, number in zip(panels, chosen, strict=True):
        of_image = (numbers == number).nonzero()[:, 0]
        query = int(of_image[len(of_image) // 2])
        shown = [query, *(int(index) for indices in neighbours.values() for index in indices[query, :SHOWN])]
        for axes, index in zip(row, shown, strict=True):
            axes.imshow(patches[index].permute(1, 2, 0).numpy())
            axes.set(xticks=[], yticks=[])
    panels[0][0].set_title('patch', fontsize='small')
    for group, name in enumerate(neighbours):
        panels[0][1 + group * SHOWN].set_title(name, fontsize='small', loc='left')
    return figure
