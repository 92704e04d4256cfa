"""Images of several sizes are one sequence of tokens; each gets what it gets alone, with the same gradients."""
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.encodings.base import PositionEncodings
from cpvt_mm.models.layers import Block, BlockSpec, residual
from cpvt_mm.tokens import packing as packing_module
from cpvt_mm.tokens.batch_info import BatchInfo
from cpvt_mm.tokens.grid import Size
from cpvt_mm.tokens.moves import Move
from cpvt_mm.tokens.packing import Packing, pack
from tests.backbones import NARROW
from tests.models.conftest import Build, both

pytestmark = pytest.mark.usefixtures('float64')

CPU = torch.device('cpu')
GROUPS = {((3, 5), 1): [1, 3], ((4, 2), 1): [0], ((1, 1), 1): [2]}  # places in the batch of images of these cells
SHALLOW = dict(NARROW, depths=(1, 1, 1, 1))
PATCH_MODES = ['disjoint', 'overlap']


def test_moved_rows_are_those_of_their_places_and_so_are_gradients() -> None:
    move, table = Move.from_source(torch.tensor([2, 5, 0, 5, 4]), 5, CPU), torch.randn(1, 5, 3, requires_grad=True)
    moved = move(table)
    assert torch.equal(moved[:, [0, 2, 4]], table[:, [2, 0, 4]]) and not moved[:, [1, 3]].any()
    back = move.back(moved)
    assert torch.equal(back[:, [2, 0, 4]], table[:, [2, 0, 4]]) and not back[:, [1, 3]].any()
    for way in (move, move.back):
        assert torch.autograd.gradcheck(way, table) and torch.autograd.gradgradcheck(way, table)


def test_indices_are_made_once_for_a_combination_of_sizes() -> None:
    packing = pack(GROUPS, CPU)
    assert pack(dict(GROUPS), CPU) is packing and pack({((3, 5), 1): [0, 1]}, CPU) is not packing
    assert packing.to_canvas(1)[0] is packing.to_canvas(1, 1)[0] and packing.coarser(2, 1) is packing.coarser(2)


def test_stochastic_depth_drops_whole_images() -> None:
    packing, tokens, kept = pack(GROUPS, CPU), torch.randn(1, 2 * 15 + 8 + 1, 16), []
    block, encodings = Block(0, BlockSpec(16, 2, 4, sr_ratio=2), 0.25).train(), PositionEncodings()
    alone = [image + block.attend(image[None], grid, encodings)[0] / 0.75
             for part, grid in zip(packing.split(tokens), packing.grids, strict=True) for image in part]
    for _ in range(300):
        out = residual(tokens, partial(block.attend, encodings=encodings), packing, 0.25)
        for image, before, after in zip(images_of(packing, out), images_of(packing, tokens), alone, strict=True):
            kept.append(not torch.equal(image, before))
            torch.testing.assert_close(image, after if kept[-1] else before)
    assert sum(kept) / 1200 == pytest.approx(0.75, abs=0.06)  # 1200 draws: more than four standard deviations


def images_of(packing: Packing, tokens: torch.Tensor) -> list[torch.Tensor]:
    return [image for part in packing.split(tokens) for image in part]


def drawn(build: type, arch: dict, kwargs: list[dict], **parts: list) -> st.SearchStrategy:
    """A backbone's class, an arch with parts of these values, and other arguments."""
    return st.tuples(st.just(build), st.fixed_dictionaries({
        **{name: st.just(value) for name, value in arch.items()},
        **{name: st.sampled_from(values) for name, values in parts.items()}}), st.sampled_from(kwargs))


sides = st.integers(1, 100)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.tuples(sides, sides), min_size=2, max_size=5), seed=st.integers(0, 2**16),
       kernel_size=st.sampled_from([3, (5, 3), (1, 5)]), around=st.sampled_from(['zeros', 'replicate']),
       backbone=st.one_of(
           drawn(PyramidCPVT, SHALLOW, [dict(out_norm=True), {}], patch_mode=PATCH_MODES, sr_mode=['conv', 'pool'],
                 mlp_mode=['linear', 'conv', 'relu-conv']),
           drawn(PyramidCPVT, SHALLOW, [{}], patch_mode=PATCH_MODES, stage_norm=[False, True], cls_token=[False, True]),
           drawn(CPVT, dict(embed_dims=24, depth=2, num_heads=3), [dict(cls_token=False), {}], patch_size=[8, 14, 16],
                 num_register_tokens=[0, 1, 2])))
