"""Nearest neighbours of image patches before and after distillation, and the command that draws them."""
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpvt_mm.distilling import Distillation
from lab import neighbours
from lab.neighbours import agreement, cut_patches, find_neighbours, nearest, neighbours_figure, read_patches
from tests.helpers import refusal
from tests.pictures import is_drawn


def test_patches_are_squares_of_their_images() -> None:
    images = [torch.arange(3 * height * width).reshape(3, height, width) for height, width in ((130, 256), (300, 128))]
    patches, numbers = cut_patches(images)
    assert numbers.tolist() == [0, 0, 1, 1]
    assert torch.equal(patches[1], images[0][:, :128, 128:]) and torch.equal(patches[3], images[1][:, 128:256, :128])


@given(st.integers(0, 2**31), st.integers(3, 6), st.integers(1, 5))
def test_neighbours_are_of_other_images_and_do_not_depend_on_the_scale_of_a_channel(seed: int, images: int, count: int
                                                                                   ) -> None:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.arange(images).repeat_interleave(3)
    features = torch.randn(len(numbers), 8, generator=generator, dtype=torch.float64)
    indices = nearest(features, numbers, count)
    assert (numbers[indices] != numbers[:, None]).all()
    assert torch.equal(nearest(features * torch.logspace(-2, 2, 8) - 3, numbers, count), indices)
    assert agreement(indices, indices.flip(1)) == 1
    twin = features.clone()
    twin[3] = features[0]
    assert nearest(twin, numbers, count)[0, 0] == 3


def test_agreement_counts_common_neighbours() -> None:
    assert agreement(torch.tensor([[1, 2], [5, 6]]), torch.tensor([[2, 3], [7, 8]])) == 0.25


@pytest.mark.usefixtures('random_teacher')
def test_neighbours_of_three_models_are_drawn(pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(neighbours, 'COMPARED', 3)
    model = Distillation('pyramid-cpvt-nano', 'lite0')
    patches, numbers = read_patches(pictures)
    by_model = find_neighbours(model, patches, numbers)
    assert len(patches) == 10 and list(by_model) == ['random weights', 'distilled', 'teacher']
    figure = neighbours_figure(patches, numbers, by_model)
    figure.savefig(tmp_path / 'figure.png')
    assert is_drawn(tmp_path / 'figure.png') and len(figure.axes) == neighbours.QUERIES * 10
    (pictures / '0.png').unlink()
    assert 'has 9 images of at least 128 x 128 pixels' in refusal(read_patches, pictures)
