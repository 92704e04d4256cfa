"""Images of several sizes are one sequence of tokens; each gets what it gets alone, with the same gradients."""
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
from cpvt_mm.models.layers import Block, BlockSpec
from cpvt_mm.tokens import packing as packing_module
from cpvt_mm.tokens.batch_info import BatchInfo
from cpvt_mm.tokens.grid import Grid, to_map, to_tokens
from cpvt_mm.tokens.moves import Move
from cpvt_mm.tokens.packing import Packing, pack
from tests.conftest import NARROW
from tests.models.conftest import Build, alone, both

pytestmark = pytest.mark.usefixtures('float64')

CPU = torch.device('cpu')
# Places in the batch of images with these rows and columns; one frame a clip.
GRIDS = {((3, 5), 1): [1, 3], ((4, 2), 1): [0], ((1, 1), 1): [2]}


@pytest.fixture
def packing() -> Packing:
    return pack(GRIDS, CPU)


@pytest.fixture
def tokens(packing: Packing) -> Tensor:
    return torch.randn(1, 2 * 15 + 8 + 1, 6)


def each(tokens: Tensor, packing: Packing) -> list[tuple[Tensor, Grid]]:
    """The tokens of each image, `(1, N, C)`, and its grid."""
    return [(part[i:i + 1], grid) for part, grid in zip(packing.split(tokens), packing.grids, strict=True)
            for i in range(len(part))]


def test_moved_rows_are_those_of_their_places_and_so_are_gradients() -> None:
    move, table = Move.of(torch.tensor([2, 5, 0, 5, 4]), 5, CPU), torch.randn(5, 3, requires_grad=True)
    moved = move(table)
    assert torch.equal(moved[[0, 2, 4]], table[[2, 0, 4]]) and not moved[[1, 3]].any()
    back = move.back(moved)
    assert torch.equal(back[[2, 0, 4]], table[[2, 0, 4]]) and not back[[1, 3]].any()
    for way in (move, move.back):
        assert torch.autograd.gradcheck(way, table) and torch.autograd.gradgradcheck(way, table)


def test_groups_are_views_and_joined_again(packing: Packing, tokens: Tensor) -> None:
    parts = packing.split(tokens)
    assert [tuple(part.shape) for part in parts] == [(2, 15, 6), (1, 8, 6), (1, 1, 6)]
    assert {part.untyped_storage().data_ptr() for part in parts} == {tokens.untyped_storage().data_ptr()}
    assert torch.equal(packing.join(parts), tokens)
    heads = tokens.unflatten(2, (2, 3)).transpose(1, 2)
    assert torch.equal(packing.join(packing.split(heads, 2), 2), heads)


@pytest.mark.parametrize(('kernel_size', 'gap'), [(3, 1), ((5, 3), 2), ((1, 5), 0)])
def test_a_convolution_sees_zeros_beside_an_image_and_not_another_one(
        packing: Packing, tokens: Tensor, kernel_size: int | tuple[int, int], gap: int) -> None:
    conv = nn.Conv2d(6, 6, kernel_size, padding='same')
    expected = [to_tokens(conv(to_map(part, grid))) for part, grid in each(tokens, packing)]
    torch.testing.assert_close(packing.convolve(conv, tokens, gap), torch.cat(expected, dim=1))