def test_any_images_get_what_they_get_alone(sizes: list[Size], seed: int, kernel_size: int | Size, around: str,
                                            backbone: tuple[type, dict, dict]) -> None:
    torch.manual_seed(seed)
    build, arch, kwargs = backbone
    peg = dict(type='PEG', kernel_size=kernel_size, padding=around)
    model = build(arch, padding='exact', position_encoding=peg, **kwargs)
    images = [torch.randn(3, *size) for size in sizes]
    for found, image, size in zip(model.forward_packed(images), images, sizes, strict=True):
        for output, expected in zip(found, model(image[None], [size]), strict=True):
            assert output.shape == expected.shape
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, key_offsets: Tensor, longest: int, longest_key: int, *,
               scale: float) -> Tensor:
    """A stand-in for torch's attention to sequences of several lengths, which runs on GPUs only."""
    lengths, key_lengths = (places.diff().tolist() for places in (offsets, key_offsets))
    assert (max(lengths), max(key_lengths)) == (longest, longest_key)
    parts = zip(q.split(lengths), k.split(key_lengths), v.split(key_lengths), strict=True)
    return torch.cat([
        F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in of), scale=scale).transpose(0, 1)
        for of in parts])


# What compiled code does not look into.
opaque = torch.library.custom_op('cpvt_mm_tests::one_by_one', one_by_one, mutates_args=())
opaque.register_fake(lambda q, *args, scale: q.new_empty(q.shape))


@pytest.fixture
def with_varlen(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Attention to sequences of several lengths, which is there."""
    attention = Mock(side_effect=one_by_one)
    monkeypatch.setattr(packing_module, 'fits_varlen', lambda q, packing, drop_rate: drop_rate == 0.)
    monkeypatch.setattr(packing_module, 'varlen', SimpleNamespace(varlen_attn=attention))
    return attention


SIZES = [(64, 96), (50, 33), (64, 96), (20, 96)]


def outputs_and_gradients(model: nn.Module, images: Tensor) -> list[Tensor]:
    model.zero_grad()
    outputs = model(images, SIZES)
    sum(out.sin().sum() for out in outputs).backward()
    return [*outputs, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize('encoding', ['PEG', 'ParabolicPE', 'RelativePE'])
@both
def test_attention_to_all_images_at_once_is_that_to_each(build: Build, encoding: str, with_varlen: Mock,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(padding='exact', position_encoding=dict(type=encoding)).train()
    images, calls = torch.randn(4, 3, 64, 96), 0 if encoding == 'RelativePE' else model.num_blocks  # 0: with a bias
    at_once = outputs_and_gradients(model, images)
    assert with_varlen.call_count == calls
    monkeypatch.setattr(packing_module, 'fits_varlen', lambda *args: False)
    torch.testing.assert_close(at_once, outputs_and_gradients(model, images), rtol=1e-9, atol=1e-9)
    assert with_varlen.call_count == calls


@pytest.mark.slow
@torch.no_grad()
def test_compiled_code_has_two_graphs_for_any_sizes(with_varlen: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(packing_module.varlen, 'varlen_attn', opaque)
    counter = CompileCounterWithBackend('eager')
    model = PyramidCPVT(SHALLOW, padding='exact', out_indices=(0, 1)).eval()
    compiled = torch.compile(model, backend=counter, dynamic=True)
    for count in (2, 5, 3, 4):
        sizes = [(int(height), int(width)) for height, width in torch.randint(33, 250, (count, 2))]
        images = torch.randn(count, 3, 256, 256)
        BatchInfo.of_images(images, sizes).attach(images)
        torch.testing.assert_close(compiled(images), model(images), rtol=0, atol=1e-9)
    assert 1 <= counter.frame_count <= 2
