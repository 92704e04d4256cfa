"""What timm's models tell of themselves: `feature_info`, `forward_intermediates` and `no_weight_decay`."""
import pytest
import torch
from torch import nn

from cpvt_mm import CPVT, PyramidCPVT
from tests.conftest import NARROW, NARROW_PLAIN

BOTH = [(PyramidCPVT, NARROW), (CPVT, NARROW_PLAIN)]
both = pytest.mark.parametrize(('cls', 'arch'), BOTH)


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
    assert info.module_name() == modules and info.out_indices == tuple(range(len(outputs)))
    assert (info.channels(-1), info.reduction(0), info.module_name(1)) == (
        model.out_channels[-1], model.strides[0], modules[1])
    assert info.get_dicts() == info.info == list(info)
    assert info.get_dicts(['module'], [1]) == [dict(module=modules[1])]
    assert all(item.keys() == {'num_chs', 'reduction', 'module', 'index'} for item in info)
    assert all(model.get_submodule(name) for name in modules)


@torch.no_grad()
@both
def test_intermediates_are_the_maps_of_all_stages_or_blocks(cls: type, arch: dict) -> None:
    count = len(cls(arch).get_submodule(cls.parts))
    model = cls(arch, out_indices=tuple(range(count)), **({'out_norm': True} if cls is PyramidCPVT else {})).eval()
    image = torch.randn(2, 3, 70, 50)
    outputs = model(image)
    final, maps = model.forward_intermediates(image, norm=cls is PyramidCPVT)
    assert len(maps) == count and final.shape[-1] == model.out_channels[-1]
    for found, output in zip(maps[:-1], outputs[:-1], strict=True):
        torch.testing.assert_close(found, output)
    torch.testing.assert_close(final[:, -outputs[-1][0, 0].numel():], outputs[-1].flatten(2).mT)
    assert not torch.equal(*(model.forward_intermediates(image, norm=norm)[1][-1] for norm in (False, True)))


@torch.no_grad()
@both
def test_intermediates_can_be_chosen(cls: type, arch: dict) -> None:
    model, image = cls(arch).eval(), torch.randn(1, 3, 64, 64)
    _, maps = model.forward_intermediates(image)
    chosen = model.forward_intermediates(image, [0, -1], intermediates_only=True)
    assert torch.equal(chosen[0], maps[0]) and torch.equal(chosen[1], maps[-1])
    last = model.forward_intermediates(image, 2, output_fmt='NLC', intermediates_only=True)
    assert all(torch.equal(tokens, found.flatten(2).mT) for tokens, found in zip(last, maps[-2:], strict=True))
    run: list[nn.Module] = []
    for part in model.get_submodule(model.parts):
        part.register_forward_hook(lambda module, args, output: run.append(module))
    model.forward_intermediates(image, [1], stop_early=True, intermediates_only=True)
    assert len(run) == 2
    with pytest.raises(ValueError, match="output_fmt is 'NHWC', but must be 'NCHW' or 'NLC'"):
        model.forward_intermediates(image, output_fmt='NHWC')
    with pytest.raises(IndexError):
        model.forward_intermediates(image, [9])


@both
def test_tokens_and_position_encodings_get_no_weight_decay(cls: type, arch: dict) -> None:
    model = cls(arch, position_encoding=[dict(type='PEG'), dict(type='LearnablePE')])
    names = model.no_weight_decay()
    assert names == {name for name, _ in model.named_parameters()
                     if 'position_encoding' in name or name in ('cls_token', 'dist_token')}
    assert any(name.endswith('table') for name in names) and any('convs' in name for name in names)
