"""Weights of DINOv2 and DINOv3 give the tokens of timm and transformers, narrow ones and whole small ones."""
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cpvt_mm import CPVT, create_backbone, load_pretrained
from tests.conftest import GOLDEN
from tests.zoo.dino import LIBRARIES, NARROW, PATCH_SIZES, arguments, reference

Golden = dict[str, Any]


@pytest.fixture(scope='module')
def golden() -> Golden:
    return torch.load(GOLDEN / 'dino.pth', weights_only=True)


def loaded(weights: dict[str, Tensor], folder: Path, model: CPVT) -> CPVT:
    torch.save(weights, folder / 'a.pth')
    load_pretrained(model, folder / 'a.pth')
    return model.eval()


def narrow(kind: str, library: str, **more: object) -> CPVT:
    arch = dict(NARROW, mlp_ratio=6) if kind == 'dinov3-swiglu' else NARROW
    return CPVT(arch, **{**arguments(kind, library), 'img_size': 4 * PATCH_SIZES[kind], 'out_type': 'raw', **more})


@torch.no_grad()
@pytest.mark.parametrize('kind', PATCH_SIZES)
@pytest.mark.parametrize('library', LIBRARIES)
def test_files_of_narrow_models_give_their_tokens(library: str, kind: str, golden: Golden, tmp_path: Path) -> None:
    of_model = golden['models'][library, kind]
    model = loaded(of_model['weights'], tmp_path, narrow(kind, library))
    for image, tokens in zip(golden['images'][PATCH_SIZES[kind]], of_model['tokens'], strict=True):
        torch.testing.assert_close(model(image)[0], tokens, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize('kind', ['dinov2', 'dinov2-reg4', 'dinov3'])
@pytest.mark.parametrize('library', LIBRARIES)
def test_whole_models_give_the_tokens_of_other_libraries(library: str, kind: str, tmp_path: Path) -> None:
    name, patch = kind.replace('dinov2', 'dinov2-small').replace('dinov3', 'dinov3-small'), PATCH_SIZES[kind]
    encoding = arguments(kind, library)['position_encoding']
    ours = create_backbone(name, out_type='raw', position_encoding=encoding)
    theirs, run = reference(library, kind, ours.out_channels[0], 12, ours.out_channels[0] // 64, 518)
    loaded(theirs.state_dict(), tmp_path, ours)
    for height, width in ((224, 224), (518, 392)):
        # Patches that are not full are dropped in transformers, refused in timm, and completed here.
        image = torch.randn(1, 3, height // patch * patch, width // patch * patch)
        torch.testing.assert_close(ours(image)[0], run(image), atol=1e-4, rtol=0)
