from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cpvt_mm import CPVT
from cpvt_mm.models.cpvt import PLAIN_ARCHS
from cpvt_mm.models.grid import Grid
from tests.conftest import WITH_CP, Operators, kept_bytes
from tests.encodings import ENCODINGS, ONE_FOR_EACH_POINT

NARROW = dict(embed_dims=48, depth=3, num_heads=3)
NO_LOCALITY = {'none': None, 'peg-1x1': dict(type='PEG', kernel_size=1),
               'peg-1x1-qk': dict(type='PEG', kernel_size=1, target='qk')}
every_encoding = pytest.mark.parametrize('name', ENCODINGS)


def outspoken(**kwargs: object) -> CPVT:
    """The narrow backbone in eval mode, its weights large enough for attention to be far from even."""
    model = CPVT(NARROW, **kwargs).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    return model


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


@torch.no_grad()
@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('dist_token', [False, True])
@pytest.mark.parametrize('cls_token', [False, True])
def test_out_types_are_parts_of_all_tokens(cls_token: bool, dist_token: bool) -> None:
    tokens = dict(cls_token=cls_token, dist_token=dist_token)
    whole = outspoken(out_type='raw', **tokens)
    image = torch.randn(2, 3, 40, 70)

    def run(out_type: str) -> Tensor | tuple[Tensor, Tensor]:
        model = CPVT(NARROW, out_type=out_type, **tokens).eval()
        model.load_state_dict(whole.state_dict())
        output, = model(image)
        return output

    raw, extra = run('raw'), cls_token + dist_token
    assert raw.shape == (2, extra + 3 * 5, 48)
    torch.testing.assert_close(run('featmap'), raw[:, extra:].mT.reshape(2, 48, 3, 5))
    pooled = {'gap': raw[:, extra:].mean(dim=1), **({'cls_token': raw[:, 0]} if cls_token else {})}
    for out_type, expected in pooled.items():
        # The distillation token is the second, if there is a class token.
        torch.testing.assert_close(run(out_type), (expected, raw[:, extra - 1]) if dist_token else expected)


