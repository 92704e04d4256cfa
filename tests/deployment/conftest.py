"""Exports are slow: models here are as small as can be."""
from pathlib import Path

import pytest
import torch
from torch import nn

from cpvt_mm import CPVT
from cpvt_mm.deployment import check, compare
from cpvt_mm.deployment.exporting import FORMATS, Format, export_program

SMALL = dict(embed_dims=24, depth=1, num_heads=3)


@pytest.fixture
def small() -> CPVT:
    """A plain backbone that sees positions."""
    return CPVT(SMALL, patch_size=8).eval()


def assert_files_are_right(model: nn.Module, folder: Path) -> None:
    """Exports once, and compares the files of all formats with the model at the ten sizes."""
    torch.compiler.reset()
    program = export_program(model)
    for suffix, fmt in FORMATS.items():
        assert_file_is_right(model, program, fmt, folder / f'model{suffix}')


def assert_file_is_right(model: nn.Module, program: torch.export.ExportedProgram, fmt: Format, path: Path) -> None:
    fmt.write(path, program, {})
    differences = list(compare(model, fmt.load(path)))
    assert len(differences) == 10
    check(differences)
