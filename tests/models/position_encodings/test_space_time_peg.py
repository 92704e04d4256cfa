"""`PEG(ndim=3)`: a convolution over the frames of a clip, too."""
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm import PEG
from cpvt_mm.models.grid import Grid
from cpvt_mm.models.position_encodings import PositionEncodings, build_position_encodings
from tests.encodings import encode
from tests.models.conftest import assert_named
from tests.models.position_encodings.test_peg import STAGE

pytestmark = pytest.mark.usefixtures('float64')


def peg(**kwargs: object) -> PEG:
    return PEG(STAGE, ndim=3, **kwargs)


def encodings(**kwargs: object) -> PositionEncodings:
    return build_position_encodings(dict(type='PEG', **kwargs), STAGE)


@pytest.mark.parametrize(('kernel_size', 'sides'), [(3, (3, 3, 3)), ((1, 3, 5), (1, 3, 5)), ([5, 1, 3], (5, 1, 3))])
def test_adds_a_depthwise_convolution_with_zeros_around_the_clip(kernel_size: object, sides: tuple[int, ...]) -> None:
    encoding, clips = peg(kernel_size=kernel_size), torch.randn(2, 4, 5, 6, 6)
    conv = encoding.convs['0'][0]
    assert conv.weight.shape == (6, 1, *sides)
    depth, height, width = (side // 2 for side in sides)
    padded = F.pad(clips, (0, 0, width, width, height, height, depth, depth))
    expected = clips + conv.bias
    for dt, dy, dx in itertools.product(*map(range, sides)):
        expected = expected + padded[:, dt:dt + 4, dy:dy + 5, dx:dx + 6] * conv.weight[:, 0, dt, dy, dx]
    torch.testing.assert_close(encode(encoding, clips, 0), expected)


def test_images_of_a_batch_are_frames_one_after_the_other() -> None:
    both, frames = encodings(ndim=3), torch.randn(6, 4, 5, 6)
    expected = encode(both[0], frames.unflatten(0, (2, 3)), 0).flatten(0, 1)
    assert torch.equal(encode(both, frames, 0, frames=3), expected)
    torch.testing.assert_close(encode(both, frames[3:], 0, frames=3), expected[3:])
    assert (encode(both, frames, 0, frames=6) - expected).abs().max() > 1e-3


@pytest.mark.parametrize('kwargs', [
    dict(), dict(conv_type='separable'), dict(conv_type='full'), dict(num_layers=2), dict(residual=False),
    dict(bias=False), dict(trainable=False), dict(positions=(-1, 1)), dict(target='qk')])
def test_weights_of_images_become_the_middle_slice_so_that_a_frame_starts_as_an_image(kwargs: dict) -> None:
    flat, deep = encodings(kernel_size=5, **kwargs), encodings(ndim=3, kernel_size=(3, 5, 5), **kwargs)
    deep.load_state_dict(flat.state_dict())
    frames = torch.randn(4, 3, 5, 6)
    for num_frames in (1, 2, 4):
        for index in range(3):
            for point in ('tokens', 'qk_tokens'):
                found = encode(deep, frames, index, num_frames, point)
                torch.testing.assert_close(found, encode(flat, frames, index, point=point))
        torch.testing.assert_close(encode(deep, frames, -1, num_frames), encode(flat, frames, -1))


def test_one_frame_is_an_image_with_the_middle_slice() -> None:
    flat, deep = encodings(), encodings(ndim=3)
    flat[0].convs['0'][0].weight.data = deep[0].convs['0'][0].weight.data[:, :, 1]
    flat[0].convs['0'][0].bias.data = deep[0].convs['0'][0].bias.data
    images = torch.randn(3, 4, 5, 6)
    torch.testing.assert_close(encode(deep, images, 0), encode(flat, images, 0))


def test_zeros_in_time_tell_frames_apart_and_only_there() -> None:
    still = torch.ones(1, 5, 4, 4, 6)
    encoded = encode(peg(), still, 0)[0]
    torch.testing.assert_close(encoded[1:-1], encoded[1:2].expand(3, -1, -1, -1))
    assert (encoded[0] - encoded[1]).abs().amin(dim=-1).max() > 0 and not torch.equal(encoded[0], encoded[-1])


def test_the_direction_of_time_matters() -> None:
    encoding, clip = peg(), torch.randn(1, 4, 5, 6, 6)
    backwards = encode(encoding, clip.flip(1), 0).flip(1)
    assert (backwards - encode(encoding, clip, 0)).abs().max() > 1e-2


def shuffled(frames: Tensor) -> Tensor:
    return frames[[2, 0, 3, 1]]


def test_images_do_not_see_each_other() -> None:
    frames = torch.randn(4, 5, 6, 6)
    for ndim, same in ((2, True), (3, False)):
        both = encodings(ndim=ndim)
        found, unshuffled = (encode(both, x, 0, frames=4) for x in (shuffled(frames), frames))
        assert torch.allclose(found, shuffled(unshuffled)) == same


def test_class_tokens_pass_untouched() -> None:
    both, tokens = encodings(ndim=3), torch.randn(4, 2 + 12, 6)
    encoded = both.tokens(tokens, 0, Grid(3, 4, extra=2, frames=2))
    assert torch.equal(encoded[:, :2], tokens[:, :2])
    expected = encode(both, tokens[:, 2:].unflatten(1, (3, 4)), 0, frames=2)
    torch.testing.assert_close(encoded[:, 2:], expected.flatten(1, 2))


@pytest.mark.parametrize(('kwargs', 'words'), [
    (dict(ndim=4), ('ndim', '4', '2', '3')),
    (dict(ndim=1), ('ndim', '1')),
    (dict(ndim=3, kernel_size=(3, 3)), ('kernel_size', '(3, 3)', '3 of them')),
    (dict(kernel_size=(3, 3, 3)), ('kernel_size', '(3, 3, 3)', '2 of them', 'ndim is 2')),
    (dict(ndim=3, kernel_size=(2, 3, 3)), ('kernel_size', '(2, 3, 3)', 'odd')),
    (dict(ndim=3, kernel_size=(3., 3, 3)), ('kernel_size', '(3.0, 3, 3)')),
])
def test_bad_arguments_are_named(kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, PEG, STAGE, **kwargs)

