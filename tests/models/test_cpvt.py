import itertools
from functools import partial
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm import CPVT
from cpvt_mm.models.layers import Attention
from cpvt_mm.tokens.grid import Grid
from cpvt_mm.zoo.families import PLAIN_ARCHS
from tests.all_encodings import BIASES, ENCODINGS, LEARNT_BIASES
from tests.conftest import Operators
from tests.models.conftest import Build, assert_named, both, outspoken

NARROW = dict(embed_dims=48, depth=3, num_heads=3)
NO_LOCALITY = {'none': None, 'peg-1x1': dict(type='PEG', kernel_size=1),
               'peg-1x1-qk': dict(type='PEG', kernel_size=1, target='qk')}
narrow = partial(CPVT, NARROW)


# Published for DeiT with its head of 1000 classes; its table has a row for the class token, which ours has not.
@pytest.mark.parametrize('arch, published', [('tiny', 5_717_416), ('small', 22_050_664), ('base', 86_567_656)])
def test_named_archs_are_deits(arch: str, published: int) -> None:
    width = PLAIN_ARCHS[arch].embed_dims
    with torch.device('meta'):  # shapes without values
        model = CPVT(arch, position_encoding=dict(type='LearnablePE'))
        output, = model(torch.empty(1, 3, 33, 47))
    assert sum(p.numel() for p in model.parameters()) == published - (1000 * width + 1000) - width
    assert model.strides == (16,)
    assert output.shape == (1, *model.out_channels, 3, 3) == (1, width, 3, 3)


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('cls_token, dist_token, registers', [*itertools.product([False, True], [False, True], [0, 3])])
def test_out_types_are_parts_of_all_tokens(cls_token: bool, dist_token: bool, registers: int) -> None:
    tokens = dict(cls_token=cls_token, dist_token=dist_token, num_register_tokens=registers)
    whole = outspoken(narrow, out_type='raw', **tokens)
    image = torch.randn(2, 3, 40, 70)

    def run(out_type: str) -> Tensor | tuple[Tensor, Tensor]:
        model = CPVT(NARROW, out_type=out_type, **tokens).eval()
        model.load_state_dict(whole.state_dict())
        output, = model(image)
        return output

    raw, extra = run('raw'), cls_token + dist_token + registers
    assert raw.shape == (2, extra + 3 * 5, 48)
    torch.testing.assert_close(run('featmap'), raw[:, extra:].mT.reshape(2, 48, 3, 5))
    pooled = {'gap': raw[:, extra:].mean(dim=1), **({'cls_token': raw[:, 0]} if cls_token else {})}
    for out_type, expected in pooled.items():
        # The distillation token is the second, if there is a class token.
        torch.testing.assert_close(run(out_type), (expected, raw[:, int(cls_token)]) if dist_token else expected)


@pytest.mark.parametrize('out_indices, depth', [((0,), 1), ((0, 2), 3), ((1, -1), 3), ((-3, -2), 2)])
def test_only_what_out_indices_needs_is_built(out_indices: tuple[int, ...], depth: int) -> None:
    model = CPVT(NARROW, out_indices=out_indices, drop_path_rate=0.2)
    assert model.num_blocks == depth
    assert [block.drop_path_rate for block in model.blocks] == pytest.approx([0., 0.1, 0.2][:depth])
    model.eval()
    outputs = model(torch.randn(1, 3, 40, 70))
    assert len(outputs) == len(model.out_channels) == len(model.strides) == len(out_indices)
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.usefixtures('float64')
def test_only_the_last_block_is_normed() -> None:
    whole, part = outspoken(narrow, out_indices=(0, 1, 2)), CPVT(NARROW, out_indices=(1,)).eval()
    missing, left_over = part.load_state_dict(whole.state_dict(), strict=False)
    assert missing == [] and all(name.startswith(('blocks.2.', 'norm.')) for name in left_over)
    normed, image = [], torch.randn(1, 3, 40, 70)
    whole.norm.register_forward_hook(lambda _, args, output: normed.append(output))
    outputs = whole(image)
    torch.testing.assert_close(part(image)[0], outputs[1])
    assert len(normed) == 1
    torch.testing.assert_close(outputs[2].flatten(2).mT, normed[0][:, 1:])


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
    model = outspoken(narrow, out_type='raw', num_register_tokens=1, position_encoding=ENCODINGS[name])
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


@pytest.mark.parametrize('name', ENCODINGS)
def test_attention_is_fused_unless_a_bias_is_learnt(name: str) -> None:
    model = CPVT(NARROW, position_encoding=ENCODINGS[name])
    with Operators() as seen:
        model(torch.randn(1, 3, 40, 70))
    assert ('aten::_scaled_dot_product_flash_attention_for_cpu' in seen.names) == (name not in LEARNT_BIASES)


@both
def test_dropout_is_where_it_is_asked_for(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dropout = build(drop_rate=0.1, attn_drop_rate=0.2), Mock(side_effect=F.dropout)
    monkeypatch.setattr(F, 'dropout', dropout)
    model(torch.randn(1, 3, 64, 64))
    embeddings = 1 if isinstance(model, CPVT) else 4
    # Hidden channels, and at the end of both branches.
    assert [call.args[1] for call in dropout.call_args_list] == [0.1] * (embeddings + 3 * model.num_blocks)
    assert {part.attn_drop_rate for part in model.modules() if isinstance(part, Attention)} == {0.2}


@pytest.mark.parametrize(('kwargs', 'words'), [
    (dict(arch='huge'), ('huge', 'arch', 'tiny, small, base, large')),
    (dict(arch=dict(embed_dims=48, depth=3)), ('arch', 'num_heads')),
    (dict(arch=dict(NARROW, width=3)), ('width', 'mlp_ratio')),
    (dict(arch=dict(NARROW, num_heads=5)), ('num_heads', '5', 'divide', '48')),
    (dict(patch_size=16.), ('patch_size', '16.0', 'at least 1')),
    (dict(out_indices=(-13,)), ('out_indices', '(-13,)', 'from -12 to -1')),
    (dict(out_indices=(11, -1)), ('out_indices', '(11, -1)', 'increasing')),
    (dict(cls_token='False'), ('cls_token', "'False'", 'False or True')),
    (dict(num_register_tokens=True), ('num_register_tokens', 'True', 'at least 0')),
    (dict(mlp_mode='conv'), ('mlp_mode', 'conv', "'linear' or 'swiglu'")),
    (dict(layer_scale=0), ('layer_scale is 0, but must be a number above 0',)),
    (dict(out_type='patches'), ('patches', 'out_type', "'featmap' or 'cls_token' or 'gap' or 'raw'")),
    (dict(out_type='cls_token', cls_token=False), ('cls_token', 'gap')),
    (dict(out_indices=(2,), frozen_stages=4), ('frozen_stages', '-1 to 3')),
    (dict(position_encoding=dict(type='PEG', positions=(11,), target='qk')), ('positions', 'to 10')),
    (dict(out_indices=(2,), position_encoding=dict(type='PEG', positions=(3,))), ('positions', 'to 2')),
    (dict(arch=dict(embed_dims=18, depth=1, num_heads=3), position_encoding=dict(type='RotaryPE')),
     ('RotaryPE', 'multiple of 4', '18', '3', 'gives 6'))])
def test_bad_values_are_named(kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, CPVT, **kwargs)