@pytest.mark.parametrize('side', [1, 2, 3])
def test_patches_are_zero_padded_where_an_image_ends(packing: Packing, tokens: Tensor, side: int) -> None:
    conv = nn.Conv2d(6, 4, side, stride=side)
    patches, coarser = packing.patches(tokens, side), packing.coarser(side, side)
    expected = []
    for part, grid in each(tokens, packing):
        cells = to_map(part, grid)
        expected.append(to_tokens(conv(F.pad(cells, (0, -grid.width % side, 0, -grid.height % side)))))
    torch.testing.assert_close(to_tokens(conv(patches)), torch.cat(expected, dim=1))
    assert [group.grid for group in coarser.groups] == [
        Grid(-(-rows // side), -(-columns // side), side, side) for (rows, columns), _ in GRIDS]


def test_a_padded_batch_has_the_order_of_the_images_and_zeros_elsewhere(packing: Packing, tokens: Tensor) -> None:
    batch, grid = packing.unpack(tokens)
    assert grid == Grid(4, 5) and batch.shape == (4, 20, 6)
    places = [image for images in GRIDS.values() for image in images]
    for place, (part, of) in zip(places, each(tokens, packing), strict=True):
        cells = to_map(batch[place:place + 1], grid)
        assert torch.equal(cells[:, :, :of.height, :of.width], to_map(part, of))
    assert batch.count_nonzero() == tokens.numel()


def test_stochastic_depth_drops_whole_images(packing: Packing) -> None:
    tokens, kept = torch.ones(1, 39, 2), []
    block = Block(0, BlockSpec(2, 1, 4), 0.25).train()
    for _ in range(300):
        parts = each(block.branch(tokens, None, packing), packing)
        assert all((part == part[0, 0, 0]).all() for part, _ in parts)
        kept += [part[0, 0, 0] for part, _ in parts]
    values = torch.stack(kept)
    assert set(values.tolist()) == {0., 1 / 0.75}
    assert (values > 0).double().mean() == pytest.approx(0.75, abs=0.06)  # 1200 draws: four standard deviations


def test_indices_are_made_once_for_a_combination_of_sizes(packing: Packing) -> None:
    assert pack(dict(GRIDS), CPU) is packing and pack({((3, 5), 1): [0, 1]}, CPU) is not packing
    assert packing.to_canvas(1)[0] is packing.to_canvas(1, 1)[0] and packing.coarser(2, 1) is packing.coarser(2, 1)


def test_indices_of_inference_serve_training_later() -> None:
    model = PyramidCPVT(NARROW, padding='exact')
    images, sizes = torch.randn(2, 3, 64, 1120), [(64, 1120), (31, 33)]  # no other test has these sizes
    with torch.inference_mode():
        model(images, sizes)
    sum(out.mean() for out in model(images, sizes)).backward()


sides = st.integers(1, 100)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.tuples(sides, sides), min_size=2, max_size=5), seed=st.integers(0, 2**16), options=st.one_of(
    st.fixed_dictionaries(dict(sr_mode=st.sampled_from(['conv', 'pool']), out_norm=st.booleans(),
                               mlp_mode=st.sampled_from(['linear', 'conv', 'relu-conv']),
                               patch_mode=st.sampled_from(['disjoint', 'overlap']))),
    st.fixed_dictionaries(dict(stage_norm=st.booleans(), cls_token=st.booleans(),
                               patch_mode=st.sampled_from(['disjoint', 'overlap']))),
    st.fixed_dictionaries(dict(patch_size=st.sampled_from([8, 14, 16]), num_register_tokens=st.integers(0, 2),
                               cls_token=st.booleans()))))
def test_any_images_get_what_they_get_alone(sizes: list[tuple[int, int]], seed: int, options: dict) -> None:
    torch.manual_seed(seed)
    build = CPVT if 'patch_size' in options else PyramidCPVT
    arch = dict(embed_dims=24, depth=2, num_heads=3) if build is CPVT else dict(NARROW, depths=(1, 1, 1, 1))
    model = build(arch, padding='exact', **options)
    images = [torch.randn(3, *size) for size in sizes]
    for found, image, size in zip(model.forward_packed(images), images, sizes, strict=True):
        for output, expected in zip(found, model(image[None], [size]), strict=True):
            assert output.shape == expected.shape
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)


def test_a_list_of_images_needs_the_option() -> None:
    with pytest.raises(ValueError, match=r"valid_sizes are given, but padding is None: build .* padding='exact'"):
        PyramidCPVT(NARROW).forward_packed([torch.randn(3, 32, 32)])


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


@pytest.mark.parametrize('encoding', ['PEG', 'ParabolicPE'])
@both
def test_attention_to_all_images_at_once_is_that_to_each(build: Build, encoding: str, with_varlen: Mock,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(padding='exact', position_encoding=dict(type=encoding)).train()
    images = torch.randn(4, 3, 64, 96)
    at_once = outputs_and_gradients(model, images)
    assert with_varlen.call_count == model.num_blocks
    monkeypatch.setattr(packing_module, 'fits_varlen', lambda *args: False)
    torch.testing.assert_close(at_once, outputs_and_gradients(model, images), rtol=1e-9, atol=1e-9)
    assert with_varlen.call_count == model.num_blocks


def test_a_bias_is_added_to_the_logits_of_each_image(with_varlen: Mock) -> None:
    model = PyramidCPVT(NARROW, padding='exact', position_encoding=[dict(type='RelativePE'), dict(type='RotaryPE')])
    images = torch.randn(4, 3, 64, 96)
    for i, size in enumerate(SIZES):
        expected = model(alone(images[i:i + 1], [size]))[-1]
        found = model(images, SIZES)[-1][i:i + 1, :, :expected.shape[2], :expected.shape[3]]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert not with_varlen.called


@pytest.mark.slow
@torch.no_grad()
def test_compiled_code_has_two_graphs_for_any_sizes(with_varlen: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setattr(packing_module.varlen, 'varlen_attn', opaque)
    counter = CompileCounterWithBackend('eager')
    model = PyramidCPVT(dict(NARROW, depths=(1, 1, 1, 1)), padding='exact', out_indices=(0, 1)).eval()
    compiled = torch.compile(model, backend=counter, dynamic=True)
    for count in (2, 5, 3, 4):
        sizes = [(int(height), int(width)) for height, width in torch.randint(33, 250, (count, 2))]
        images = torch.randn(count, 3, 256, 256)
        BatchInfo.of_images(images, sizes).attach(images)
        torch.testing.assert_close(compiled(images), model(images), rtol=0, atol=1e-9)
    assert 1 <= counter.frame_count <= 2


def test_a_block_of_packed_images_is_recomputed_as_others() -> None:
    packing = pack({((3, 5), 1): [0], ((2, 2), 1): [1]}, CPU)
    encodings = PyramidCPVT(NARROW).stages[0].position_encoding
    x, grads = torch.randn(1, 19, 8, requires_grad=True), []
    for with_cp in (False, 'selective'):
        torch.manual_seed(0)
        block = Block(0, BlockSpec(8, 2, 4, 2, with_cp=with_cp))
        grads.append(torch.autograd.grad(block(x, packing, encodings).sin().sum(), [x, *block.parameters()]))
    torch.testing.assert_close(*grads)
