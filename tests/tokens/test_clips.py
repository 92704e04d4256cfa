"""Backbones whose position encoding spans frames: clips of any length, of images of any size."""
import io
from collections.abc import Sequence

import onnxruntime
import pytest
import torch
from torch import Tensor

from cpvt_mm import PyramidCPVT
from cpvt_mm.export.program import export_program
from cpvt_mm.tokens.batch_info import BatchInfo
from tests.backbones import NARROW, WITH_CP
from tests.models.conftest import Backbone, Build, alone, every_backbone

pytestmark = pytest.mark.usefixtures('float64')

DEEP = dict(type='PEG', ndim=3)


def clips_of(model: Backbone, frames: Tensor, *lengths: int) -> list[list[Tensor]]:
    """The maps of each clip when it is alone."""
    return [list(model(clip, num_frames=len(clip))) for clip in frames.split(lengths)]


def assert_equal(found: Sequence[Tensor], clips: list[list[Tensor]]) -> None:
    for out, *parts in zip(found, *clips, strict=True):
        torch.testing.assert_close(out, torch.cat(parts), rtol=0, atol=1e-7)


@every_backbone
def test_clips_do_not_see_each_other_and_the_last_may_be_shorter(build: Build) -> None:
    model, frames = build(position_encoding=DEEP).eval(), torch.randn(5, 3, 40, 70)
    assert_equal(model(frames[:4], num_frames=2), clips_of(model, frames[:4], 2, 2))
    assert_equal(model(frames, num_frames=3), clips_of(model, frames, 3, 2))
    assert_equal(model(frames, num_frames=9), clips_of(model, frames, 5))


@every_backbone
def test_every_output_sees_the_direction_of_time_if_an_encoding_spans_frames(build: Build) -> None:
    deep, flat, frames = build(position_encoding=DEEP).eval(), build().eval(), torch.randn(4, 3, 40, 70)
    for forward, backward in zip(deep(frames, num_frames=4), deep(frames.flip(0), num_frames=4), strict=True):
        assert (backward.flip(0) - forward).abs().max() > 1e-3
    assert_equal(flat(frames, num_frames=4), clips_of(flat, frames, 1, 1, 1, 1))


def test_a_batch_of_clips_tells_the_length() -> None:
    model, frames = PyramidCPVT(NARROW, position_encoding=DEEP).eval(), torch.randn(2, 3, 3, 40, 70)
    BatchInfo.of_clips(frames, [(40, 70)] * 2).attach(frames)
    assert_equal(model(frames.flatten(0, 1)), clips_of(model, frames.flatten(0, 1), 3, 3))
    BatchInfo.of_clips(frames[:1], [(40, 70)], window=2).attach(frames)
    assert_equal(model(frames[0]), clips_of(model, frames[0], 2, 1))


def test_images_that_know_of_no_clip_are_clips_of_their_own_with_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    model, images = PyramidCPVT(NARROW, position_encoding=DEEP).eval(), torch.randn(2, 3, 64, 64)
    expected = clips_of(model, images, 1, 1)
    model(images[:1])
    assert not recwarn
    with pytest.warns(UserWarning, match='each image as a clip .* projects/video, or pass num_frames'):
        assert_equal(model(images), expected)
    with pytest.raises(ValueError, match='num_frames is 0'):
        model(images, num_frames=0)


@pytest.mark.parametrize('length', [1, 2], ids=['images', 'clips'])
@pytest.mark.parametrize('with_cp', WITH_CP)
@every_backbone
def test_exact_padding_gives_the_features_of_alone_and_the_sum_of_gradients(build: Build, with_cp: bool | str,
                                                                           length: int) -> None:
    encoding = DEEP if length > 1 else dict(type='PEG')
    exact = build(position_encoding=encoding, padding='exact', with_cp=with_cp)
    plain = build(position_encoding=encoding)
    plain.load_state_dict(exact.state_dict())
    frames = torch.randn(7, 3, 96, 128, requires_grad=True)
    # Frames as large as the batch; equal ones; ones of several sizes; and a shorter clip.
    sizes = [(96, 128), (96, 128), (50, 70), (50, 70), (33, 1), (90, 60), (1, 100)]
    actual = exact(frames, sizes, num_frames=length)
    sum(out.sin().sum() for out in actual).backward()
    for frame, (height, width) in zip(frames.grad, sizes, strict=True):
        assert frame[:, :height, :width].any() and not frame[:, height:].any() and not frame[..., width:].any()
    for start in range(0, 7, length):
        clip = slice(start, start + length)
        expected = plain(alone(frames.detach()[clip], sizes[clip]), num_frames=length)
        sum(out.sin().sum() for out in expected).backward()
        for out, wanted in zip(actual, expected, strict=True):
            rows, columns = wanted.shape[2:]
            torch.testing.assert_close(out[clip, :, :rows, :columns], wanted, rtol=0, atol=1e-7)
            assert not out[clip, :, rows:].any() and not out[clip, :, :, columns:].any()
    for (name, parameter), wanted in zip(exact.named_parameters(), plain.parameters(), strict=True):
        assert (parameter.grad - wanted.grad).abs().max() <= 1e-7 * wanted.grad.abs().max(), name


class OneClip(PyramidCPVT):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return super().forward(x, num_frames=x.shape[0])


@pytest.mark.slow
@torch.no_grad()
def test_torch_export_and_onnx() -> None:
    torch.set_default_dtype(torch.float32)
    model = OneClip(dict(NARROW, depths=(1, 1, 1, 1)), position_encoding=DEEP).eval()  # each block takes seconds
    program, file = export_program(model), io.BytesIO()
    torch.onnx.export(program, dynamo=True).save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    for size in ((3, 3, 100, 70), (1, 3, 64, 64), (5, 3, 33, 40)):
        frames = torch.randn(size)
        outs = session.run(None, {session.get_inputs()[0].name: frames.numpy()})
        for wanted, *found in zip(model(frames), program.module()(frames), outs, strict=True):
            for out in found:
                torch.testing.assert_close(torch.as_tensor(out), wanted, rtol=0, atol=1e-4)
