import pytest
import torch

from cpvt_mm.models.grid import (
    Grid,
    on_grid,
    pad_or_crop,
    pad_to_multiple,
    resample,
    to_nchw,
    to_nhwc,
    token_centers,
)


def test_layouts_are_views_of_the_same_memory() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert to_nchw(x).shape == (2, 5, 3, 4)
    assert to_nchw(x).is_contiguous(memory_format=torch.channels_last)
    assert to_nhwc(to_nchw(x)).data_ptr() == x.data_ptr()
    assert torch.equal(to_nhwc(to_nchw(x)), x)


def test_padding_adds_zeros_below_and_to_the_right() -> None:
    x = torch.ones(1, 5, 7, 2)
    padded = pad_to_multiple(x, 4)
    assert padded.shape == (1, 8, 8, 2)
    assert torch.equal(padded[:, :5, :7], x)
    assert padded.sum() == x.sum()


def test_what_fits_is_not_copied() -> None:
    x = torch.ones(1, 8, 4, 2)
    assert pad_to_multiple(x, 4).data_ptr() == x.data_ptr()
    image = to_nchw(x)
    assert pad_or_crop(image, 8, 4) is image


def test_cells_lie_amid_the_tokens_they_span() -> None:
    assert token_centers(4).tolist() == [0, 1, 2, 3]
    assert token_centers(2, 2).tolist() == [0.5, 2.5]
    assert token_centers(2, 3).tolist() == [1, 4]


def test_class_tokens_in_front_pass_untouched() -> None:
    x = torch.randn(2, 2 + 3 * 4, 5)
    out = on_grid(lambda tokens: tokens * torch.arange(3)[:, None, None], x, Grid(3, 4))
    assert torch.equal(out[:, :2], x[:, :2])
    assert torch.equal(out[:, 2:].view(2, 3, 4, 5), x[:, 2:].view(2, 3, 4, 5) * torch.arange(3)[:, None, None])


def test_nothing_is_copied_where_there_is_nothing_to_do() -> None:
    x = torch.randn(2, 14, 5)
    assert on_grid(lambda tokens: tokens, x, Grid(3, 4)) is x


@pytest.mark.parametrize('shape, size', [((5, 6, 3), (5, 6)), ((30, 3), (30,))])
def test_a_table_that_fits_is_not_resampled(shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    table = torch.randn(shape)
    assert resample(table, size) is table


def test_a_traced_table_is_resampled_for_other_sizes() -> None:
    table = torch.randn(5, 6, 3)
    traced = torch.jit.trace(lambda x: resample(table, x.shape[:2]), torch.zeros(5, 6))
    for size in ((5, 6), (9, 4)):
        torch.testing.assert_close(traced(torch.zeros(size)), resample(table, size))
