import pytest
import torch

from cpvt_mm import PYRAMID_ARCHS, PyramidCPVT
from cpvt_mm.models.layers import Attention
from tests.all_encodings import BIASES, ENCODINGS
from tests.conftest import NARROW, Operators
from tests.models.conftest import assert_named


@pytest.mark.parametrize('arch', PYRAMID_ARCHS)
def test_named_archs(arch: str) -> None:
    with torch.device('meta'):  # shapes without values
        model = PyramidCPVT(arch).eval()
        outputs = model(torch.randn(1, 3, 33, 65))
    if arch == 'small':
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == 23.59
    assert model.strides == (4, 8, 16, 32)
    assert [o.shape[1] for o in outputs] == list(model.out_channels) == list(PYRAMID_ARCHS[arch].embed_dims)


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('out_indices', [(0,), (3,), (0, 2), (1, 2, 3)])
def test_only_what_out_indices_needs_is_built(out_indices: tuple[int, ...]) -> None:
    whole, part = (PyramidCPVT(NARROW, out_indices=indices, out_norm=True, drop_path_rate=0.2).eval()
                   for indices in ((0, 1, 2, 3), out_indices))
    missing, _ = part.load_state_dict(whole.state_dict(), strict=False)
    image = torch.randn(1, 3, 64, 64)
    outputs, maps = part(image), whole(image)
    assert missing == []
    torch.testing.assert_close(outputs, tuple(maps[i] for i in out_indices))
    assert part.strides == tuple((4, 8, 16, 32)[i] for i in out_indices)
    rates = [block.drop_path_rate for stage in part.stages for block in stage.blocks]
    assert rates == pytest.approx([0.2 * i / 8 for i in range(part.num_blocks)])
    sum(output.square().mean() for output in outputs).backward()
    assert [name for name, p in part.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize('kwargs', [{}, dict(norm_eps=1e-4)])
def test_norm_eps_is_of_the_blocks_and_of_the_norms_after_stages(kwargs: dict[str, float]) -> None:
    for name, module in PyramidCPVT(NARROW, out_norm=True, **kwargs).named_modules():
        if isinstance(module, torch.nn.LayerNorm):
            is_meant = name.endswith(('.norm1', '.norm2')) or name.startswith('out_norms.')
            assert module.eps == (kwargs.get('norm_eps', 1e-6) if is_meant else 1e-5), name


@pytest.mark.parametrize('name', [name for name in ENCODINGS if name not in BIASES])
def test_queries_by_keys_are_never_held(name: str) -> None:
    model = PyramidCPVT(NARROW, out_indices=(0,), position_encoding=ENCODINGS[name]).train()
    with Operators() as seen:
        model(torch.randn(1, 3, 512, 512))[0].mean().backward()
    queries, keys = (512 // 4)**2, (512 // 32)**2
    largest = max(seen.bytes.values()) // 4  # numbers of float32
    assert largest <= queries * 16 * 8 < queries * keys  # the widest is the hidden layer of the MLP


def test_pooled_attention_sees_49_keys_at_any_size() -> None:
    model, keys = PyramidCPVT(NARROW, sr_mode='pool').eval(), set()
    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(lambda module, args: keys.add(module.project(*args)[1].shape[2]))
    model(torch.randn(1, 3, 230, 250))
    assert keys == {49}


@pytest.mark.parametrize(('kwargs', 'words'), [
    (dict(sr_mode='mean'), ('sr_mode', 'mean', "'conv' or 'pool'")),
    (dict(mlp_mode='glu'), ('mlp_mode', 'glu', "'linear' or 'conv'")),
    (dict(arch='huge'), ('huge', 'arch', 'nano, tiny, small, base, large')), (dict(arch=['tiny']), ('tiny', 'arch')),
    (dict(arch={k: v for k, v in NARROW.items() if k != 'depths'}), ('arch', 'depths')),
    (dict(arch=dict(NARROW, width=3)), ('width', 'sr_ratios')),
    (dict(arch=dict(NARROW, depths=(2, 2, 2))), ('depths', '4 ints')),
    (dict(arch=dict(NARROW, depths=(2, 2, 0, 2))), ('depths', 'at least 1')),
    (dict(arch=dict(NARROW, num_heads=(1, 2, 3, 8))), ('num_heads', '3', 'divide', '40')),
    (dict(out_indices=(0, 4)), ('out_indices', '(0, 4)', '0 to 3')),
    (dict(out_indices=(0, 1), frozen_stages=3), ('frozen_stages', '-1 to 2')),
    (dict(out_norm=1), ('out_norm', '1', 'False or True')),
    *((dict(norm_eps=value), ('norm_eps', repr(value), 'above 0')) for value in (0., True, 'auto'))])
def test_bad_values_are_named(kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, PyramidCPVT, **kwargs)


def test_padding_does_not_blow_up_the_first_gradients() -> None:
    model, norms = PyramidCPVT('nano'), []
    image = torch.randn(2, 3, 96, 96)
    padded = image.clone()
    padded[..., 48:] = 0
    for x in (image, padded):
        model.zero_grad()
        sum((output * torch.randn_like(output)).mean() for output in model(x)).backward()
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    assert norms[1] < 10 * norms[0]
