import torch
import torch.nn.functional as F

from cpvt_mm.models.layers.recompute import recomputed


def test_recomputed_draws_the_same_random_numbers_again() -> None:
    x = torch.randn(100, requires_grad=True)
    out = recomputed(lambda x: F.dropout(x.square()), x)
    dropped = out == 0
    out.sum().backward()
    assert 0 < dropped.sum() < 100
    assert torch.equal(x.grad == 0, dropped)
