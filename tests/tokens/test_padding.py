"""Images of a batch know the sizes that a data preprocessor told; `padding='exact'` makes use of them."""
import re
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.tokens.batch_info import BatchInfo, told_about
from cpvt_mm.tokens.grid import Size
from openmmlab_tools.errors import UserError
from tests.all_encodings import ENCODINGS, ONE_FOR_EACH_POINT
from tests.backbones import NARROW, NARROW_PLAIN
from tests.models.conftest import PLAIN, PYRAMID, Backbone, Build, alone, both

pytestmark = pytest.mark.usefixtures('float64')

# In a batch of 96 x 128: as large as it, not a multiple of anything, a multiple of 32, twice the same padded size.
SIZES = [(96, 128), (50, 70), (64, 96), (33, 1), (1, 128), (90, 120)]

DISTILLED = partial(CPVT, dict(NARROW_PLAIN, dist_token=True))


def clips(*sizes: Size, window: int | None = None) -> Tensor:
    """A clip of three frames of each size."""
    frames = torch.randn(len(sizes), 3, 1, 5, 6)
    return BatchInfo.of_clips(frames, sizes, window).attach(frames)


def test_what_parts_of_a_batch_know() -> None:
    batch = clips((5, 6), (4, 3))
    of_all = BatchInfo(((5, 6),) * 3 + ((4, 3),) * 3, (5, 6), 3, 3)
    for images, expected in (
            (batch.flatten(0, 1), of_all), (batch.flatten(0, 1)[:], of_all), (batch.reshape(-1, 1, 5, 6), of_all),
            *((clips((5, 6), window=window)[0], BatchInfo(((5, 6),) * 3, (5, 6), 3, frames))
              for window, frames in ((None, 3), (2, 2), (9, 3))),
            (clips((4, 3))[:, 1], BatchInfo(((4, 3),), (5, 6))),
            # A single image and a window fill their batch.
            (torch.zeros(1, 1, 5, 6), BatchInfo(((5, 6),), (5, 6))),
            (batch.flatten(0, 1)[..., :4], BatchInfo(((5, 4),) * 6, (5, 4))),
            # Copies and other parts know nothing.
            *((images, None) for images in (
                batch.flatten(0, 1)[:4], batch[0], batch[0, :2], batch[:, 1], batch[torch.arange(2), [2, 0]],
                (batch + 1)[0], torch.zeros(6, 1, 5, 6)))):
        assert told_about(images) == expected
    with pytest.raises(ValueError, match='window is 2, but must divide the 3 frames of each of the 2 videos'):
        clips((5, 6), (4, 3), window=2)


def pair(build: Build, **kwargs: object) -> tuple[Backbone, Backbone]:
    """The same backbone with the option and without, in eval mode."""
    exact, plain = build(padding='exact', **kwargs), build(**kwargs)
    plain.load_state_dict(exact.state_dict())
    return exact.eval(), plain.eval()


def assert_maps_are_those_of_alone(outputs: Sequence[Tensor], images: Tensor, plain: Backbone,
                                   sizes: Sequence[Size] = SIZES, atol: float = 1e-7) -> None:
    for i, size in enumerate(sizes):
        for output, expected in zip(outputs, plain(alone(images[i:i + 1], [size])), strict=True):
            rows, columns = expected.shape[2:]
            torch.testing.assert_close(output[i, :, :rows, :columns], expected[0], rtol=0, atol=atol)
            assert not output[i, :, rows:].any() and not output[i, :, :, columns:].any()


@pytest.mark.parametrize(('build', 'name', 'training'), [
    *((build, name, False) for build in (PYRAMID, partial(PLAIN, out_indices=(0, 2, -1))) for name in ENCODINGS),
    *((partial(PyramidCPVT, dict(NARROW, **parts)), name, True)
      for parts in (dict(sr_mode='pool'), dict(mlp_mode='conv')) for name in ONE_FOR_EACH_POINT)])
def test_every_stage_and_block_with_every_encoding(build: Build, name: str, training: bool) -> None:
    exact, plain = pair(build, position_encoding=ENCODINGS[name])
    images = torch.randn(len(SIZES), 3, 96, 128)  # what lies beyond the sizes is noise, too: nobody may look there
    with torch.set_grad_enabled(training):
        outputs = exact.train(training)(images, SIZES, num_frames=1)
        assert_maps_are_those_of_alone(outputs, images, plain.train(training))
        assert all(output.is_contiguous() for output in outputs)  # as RoIAlign needs it


