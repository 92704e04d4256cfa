"""Images that a model takes from a batch know the sizes and the clip length that a data preprocessor told."""
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpvt_mm.models.batches import BatchInfo, Told, told_about

SIZES = [(5, 6), (4, 3)]
NOTHING = Told(lost=True)


def batch_of(clips: Tensor, window: int | None = None) -> Tensor:
    """A copy of the clips that knows their sizes."""
    return BatchInfo.of_clips(clips, SIZES[:len(clips)], window).attach(clips.clone())


@pytest.fixture
def clips() -> Tensor:
    return torch.randn(2, 3, 1, 5, 6)


def test_images_know_their_sizes() -> None:
    images = torch.randn(2, 3, 5, 6)
    BatchInfo.of_images(images, SIZES).attach(images)
    assert told_about(images) == told_about(images[:]) == Told(tuple(SIZES))


def test_all_frames_know_the_length_of_a_clip_and_their_sizes(clips: Tensor) -> None:
    batch = batch_of(clips)
    expected = Told(((5, 6),) * 3 + ((4, 3),) * 3, 3)
    for images in (batch.flatten(0, 1), batch.reshape(-1, 1, 5, 6), batch.view(6, 1, 5, 6),
                   batch.flatten(0, 1).contiguous()):
        assert told_about(images) == expected
        assert torch.equal(images, clips.flatten(0, 1))


@pytest.mark.parametrize('take', [lambda batch: batch[0], lambda batch: batch.squeeze(0)])
def test_the_frames_of_a_single_clip(take: Callable[[Tensor], Tensor], clips: Tensor) -> None:
    assert told_about(take(batch_of(clips[:1]))) == Told(((5, 6),) * 3, 3)


@pytest.mark.parametrize('index', [(slice(None), 1), (torch.arange(2), torch.tensor([2, 0]))])
def test_one_frame_of_each_clip_is_no_neighbour_of_another(index: tuple[object, ...], clips: Tensor) -> None:
    images = batch_of(clips)[index]
    assert told_about(images) == Told(tuple(SIZES), 1)
    assert type(images) is Tensor and torch.equal(images, clips[index])


def test_windows_fill_their_batch(clips: Tensor) -> None:
    assert told_about(batch_of(clips).flatten(0, 1)[..., :4]) == Told()


def test_other_images_know_nothing(clips: Tensor) -> None:
    batch = batch_of(clips)
    for images in (batch.flatten(0, 1)[:4], batch[0, :2], batch[[1, 0]].flatten(0, 1), batch[0, [0, 1]],
                   batch.transpose(0, 1).flatten(0, 1), (batch + 1)[0], batch.mean(dim=1), torch.zeros(6, 1, 5, 6),
                   batch_of(clips[:, :2])[1]):
        assert told_about(images) == NOTHING
    assert told_about(torch.zeros(1, 1, 5, 6)) == Told()  # a single image fills its batch


def test_a_window_of_frames_is_at_most_as_long_as_the_video(clips: Tensor) -> None:
    assert told_about(batch_of(clips[:1], window=2)[0]).frames == 2
    assert told_about(batch_of(clips[:1], window=9)[0]).frames == 3
    assert told_about(batch_of(clips, window=9).flatten(0, 1)).frames == 3
    with pytest.raises(ValueError, match='window is 2, but must divide the 3 frames of each of the 2 videos'):
        batch_of(clips, window=2)
