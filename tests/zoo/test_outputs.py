"""Weights of other libraries give their outputs here."""
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT, load_pretrained
from cpvt_mm.zoo.families import detect_format
from cpvt_mm.zoo.members import RELEASED
from openmmlab_tools.checkpoints.fitting import load_weights
from tests.backbones import GOLDEN, golden_cases, pretrained
from tests.zoo.checkpoints import (
    ROPE_VIT,
    Weights,
    authors_of_dinov2,
    authors_of_dinov3,
    of_timm,
    options_of,
    options_of_dino,
)
from tests.zoo.dino import LIBRARIES, NARROW, PATCH_SIZES, arguments, reference
from tests.zoo.peers import PEERS, build, peer

NEEDS_224 = ('transformers-pvt', 'pvt')  # the PVT of transformers accepts images of 224 x 224 only


def assert_close(outputs: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for output, other in zip(outputs, expected, strict=True):
        # Rounding of a few blocks, relative to the largest value: tens of times 6e-8.
        torch.testing.assert_close(output, other, rtol=0, atol=1e-5 * float(other.abs().max()))


@torch.no_grad()
@pytest.mark.parametrize('name', PEERS)
def test_of_libraries(name: str, tmp_path: Path) -> None:
    foreign, run, model = peer(name)
    torch.save(foreign.state_dict(), tmp_path / 'foreign.pth')
    load_pretrained(model, tmp_path / 'foreign.pth')
    only_size = 64 if 'ViT' in name else 224 if PEERS[name][0] in NEEDS_224 else None
    for size in [(only_size, only_size)] if only_size else [(64, 96), (224, 224)]:
        image = torch.randn(1, 3, *size)
        assert_close(model(image), run(image))


@torch.no_grad()
@pytest.mark.parametrize('name, norm_eps', [('official', 1e-6), ('timm', 1e-6), ('mmseg', 1e-5)])
def test_of_files_of_twins(name: str, norm_eps: float) -> None:
    model = pretrained(GOLDEN / f'{name}.pth', norm_eps=norm_eps)
    for image, expected in golden_cases(name):
        assert_close(model(image), expected)
    if name != 'mmseg':  # which has no norm at the end
        model = pretrained(GOLDEN / f'{name}.pth', norm_eps=norm_eps, out_indices=(3,), out_norm=True)
        weights = torch.load(GOLDEN / f'{name}.pth', weights_only=True)
        assert torch.equal(model.out_norms['3'].weight, weights['norm.weight'])


@torch.no_grad()
def test_of_a_file_of_timms_deit() -> None:
    arrays = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / 'deit_timm_io.npz').items()}
    model = pretrained(GOLDEN / 'deit_timm.pth', CPVT, img_size=64, position_encoding=dict(type='LearnablePE'),
                       out_type='raw')
    assert_close(model(arrays['input']), [arrays['tokens']])


@torch.no_grad()
@pytest.mark.parametrize('kind', PATCH_SIZES)
@pytest.mark.parametrize('library', LIBRARIES)
def test_of_files_of_narrow_dinos(library: str, kind: str, tmp_path: Path) -> None:
    golden, patch = torch.load(GOLDEN / 'dino.pth', weights_only=True), PATCH_SIZES[kind]
    torch.save(golden['models'][library, kind]['weights'], tmp_path / 'a.pth')
    arch = dict(NARROW, mlp_ratio=6) if kind == 'dinov3-swiglu' else NARROW
    model = build(CPVT, arch, img_size=4 * patch, out_type='raw', **arguments(kind, library)).eval()
    load_pretrained(model, tmp_path / 'a.pth')
    for image, tokens in zip(golden['images'][patch], golden['models'][library, kind]['tokens'], strict=True):
        assert_close(model(image), [tokens])


@torch.no_grad()
@pytest.mark.parametrize(('library', 'kind', 'rename'), [
    *((library, kind, dict) for library in LIBRARIES for kind in PATCH_SIZES),
    ('timm', 'dinov2-swiglu', authors_of_dinov2),
    *(('timm', kind, authors_of_dinov3) for kind in ('dinov3', 'dinov3-swiglu'))])
def test_of_narrow_dinos(library: str, kind: str, rename: Callable[[Weights], Weights], tmp_path: Path) -> None:
    patch, sizes = PATCH_SIZES[kind], [*NARROW.values()]
    foreign, run = reference(library, kind, *sizes, 4 * patch)
    torch.save(rename(foreign.state_dict()), tmp_path / 'a.pth')
    model = build(CPVT, **options_of_dino(library, kind), out_type='raw').eval()
    load_pretrained(model, tmp_path / 'a.pth')
    image = torch.randn(1, 3, 4 * patch, 4 * patch)
    assert_close(model(image), [run(image)])


@torch.no_grad()
@pytest.mark.parametrize(('name', 'fmt'), [
    ('dinov2-small-reg4', 'timm'), ('dinov3-small', 'timm-dinov3'), ('lingbot-small', 'timm-dinov3'),
    ('lingbot-giant', 'timm-dinov3'), ('tipsv2-base', 'timm'), ('tipsv2-giant', 'timm'),
    *((name, 'timm-rope-' + name.split('-')[3]) for name in ROPE_VIT)])
def test_of_narrow_models_of_timm(name: str, fmt: str, tmp_path: Path, log: list) -> None:
    foreign, patch = of_timm(name), RELEASED[name].parts.get('patch_size', 16)
    torch.save(foreign.state_dict(), tmp_path / 'a.pth')
    model = build(CPVT, **options_of(name), out_type='raw').eval()
    load_pretrained(model, tmp_path / 'a.pth')
    message, = [text for level, text in log if level != 'DEBUG']
    assert f'format {fmt}, 100.0 %' in message and message.endswith('left over: nothing')
    for rows, columns in ((4, 4), (6, 10), (14, 8)):  # the first is that of the table
        image = torch.randn(1, 3, rows * patch, columns * patch)
        torch.testing.assert_close(model(image)[0], foreign.forward_features(image), atol=1e-4, rtol=0)


class Whole(nn.Module):
    """A backbone and a head."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(2, 2)


@pytest.mark.parametrize('name', ['mmseg MiT', 'mmdet PVT'])
def test_checkpoints_of_whole_models_load_as_they_are(name: str, tmp_path: Path) -> None:
    foreign, _, backbone = peer(name)
    whole, model = Whole(foreign), Whole(backbone)
    expected = detect_format(foreign.state_dict(), '').format.translate(foreign.state_dict())
    torch.save(dict(state_dict=whole.state_dict()), tmp_path / 'model.pth')
    for load in (lambda: load_weights(model, tmp_path / 'model.pth'),
                 lambda: model.load_state_dict(whole.state_dict())):
        model.load_state_dict({key: torch.zeros_like(value) for key, value in model.state_dict().items()})
        load()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in backbone.state_dict().items())
        assert torch.equal(model.head.weight, whole.head.weight)