@pytest.mark.parametrize('out_type', ['cls_token', 'gap'])
def test_vectors_of_the_plain_backbone(out_type: str) -> None:
    exact, plain = pair(DISTILLED, out_type=out_type)
    images = torch.randn(len(SIZES), 3, 96, 128)
    output, = exact(images, SIZES)
    expected = [plain(alone(image[None], [size]))[0] for image, size in zip(images, SIZES, strict=True)]
    for found, wanted in zip(output, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(found, torch.cat(wanted), rtol=0, atol=1e-7)


def test_token_sequences_of_the_plain_backbone_are_those_of_the_batchs_grid() -> None:
    exact, plain = pair(DISTILLED, out_type='raw')
    images = torch.randn(2, 3, 64, 96)
    output, = exact(images, [(64, 96), (20, 60)])
    expected, = plain(alone(images[1:], [(20, 60)]))
    patches = output[1, 2:].unflatten(0, (4, 6))
    actual = torch.cat([output[1, :2], patches[:2, :4].flatten(0, 1)])
    torch.testing.assert_close((output[0], actual), (plain(images[:1])[0][0], expected[0]), rtol=0, atol=1e-7)
    assert not patches[2:].any() and not patches[:, 4:].any()


def test_all_images_are_one_sequence_and_a_batch_without_padding_runs_as_without_the_option() -> None:
    (exact, plain), shapes, images = pair(PYRAMID), [], torch.randn(len(SIZES), 3, 96, 128)
    exact.stages[0].register_forward_hook(lambda _, args, out: shapes.append(tuple(out.shape)))
    exact(images, SIZES)
    assert shapes == [(1, sum(-(-height // 32) * -(-width // 32) for height, width in SIZES) * 64, 16)]
    assert all(map(torch.equal, exact(images, [(96, 128)] * len(SIZES)), plain(images)))
    assert shapes[1:] == [(len(SIZES), 24 * 32, 16)]


@both
def test_a_batch_that_is_no_multiple_of_32_gives_ceil_and_the_same_features(build: Build) -> None:
    exact, plain = pair(build)
    images, sizes = torch.randn(2, 3, 50, 70), [(50, 70), (41, 39)]
    for outputs in (exact(images, sizes), exact(images[:1].clone())):
        assert [tuple(o.shape[2:]) for o in outputs] == [(-(-50 // s), -(-70 // s)) for s in exact.strides]
        for output, expected in zip(outputs, plain(alone(images[:1], [(50, 70)])), strict=True):
            torch.testing.assert_close(output[0], expected[0, :, :output.shape[2], :output.shape[3]], rtol=0, atol=1e-7)


@pytest.mark.slow
@torch.no_grad()
def test_sizes_that_travel_with_the_batch_and_those_that_are_given_come_before_them() -> None:
    exact, plain = pair(PYRAMID, out_indices=(0,))
    images = torch.randn(2, 3, 96, 128)
    BatchInfo.of_images(images, SIZES[:2]).attach(images)
    for run in (exact, torch.compile(exact, backend='eager')):
        assert_maps_are_those_of_alone(run(images), images, plain, SIZES[:2])
        assert_maps_are_those_of_alone(run(images, SIZES[2:4]), images, plain, SIZES[2:4])
    plain(images)  # which has no use for them


def test_a_batch_whose_sizes_were_lost_is_an_error_unless_its_images_fill_it() -> None:
    exact, plain = pair(PYRAMID)
    images = torch.randn(2, 3, 32, 32)
    exact(images[:1])
    assert all(map(torch.equal, exact(images, [(32, 32), (32, 32)]), plain(images)))
    with pytest.raises(UserError, match=r'needs the size of each image, but .*: use .* cpvt_mm\.DetDataPreprocessor'):
        exact(images)


@pytest.mark.parametrize(('sizes', 'sentence'), [
    ([(32, 32)], r'valid_sizes has 1 sizes, but must have a height and a width for each of the 2 images'),
    *(([(32, 32), size], rf'valid_sizes\[1\] is {re.escape(str(size))}, but must be a height and a width: whole ')
      for size in ((0, 32), 32, (31.5, 32), (32, 32, 3))),
    ([(32, 32), (32, 65)], r'the height and width of the batch, \(32, 64\)')])
def test_sizes_that_cannot_be_are_refused(sizes: list[Size], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PyramidCPVT(NARROW, padding='exact')(torch.randn(2, 3, 32, 64), sizes)
    with pytest.raises(ValueError, match=r"valid_sizes are given, but padding is None: build .* padding='exact'"):
        PyramidCPVT(NARROW)(torch.randn(2, 3, 32, 64), sizes)
