import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

from cpvt_mm import CPVT
from cpvt_mm.tokens.grid import Grid
from tests.all_encodings import BIASES, ENCODINGS
from tests.models.conftest import outspoken

NARROW = dict(embed_dims=48, depth=3, num_heads=3)
NO_LOCALITY = {'none': None, 'peg-1x1': dict(type='PEG', kernel_size=1),
               'peg-1x1-qk': dict(type='PEG', kernel_size=1, target='qk')}
narrow = partial(CPVT, NARROW)


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('cls_token, dist_token, registers', [*itertools.product([False, True], [False, True], [0, 3])])
def test_out_types_are_parts_of_all_tokens(cls_token: bool, dist_token: bool, registers: int) -> None:
    arch = dict(NARROW, dist_token=dist_token, num_register_tokens=registers)
    whole = outspoken(partial(CPVT, arch), out_type='raw', cls_token=cls_token)
    image = torch.randn(2, 3, 40, 70)

    def run(out_type: str) -> Tensor | tuple[Tensor, Tensor]:
        model = CPVT(arch, out_type=out_type, cls_token=cls_token).eval()
        model.load_state_dict(whole.state_dict())
        return model(image)[0]

    raw, extra = run('raw'), cls_token + dist_token + registers
    assert raw.shape == (2, extra + 3 * 5, 48)
    torch.testing.assert_close(run('featmap'), raw[:, extra:].mT.reshape(2, 48, 3, 5))
    pooled = {'gap': raw[:, extra:].mean(dim=1), **({'cls_token': raw[:, 0]} if cls_token else {})}
    for out_type, expected in pooled.items():
        # The distillation token is the second, if there is a class token.
        torch.testing.assert_close(run(out_type), (expected, raw[:, int(cls_token)]) if dist_token else expected)


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('name', [*NO_LOCALITY, *(name for name in ENCODINGS if name not in NO_LOCALITY)])
def test_what_tells_places_apart(name: str) -> None:
    """Shuffled patches give shuffled outputs where no encoding looks at places, and only there."""
    model = outspoken(narrow, out_type='raw', position_encoding={**ENCODINGS, **NO_LOCALITY}[name])
    patches, order = torch.randn(20, 3, 16, 16), torch.randperm(20)

    def run(patches: Tensor) -> Tensor:
        image = patches.unflatten(0, (4, 5)).permute(2, 0, 3, 1, 4).reshape(1, 3, 64, 80)
        return model(image)[0][0]

    outputs, shuffled = run(patches), run(patches[order])
    expected = torch.cat([outputs[:1], outputs[1:][order]])
    if name in NO_LOCALITY:
        torch.testing.assert_close(shuffled, expected, atol=1e-6, rtol=1e-6)
    else:
        assert (shuffled - expected)[1:].abs().max() > 1e-4


@pytest.mark.parametrize('name', ENCODINGS)
def test_extra_tokens_have_no_place(name: str) -> None:
    model = outspoken(partial(CPVT, dict(NARROW, num_register_tokens=1)), out_type='raw',
                      position_encoding=ENCODINGS[name])
    before, after = [], []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        block.register_forward_hook(lambda _, args, output: after.append(output))
    model(torch.randn(1, 3, 40, 70))
    assert torch.equal(before[0][:, :2], torch.cat([model.cls_token, model.register_tokens], dim=1))
    assert torch.equal(before[1][:, :2], after[0][:, :2])
    assert torch.equal(before[1], after[0]) != (name.startswith('peg') and name != 'peg-qk')

    grid, encodings = Grid(3, 5, extra=2), model.position_encoding
    tokens, q = torch.randn(1, 2 + grid.size, 48), torch.randn(1, 3, 2 + grid.size, 16)
    assert torch.equal(encodings.qk_tokens(tokens, 1, grid)[:, :2], tokens[:, :2])
    *encoded, biases = encodings.attention(q, q, q, 0, grid, grid)
    assert all(torch.equal(x[:, :, :2, :16], q[:, :, :2]) and not x[:, :, :2, 16:].any() for x in encoded)
    assert (biases is not None) == (name in BIASES)
    for bias in biases or []:
        assert not bias[:, :, :2].any() and not bias[..., :2].any() and bias.any()
