import itertools
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_mm import PYRAMID_ARCHS, PyramidCPVT
from cpvt_mm.models.layers import Attention
from tests.conftest import NARROW, WITH_CP, kept_bytes
from tests.encodings import ENCODINGS, ONE_FOR_EACH_POINT

SUBSETS = [subset for size in range(1, 5) for subset in itertools.combinations(range(4), size)]


def ceil_sizes(height: int, width: int, strides: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(-(-height // stride), -(-width // stride)) for stride in strides]


def test_number_of_parameters_of_small() -> None:
    with torch.device('meta'):
        assert round(sum(p.numel() for p in PyramidCPVT('small').parameters()) / 1e6, 2) == 23.59


@pytest.mark.parametrize('arch', PYRAMID_ARCHS)
def test_named_archs(arch: str) -> None:
    with torch.device('meta'):  # shapes without values
        model = PyramidCPVT(arch).eval()
        outputs = model(torch.randn(1, 3, 33, 65))
    assert model.strides == (4, 8, 16, 32)
    assert [o.shape[1] for o in outputs] == list(model.out_channels) == list(PYRAMID_ARCHS[arch].embed_dims)


@torch.no_grad()
@pytest.mark.parametrize('height', [*range(1, 10), 31, 32, 33, 65, 97])
def test_any_size_gives_ceil_and_loses_no_row_or_column(backbone: PyramidCPVT, height: int) -> None:
    width = 98 - height  # both sides pass through 1 to 97, in different pairs
    image = torch.randn(1, 3, height, width)
    outputs = backbone(image)
    assert [tuple(o.shape[2:]) for o in outputs] == ceil_sizes(height, width, backbone.strides)
    last_row, last_column = image.clone(), image.clone()
    last_row[:, :, -1] += 1
    last_column[..., -1] += 1
    for output, below, right in zip(outputs, backbone(last_row), backbone(last_column), strict=True):
        assert output.isfinite().all()
        assert (output[:, :, -1] - below[:, :, -1]).abs().max() > 1e-4
        assert (output[..., -1] - right[..., -1]).abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.usefixtures('float64')
def test_zeros_on_the_right_and_below_stand_for_missing_pixels(backbone: PyramidCPVT) -> None:
    image = torch.randn(1, 3, 50, 70)
    padded = torch.nn.functional.pad(image, (0, 2, 0, 2))
    torch.testing.assert_close(backbone(image), backbone(padded))


@pytest.mark.parametrize('out_indices', SUBSETS)
def test_only_what_out_indices_needs_is_built(out_indices: tuple[int, ...]) -> None:
    model = PyramidCPVT(NARROW, out_indices=out_indices, out_norm=True)
    outputs = model(torch.randn(1, 3, 64, 64))
    assert [o.shape[1] for o in outputs] == list(model.out_channels)
    assert model.strides == tuple((4, 8, 16, 32)[i] for i in out_indices)
    sum(output.square().mean() for output in outputs).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@torch.no_grad()
@pytest.mark.usefixtures('float64')
def test_a_subset_returns_the_maps_of_the_whole() -> None:
    whole = PyramidCPVT(NARROW, drop_path_rate=0.2).eval()
    part = PyramidCPVT(NARROW, out_indices=(0, 2), drop_path_rate=0.2).eval()
    missing, _ = part.load_state_dict(whole.state_dict(), strict=False)
    assert missing == []
    image = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(part(image), whole(image)[::2])
    for stage, reference in zip(part.stages, whole.stages, strict=False):
        assert [b.drop_path.rate for b in stage.blocks] == [b.drop_path.rate for b in reference.blocks]


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


def eps_of(model: PyramidCPVT) -> set[float]:
    """The eps of the LayerNorms that `norm_eps` sets; all others must have 1e-5."""
    meant = [norm for stage in model.stages for block in stage.blocks for norm in (block.norm1, block.norm2)]
    meant += model.out_norms.values()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    assert {norm.eps for norm in norms if not any(norm is other for other in meant)} == {1e-5}
    return {norm.eps for norm in meant}


def test_norm_eps_is_of_the_blocks_and_of_the_norms_after_stages() -> None:
    assert eps_of(PyramidCPVT(NARROW, out_norm=True)) == {1e-6}
    assert eps_of(PyramidCPVT(NARROW, out_norm=True, norm_eps=1e-4)) == {1e-4}


def test_drop_path_rises_linearly() -> None:
    model = PyramidCPVT(NARROW, drop_path_rate=0.2)
    rates = [block.drop_path.rate for stage in model.stages for block in stage.blocks]
    assert rates == pytest.approx([0.2 * i / 8 for i in range(9)])


@pytest.mark.parametrize('frozen_stages', range(-1, 5))
def test_frozen_stages_get_no_gradient_and_stay_in_eval_mode(frozen_stages: int) -> None:
    model = PyramidCPVT(NARROW, frozen_stages=frozen_stages, drop_rate=0.1, drop_path_rate=0.2, out_norm=True)
    prefixes = {-1: (), 0: ('stages.0.patch_embed.',)}.get(
        frozen_stages, tuple(f'{part}.{i}.' for i in range(frozen_stages) for part in ('stages', 'out_norms')))
    for mode in (None, True, False, True):
        if mode is not None:
            model.train(mode)
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad != name.startswith(prefixes), name
    for name, module in model.named_modules():
        if name:
            assert module.training != f'{name}.'.startswith(prefixes), name


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('name', ONE_FOR_EACH_POINT)
@pytest.mark.parametrize('drop_rate', [0., 0.1])
def test_checkpointing_changes_no_output_and_no_gradient(drop_rate: float, name: str) -> None:
    models = [PyramidCPVT(NARROW, position_encoding=ENCODINGS[name], drop_rate=drop_rate, drop_path_rate=0.3,
                          with_cp=with_cp) for with_cp in WITH_CP]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    image, results = torch.randn(2, 3, 70, 90), []
    for model in models:
        torch.manual_seed(1)
        outputs = model.train()(image)
        sum(output.square().mean() for output in outputs).backward()
        results.append((outputs, [p.grad for p in model.parameters()]))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-7, atol=1e-9)


def test_checkpointing_keeps_fewer_tensors() -> None:
    image, kept = torch.randn(1, 3, 128, 128), {}
    for with_cp in WITH_CP:
        model = PyramidCPVT('nano', with_cp=with_cp, drop_path_rate=0.2)
        kept[with_cp] = kept_bytes(model, partial(model, image))
    assert kept['selective'] < 0.55 * kept[False]
    assert kept[True] < 0.25 * kept[False]


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_stays_finite(dtype: torch.dtype, name: str) -> None:
    backbone, image = PyramidCPVT(NARROW, position_encoding=ENCODINGS[name]), torch.randn(2, 3, 75, 100)
    with torch.autocast('cpu', dtype=dtype):
        outputs = backbone.train()(image)
        loss = sum(output.float().square().mean() for output in outputs)
    loss.backward()
    assert all(output.isfinite().all() for output in outputs)
    assert all(p.grad.isfinite().all() for p in backbone.parameters())


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('name', ONE_FOR_EACH_POINT)
def test_it_is_one_graph_at_any_size(name: str) -> None:
    torch.compiler.reset()
    model = PyramidCPVT(NARROW, out_indices=(0,), position_encoding=ENCODINGS[name]).eval()  # all stages take minutes
    compiled = torch.compile(model, backend='eager', fullgraph=True, dynamic=True)
    for height, width in ((64, 96), (75, 50)):
        image = torch.randn(1, 3, height, width)
        torch.testing.assert_close(compiled(image), model(image))


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements that an operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.numel())
        return result


@pytest.mark.parametrize('name', [name for name in ENCODINGS if name != 'relative'])
def test_queries_by_keys_are_never_held(name: str) -> None:
    model = PyramidCPVT(NARROW, out_indices=(0,), position_encoding=ENCODINGS[name]).train()
    with LargestTensor() as seen:
        model(torch.randn(1, 3, 512, 512))[0].mean().backward()
    queries, keys = (512 // 4)**2, (512 // 32)**2
    assert seen.largest <= queries * 16 * 8 < queries * keys  # the widest is the hidden layer of the MLP


@torch.no_grad()
@pytest.mark.parametrize('name', [name for name in ENCODINGS if name != 'none'])
def test_every_encoding_reaches_every_stage_at_odd_sizes(name: str) -> None:
    image, features = torch.randn(1, 3, 70, 50), {}
    for encoding in ('none', name):
        model = PyramidCPVT(NARROW, position_encoding=ENCODINGS[encoding]).eval()
        generator = torch.Generator().manual_seed(0)
        for key, parameter in model.named_parameters():  # the same other weights, none so small that it has no effect
            parameter.normal_(std=0.2, generator=None if 'position_encoding' in key else generator)
        features[encoding] = model(image)
    for plain, encoded in zip(*features.values(), strict=True):
        assert encoded.isfinite().all()
        assert plain.shape == encoded.shape
        assert (plain - encoded).abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize('name', ENCODINGS)
def test_pooled_attention_sees_49_keys_at_any_size(name: str) -> None:
    model = PyramidCPVT(NARROW, position_encoding=ENCODINGS[name], sr_mode='pool').eval()
    keys = []
    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(lambda module, args: keys.append(module.project(*args).k.shape[2]))
    assert [tuple(output.shape[2:]) for output in model(torch.randn(1, 3, 230, 250))] == [
        (58, 63), (29, 32), (15, 16), (8, 8)]
    assert set(keys) == {49}
    assert all(output.isfinite().all() for output in model(torch.randn(2, 3, 20, 33)))


def test_tokens_are_not_copied_between_layouts() -> None:
    model = PyramidCPVT(NARROW).eval()
    copies = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.name() in ('aten::clone', 'aten::copy_', 'aten::_to_copy', 'aten::cat'):
                copies.append(tuple(result.shape))
            return result

    with torch.no_grad(), Copies():
        model(torch.randn(1, 3, 64, 96))
    # Each of the four maps leaves its stage as contiguous NCHW, and the next stage reads that one.
    assert copies == [(1, 16, 16, 24), (1, 32, 8, 12), (1, 40, 4, 6), (1, 64, 2, 3)]


def test_outputs_are_contiguous_for_roi_align(backbone: PyramidCPVT) -> None:
    for output in backbone(torch.randn(2, 3, 64, 96)):
        assert output.is_contiguous()


@pytest.mark.parametrize(('kwargs', 'error', 'words'), [
    (dict(with_cp='all'), ValueError, ('with_cp', 'all', 'selective')),
    (dict(sr_mode='mean'), ValueError, ('sr_mode', 'mean', "'conv' or 'pool'")),
    (dict(mlp_mode='glu'), ValueError, ('mlp_mode', 'glu', "'linear' or 'conv'")),
    (dict(arch='huge'), ValueError, ('huge', 'arch', 'nano, tiny, small, base, large')),
    (dict(arch={k: v for k, v in NARROW.items() if k != 'depths'}), ValueError, ('arch', 'depths')),
    (dict(arch=dict(NARROW, width=3)), ValueError, ('width', 'sr_ratios')),
    (dict(arch=dict(NARROW, depths=(2, 2, 2))), ValueError, ('depths', '4 ints')),
    (dict(arch=dict(NARROW, depths=(2, 2, 0, 2))), ValueError, ('depths', 'at least 1')),
    (dict(arch=dict(NARROW, num_heads=(1, 2, 3, 8))), ValueError, ('num_heads', '3', 'divide', '40')),
    (dict(in_channels=0), ValueError, ('in_channels', 'at least 1')),
    (dict(out_indices=(0, 4)), ValueError, ('out_indices', '(0, 4)', '0 to 3')),
    (dict(out_indices=(1, 0)), ValueError, ('out_indices', 'increasing')),
    (dict(out_indices=()), ValueError, ('out_indices',)),
    (dict(out_indices=3), ValueError, ('out_indices', 'sequence')),
    (dict(out_indices='0'), ValueError, ('out_indices', 'sequence')),
    (dict(arch=['nano']), ValueError, ('nano', 'arch')),
    (dict(frozen_stages=1.), ValueError, ('frozen_stages', '1.0')),
    (dict(frozen_stages=5), ValueError, ('frozen_stages', '-1 to 4')),
    (dict(out_indices=(0, 1), frozen_stages=3), ValueError, ('frozen_stages', '-1 to 2')),
    (dict(drop_path_rate=1.0), ValueError, ('drop_path_rate', '[0, 1)')),
    (dict(attn_drop_rate=-1), ValueError, ('attn_drop_rate', '[0, 1)')),
    (dict(drop_path=0.1), TypeError, ("'drop_path'",)),
    *((dict(out_norm=value), ValueError, ('out_norm', repr(value), 'False or True'))
      for value in ('False', [False, True, True, True], 1)),
    *((dict(init_cfg=value), TypeError, ('init_cfg', repr(value), 'a dict with a type'))
      for value in (123, 'a.pth', dict(checkpoint='a.pth'), ['a.pth'])),
    *((dict(norm_eps=value), ValueError, ('norm_eps', repr(value), 'above 0'))
      for value in (0., -1e-6, True, 'auto', None)),
    (dict(position_encoding=dict(type='GEP')), ValueError, ('GEP', 'position_encoding', 'PEG')),
    (dict(position_encoding=dict(type='PEG', stage=9)), TypeError, ('position_encoding', 'stage=9')),
    (dict(img_size=0), ValueError, ('img_size', '0', 'at least 1')),
    (dict(img_size=(224,)), ValueError, ('img_size', '(224,)', 'height and a width')),
    (dict(position_encoding='PEG'), TypeError, ('position_encoding', 'dict')),
    (dict(position_encoding=dict(type='PEG', kernel=3)), TypeError, ("'kernel'",)),
])
def test_bad_arguments_are_named(kwargs: dict, error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        PyramidCPVT(**kwargs)
    for word in words:
        assert word in str(caught.value)


@torch.no_grad()
@pytest.mark.usefixtures('float64')
def test_it_can_be_traced(tmp_path: Path) -> None:
    model = PyramidCPVT(NARROW).eval()
    torch.jit.trace(model, torch.randn(1, 3, 256, 256)).save(tmp_path / 'traced.pt')
    traced, image = torch.jit.load(tmp_path / 'traced.pt'), torch.randn(1, 3, 256, 256)
    torch.testing.assert_close(traced(image), model(image))


def test_negative_indices_count_from_the_end() -> None:
    assert PyramidCPVT(NARROW, out_indices=(-3, -1)).out_indices == (1, 3)