@torch.no_grad()
@pytest.mark.parametrize('height', [1, 2, 15, 16, 17, 33, 54, 70])
def test_any_size_gives_ceil_and_loses_no_row_or_column(height: int) -> None:
    width = 71 - height  # both sides pass through 1 to 70, in different pairs
    model, image = outspoken(), torch.randn(1, 3, height, width)
    output, = model(image)
    assert output.shape == (1, 48, -(-height // 16), -(-width // 16))
    assert output.isfinite().all() and output.is_contiguous()  # mmcv's RoIAlign needs the latter
    last_row, last_column = image.clone(), image.clone()
    last_row[:, :, -1] += 1
    last_column[..., -1] += 1
    assert (output[:, :, -1] - model(last_row)[0][:, :, -1]).abs().max() > 1e-3
    assert (output[..., -1] - model(last_column)[0][..., -1]).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.usefixtures('float64')
def test_zeros_on_the_right_and_below_stand_for_missing_pixels() -> None:
    model, image = outspoken(), torch.randn(1, 3, 50, 70)
    torch.testing.assert_close(model(image), model(torch.nn.functional.pad(image, (0, 10, 0, 14))))


@pytest.mark.parametrize('out_indices, depth', [((-1,), 3), ((0,), 1), ((0, 1), 2), ((0, 2), 3), ((1, -1), 3),
                                                ((-3, -2), 2)])
def test_only_what_out_indices_needs_is_built(out_indices: tuple[int, ...], depth: int) -> None:
    model = CPVT(NARROW, out_indices=out_indices, drop_path_rate=0.2)
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx([0., 0.1, 0.2][:depth])
    model.eval()
    outputs = model(torch.randn(1, 3, 40, 70))
    assert len(outputs) == len(model.out_channels) == len(model.strides) == len(out_indices)
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@torch.no_grad()
@pytest.mark.usefixtures('float64')
def test_only_the_last_block_is_normed() -> None:
    whole, part = outspoken(out_indices=(0, 1, 2)), CPVT(NARROW, out_indices=(1,)).eval()
    missing, left_over = part.load_state_dict(whole.state_dict(), strict=False)
    assert missing == [] and all(name.startswith(('blocks.2.', 'norm.')) for name in left_over)
    inputs: list[Tensor] = []
    whole.norm.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    image = torch.randn(1, 3, 40, 70)
    outputs = whole(image)
    torch.testing.assert_close(part(image)[0], outputs[1])
    assert len(inputs) == 1
    last = whole.norm(inputs[0])[:, 1:]
    torch.testing.assert_close(outputs[2].flatten(2).mT, last)


@every_encoding
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = CPVT(NARROW, dist_token=True, position_encoding=ENCODINGS[name])
    output, = model(torch.randn(2, 3, 70, 50))
    (output * torch.randn_like(output)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize('frozen_stages', range(-1, 4))
def test_frozen_stages_get_no_gradient_and_stay_in_eval_mode(frozen_stages: int) -> None:
    model = CPVT(NARROW, frozen_stages=frozen_stages, dist_token=True, drop_rate=0.1, drop_path_rate=0.2)
    prefixes = ('cls_token.', 'dist_token.', 'patch_embed.', 'position_encoding.', 'drop.',
                *(f'blocks.{i}.' for i in range(frozen_stages)), *(['norm.'] if frozen_stages == 3 else []))
    if frozen_stages == -1:
        prefixes = ()
    for mode in (None, True, False, True):
        if mode is not None:
            model.train(mode)
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad != f'{name}.'.startswith(prefixes), name
    for name, module in model.named_modules():
        if name:
            assert module.training != f'{name}.'.startswith(prefixes), name


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('name', ONE_FOR_EACH_POINT)
@pytest.mark.parametrize('drop_rate', [0., 0.1])
def test_checkpointing_changes_no_output_and_no_gradient(drop_rate: float, name: str) -> None:
    models = [CPVT(NARROW, position_encoding=ENCODINGS[name], drop_rate=drop_rate, drop_path_rate=0.3, with_cp=with_cp)
              for with_cp in WITH_CP]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    image, results = torch.randn(2, 3, 70, 50), []
    for model in models:
        torch.manual_seed(1)
        output, = model.train()(image)
        output.square().mean().backward()
        results.append((output, [p.grad for p in model.parameters()]))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-7, atol=1e-9)


def test_checkpointing_keeps_fewer_tensors() -> None:
    image, kept = torch.randn(1, 3, 128, 128), {}
    for with_cp in WITH_CP:
        model = CPVT(NARROW, with_cp=with_cp)
        kept[with_cp] = kept_bytes(model, partial(model, image))
    assert kept['selective'] < 0.7 * kept[False]
    assert kept[True] < 0.35 * kept[False]


@every_encoding
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_stays_finite(dtype: torch.dtype, name: str) -> None:
    model, image = CPVT(NARROW, position_encoding=ENCODINGS[name]), torch.randn(2, 3, 70, 50)
    with torch.autocast('cpu', dtype=dtype):
        output, = model(image)
        loss = output.float().square().mean()
    loss.backward()
    assert output.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(output.float(), model.eval()(image)[0], atol=0.1, rtol=0.1)


@torch.no_grad()
@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('name', [*NO_LOCALITY, *(name for name in ENCODINGS if name not in NO_LOCALITY)])
def test_what_tells_places_apart(name: str) -> None:
    """Shuffled patches give shuffled outputs where no encoding looks at places, and only there."""
    model = outspoken(out_type='raw', position_encoding={**ENCODINGS, **NO_LOCALITY}[name])
    patches, order = torch.randn(20, 3, 16, 16), torch.randperm(20)

    def run(patches: Tensor) -> Tensor:
        image = patches.unflatten(0, (4, 5)).permute(2, 0, 3, 1, 4).reshape(1, 3, 64, 80)
        return model(image)[0][0]

    outputs, shuffled = run(patches), run(patches[order])
    expected = torch.cat([outputs[:1], outputs[1:][order]])
    if name in NO_LOCALITY:
        torch.testing.assert_close(shuffled, expected, atol=1e-6, rtol=1e-6)
    else:
        assert (shuffled - expected)[1:].abs().max() > 1e-3


@torch.no_grad()
@every_encoding
def test_class_and_distillation_token_have_no_place(name: str) -> None:
    model = outspoken(out_type='raw', dist_token=True, position_encoding=ENCODINGS[name])
    before: list[Tensor] = []
    after: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: before.append(args[0]))
        block.register_forward_hook(lambda _, args, output: after.append(output))
    model(torch.randn(1, 3, 40, 70))
    assert torch.equal(before[0][:, :2], torch.cat([model.cls_token, model.dist_token], dim=1))
    assert torch.equal(before[1][:, :2], after[0][:, :2])
    assert torch.equal(before[1], after[0]) != (name.startswith('peg') and name != 'peg-qk')

    grid, encodings = Grid(3, 5, extra=2), model.position_encoding
    tokens, q = torch.randn(1, 2 + grid.size, 48), torch.randn(1, 3, 2 + grid.size, 16)
    assert torch.equal(encodings.qk_tokens(tokens, 1, grid)[:, :2], tokens[:, :2])
    assert torch.equal(encodings.qk(q, grid)[:, :, :2], q[:, :, :2])
    bias = encodings.bias(q, 0, grid, grid)
    assert (bias is not None) == (name == 'relative')
    if bias is not None:
        assert not bias[:, :, :2].any() and not bias[..., :2].any() and bias.any()


@torch.no_grad()
@every_encoding
def test_state_dict_stays_as_it_is_at_any_size(name: str) -> None:
    model = CPVT(NARROW, img_size=64, position_encoding=ENCODINGS[name])
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for size in range(1, 200, 11):
        model(torch.randn(1, 3, size, 200 - size))
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)


@every_encoding
def test_attention_is_fused_unless_a_bias_is_learnt(name: str) -> None:
    model = CPVT(NARROW, position_encoding=ENCODINGS[name])
    with Operators() as seen:
        model(torch.randn(1, 3, 40, 70))
    assert ('aten::_scaled_dot_product_flash_attention_for_cpu' in seen.names) == (name != 'relative')


