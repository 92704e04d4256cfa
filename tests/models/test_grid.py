import pytest
import torch
from torch import Tensor, nn

from cpvt_mm.models import grid
from cpvt_mm.models.layers import patch_embed
from cpvt_mm.models.layers.patch_embed import PatchConv2d


def test_layouts_are_views_of_the_same_memory() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert grid.to_nchw(x).shape == (2, 5, 3, 4)
    assert grid.to_nchw(x).is_contiguous(memory_format=torch.channels_last)
    assert grid.to_nhwc(grid.to_nchw(x)).data_ptr() == x.data_ptr()
    assert torch.equal(grid.to_nhwc(grid.to_nchw(x)), x)


def test_tokens_become_a_map_row_by_row_and_a_map_tokens_in_the_same_memory() -> None:
    tokens = torch.arange(2 * 12 * 5.).view(2, 12, 5)
    found = grid.to_map(tokens, grid.Grid(3, 4))
    assert torch.equal(found, grid.to_nchw(tokens.view(2, 3, 4, 5)))
    assert found.data_ptr() == grid.to_tokens(found).data_ptr() == tokens.data_ptr()
    assert torch.equal(grid.to_tokens(found), tokens)


def test_consecutive_images_are_the_frames_of_a_clip() -> None:
    tokens = torch.randn(6, 12, 5)
    clips = grid.to_clips(tokens, grid.Grid(3, 4, frames=3))
    assert clips.shape == (2, 5, 3, 3, 4)
    assert torch.equal(clips[1, :, 2], grid.to_map(tokens, grid.Grid(3, 4))[5])
    assert torch.equal(grid.clips_to_tokens(clips), tokens)


def test_padding_adds_zeros_below_and_to_the_right_where_they_are_missing() -> None:
    x = torch.ones(1, 2, 5, 7)
    padded = grid.pad_to_multiple(x, 4)
    assert padded.shape == (1, 2, 8, 8)
    assert torch.equal(padded[..., :5, :7], x)
    assert padded.sum() == x.sum()
    assert grid.pad_to_multiple(padded, 4) is grid.pad_or_crop(padded, 8, 8) is padded


def test_cells_lie_amid_the_tokens_they_span() -> None:
    assert grid.token_centers(4).tolist() == [0, 1, 2, 3]
    assert grid.token_centers(2, 2).tolist() == [0.5, 2.5]
    assert grid.token_centers(2, 3).tolist() == [1, 4]


@pytest.mark.parametrize('shape, size', [((5, 6, 3), (5, 6)), ((30, 3), (30,))])
def test_a_table_that_fits_is_not_resampled(shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    table = torch.randn(shape)
    assert grid.resample(table, size) is table


def test_a_traced_table_is_resampled_for_other_sizes() -> None:
    table = torch.randn(5, 6, 3)
    traced = torch.jit.trace(lambda x: grid.resample(table, x.shape[:2]), torch.zeros(5, 6))
    for size in ((5, 6), (9, 4)):
        torch.testing.assert_close(traced(torch.zeros(size)), grid.resample(table, size))


def test_code_knows_whether_it_is_traced() -> None:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(grid.is_traced())
        return x + grid.is_traced()

    assert not grid.is_traced()
    assert torch.compile(function, backend='eager', fullgraph=True)(torch.zeros(1)) == 1
    torch.jit.trace(function, torch.zeros(1), check_trace=False)
    assert seen[-1]


@pytest.mark.parametrize('bias', [True, False])
def test_a_convolution_of_patches_is_the_same_when_traced(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = PatchConv2d(3, 5, 4, stride=4, bias=bias).double()
    x = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    eager = conv(x)
    torch.testing.assert_close(eager, nn.functional.conv2d(x, conv.weight, conv.bias, stride=4))
    monkeypatch.setattr(patch_embed, 'is_traced', lambda x: True)
    assert eager.shape == (2, 5, 2, 3)
    torch.testing.assert_close(conv(x), eager)
