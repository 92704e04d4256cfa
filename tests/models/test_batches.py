"""Images that a model takes from a batch of clips tell the length of their clip and their sizes."""
import pytest
import torch
from cpvt_mm.models.clips import ClipBatch, num_frames_of
from cpvt_mm.models.valid_sizes import valid_sizes_of
from torch import Tensor

SIZES = [(5, 6), (4, 3)]


@pytest.fixture
def clips() -> Tensor:
    return torch.randn(2, 3, 1, 5, 6)


def told(images: Tensor) -> tuple[int | None, list[tuple[int, int]] | None]:
    return num_frames_of(images), valid_sizes_of(images)


def test_all_frames_tell_the_length_of_a_clip_and_their_sizes(clips: Tensor) -> None:
    batch = ClipBatch.wrap(clips, SIZES)
    expected = 3, [(5, 6)] * 3 + [(4, 3)] * 3
    for images in (batch.flatten(0, 1), batch.reshape(-1, 1, 5, 6), batch.view(6, 1, 5, 6),
                   batch.flatten(0, 1).contiguous()):
        assert type(images) is Tensor and told(images) == expected
        assert torch.equal(images, clips.flatten(0, 1))


@pytest.mark.parametrize('take', [lambda batch: batch[0], lambda batch: batch.squeeze(0)])
def test_the_frames_of_a_single_clip(take: object, clips: Tensor) -> None:
    assert told(take(ClipBatch.wrap(clips[:1], SIZES[:1]))) == (3, [(5, 6)] * 3)


def test_one_frame_of_each_clip_is_no_neighbour_of_another(clips: Tensor) -> None:
    batch = ClipBatch.wrap(clips, SIZES)
    for frames in (batch[:, 1], batch[torch.arange(2), torch.tensor([0, 2])].contiguous()):
        assert type(frames) is Tensor and told(frames) == (1, SIZES)


def test_other_images_tell_nothing(clips: Tensor) -> None:
    batch = ClipBatch.wrap(clips, SIZES)
    square = ClipBatch.wrap(clips[:, :2], SIZES)  # as many frames as clips
    for images in (batch[0], square[0], batch[:, :2].flatten(0, 1), batch.transpose(0, 1).flatten(0, 1), batch + 1,
                   batch.mean(dim=1), torch.zeros(6, 1, 5, 6)):
        assert told(images) == (None, None)


def test_a_window_is_at_most_as_long_as_the_video(clips: Tensor) -> None:
    assert num_frames_of(ClipBatch.wrap(clips[:1], SIZES[:1], window=2)[0]) == 2
    assert num_frames_of(ClipBatch.wrap(clips[:1], SIZES[:1], window=9)[0]) == 3
    assert num_frames_of(ClipBatch.wrap(clips, SIZES, window=9).flatten(0, 1)) == 3
    with pytest.raises(ValueError, match='window is 2, but must divide the 3 frames of each of the 2 videos'):
        ClipBatch.wrap(clips, SIZES, window=2)
