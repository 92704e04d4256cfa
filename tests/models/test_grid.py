import torch

from cpvt_mm.models.grid import pad_to_multiple, to_nchw, to_nhwc


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
    assert pad_to_multiple(x, 4) is x
