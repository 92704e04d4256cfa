import pytest
import torch
import torch.nn.functional as F

from cpvt_mm.models.layers.linear import Linear, linear
from tests.conftest import Operators


@pytest.mark.parametrize('shape', [(6,), (1, 6), (5, 6), (2, 3, 4, 6), (0, 6), (2, 700, 900, 6)])
def test_it_is_a_matrix_product_at_any_shape(shape: tuple[int, ...]) -> None:
    layer, x = Linear(6, 3), torch.randn(shape)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
    strided = torch.randn(*shape[:-1], 12)[..., ::2]
    torch.testing.assert_close(linear(strided, layer.weight), F.linear(strided, layer.weight))


def test_on_a_cpu_it_is_a_convolution_in_float32_only() -> None:
    layer = Linear(64, 3)
    with Operators() as float32:
        layer(torch.randn(500, 64))
    assert 'aten::convolution' in float32.names and 'aten::clone' not in float32.names
    with Operators() as float64:
        layer.double()(torch.randn(500, 64).double())
    assert 'aten::convolution' not in float64.names
