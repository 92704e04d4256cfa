import pytest
import torch

from cpvt_mm import CPVT, PyramidCPVT
from tests.conftest import NARROW, NARROW_PLAIN


@pytest.mark.parametrize(('cls', 'arch', 'out_indices', 'modules'), [
    (PyramidCPVT, NARROW, (0, 1, 2, 3), ['stages.0', 'stages.1', 'stages.2', 'stages.3']),
    (PyramidCPVT, NARROW, (1, 3), ['stages.1', 'stages.3']),
    (CPVT, NARROW_PLAIN, (1, -1), ['blocks.1', 'blocks.3']),
])
def test_feature_info_tells_what_is_returned(cls: type, arch: dict, out_indices: tuple[int, ...],
                                             modules: list[str]) -> None:
    model = cls(arch, out_indices=out_indices).eval()
    with torch.no_grad():
        outputs = model(torch.randn(1, 3, 64, 64))
    info = model.feature_info
    assert info.channels() == list(model.out_channels) == [output.shape[1] for output in outputs]
    assert info.reduction() == list(model.strides) == [64 // output.shape[2] for output in outputs]
    assert [item['module'] for item in info] == modules
    assert all(item.keys() == {'num_chs', 'reduction', 'module'} for item in info)
    assert all(model.get_submodule(name) for name in modules)