def compare_compiled(backend: str, depth: int, position_encoding: dict | list | None) -> None:
    torch.compiler.reset()
    model = CPVT(dict(embed_dims=24, depth=depth, num_heads=3), position_encoding=position_encoding).eval()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=backend)
    with torch.no_grad():
        for height, width in ((40, 70), (100, 33)):
            image = torch.randn(1, 3, height, width)
            torch.testing.assert_close(compiled(image), model(image))


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('name', ONE_FOR_EACH_POINT)
def test_it_is_one_graph_at_any_size(name: str) -> None:
    compare_compiled('eager', 2, ENCODINGS[name])


@pytest.mark.slow
@pytest.mark.usefixtures('float64')
def test_compiled_code_gives_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv('TORCHINDUCTOR_CACHE_DIR', str(tmp_path))
    compare_compiled('inductor', 1, ENCODINGS['peg-learnable'])


@pytest.mark.parametrize('kwargs, error, words', [
    (dict(arch='large'), ValueError, ('large', 'arch', 'tiny, small, base')),
    (dict(arch=['tiny']), ValueError, ('tiny', 'arch')),
    (dict(arch=dict(embed_dims=48, depth=3)), ValueError, ('arch', 'num_heads')),
    (dict(arch=dict(NARROW, width=3)), ValueError, ('width', 'mlp_ratio')),
    (dict(arch=dict(NARROW, depth=0)), ValueError, ('depth', '0', 'at least 1')),
    (dict(arch=dict(NARROW, num_heads=5)), ValueError, ('num_heads', '5', 'divide', '48')),
    (dict(img_size=0), ValueError, ('img_size', '0', 'at least 1')),
    (dict(img_size=(224,)), ValueError, ('img_size', '(224,)', 'height and a width')),
    (dict(patch_size=16.), ValueError, ('patch_size', '16.0', 'at least 1')),
    (dict(in_channels=0), ValueError, ('in_channels', 'at least 1')),
    (dict(out_indices=(12,)), ValueError, ('out_indices', '(12,)', '0 to 11')),
    (dict(out_indices=(-13,)), ValueError, ('out_indices', '(-13,)', 'from -12 to -1')),
    (dict(cls_token='False'), ValueError, ('cls_token', "'False'", 'False or True')),
    (dict(dist_token=1), ValueError, ('dist_token', '1', 'False or True')),
    (dict(out_indices=(3, 1)), ValueError, ('out_indices', 'increasing')),
    (dict(out_indices=(11, -1)), ValueError, ('out_indices', '(11, -1)', 'increasing')),
    (dict(out_indices=()), ValueError, ('out_indices', 'sequence')),
    (dict(out_indices=3), ValueError, ('out_indices', 'sequence')),
    (dict(out_type='patches'), ValueError, ('patches', 'out_type', "'featmap' or 'cls_token' or 'gap' or 'raw'")),
    (dict(out_type='cls_token', cls_token=False), ValueError, ('cls_token', 'gap')),
    (dict(drop_path_rate=1.0), ValueError, ('drop_path_rate', '[0, 1)')),
    (dict(attn_drop_rate=-1), ValueError, ('attn_drop_rate', '[0, 1)')),
    (dict(frozen_stages=13), ValueError, ('frozen_stages', '13', '-1 to 12')),
    (dict(frozen_stages=1.), ValueError, ('frozen_stages', '1.0')),
    (dict(out_indices=(2,), frozen_stages=4), ValueError, ('frozen_stages', '-1 to 3')),
    (dict(drop_path=0.1), TypeError, ("'drop_path'",)),
    (dict(position_encoding=dict(type='GEP')), ValueError, ('GEP', 'position_encoding', 'PEG')),
    (dict(position_encoding='PEG'), TypeError, ('position_encoding', 'dict')),
    (dict(position_encoding=dict(type='PEG', positions=(12,))), ValueError, ('positions', '(12,)', 'to 11')),
    (dict(position_encoding=dict(type='PEG', positions=(11,), target='qk')), ValueError, ('positions', 'to 10')),
    (dict(out_indices=(2,), position_encoding=dict(type='PEG', positions=(3,))), ValueError, ('positions', 'to 2')),
    (dict(arch=dict(embed_dims=18, depth=1, num_heads=3), position_encoding=dict(type='RotaryPE')), ValueError,
     ('RotaryPE', 'multiple of 4', '18', '3', 'gives 6')),
])
def test_bad_arguments_are_named(kwargs: dict, error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        CPVT(**kwargs)
    for word in words:
        assert word in str(caught.value)
    assert '\n' not in str(caught.value)


def test_dropout_is_where_it_is_asked_for() -> None:
    model = CPVT(NARROW, drop_rate=0.1, attn_drop_rate=0.2)
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, torch.nn.Dropout)}
    assert 'drop' in rates and len(rates) == 1 + 2 * len(model.blocks)
    assert set(rates.values()) == {0.1}
    assert [block.attn.attn_drop_rate for block in model.blocks] == [0.2] * len(model.blocks)
