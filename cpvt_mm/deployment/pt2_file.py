"""Writes and runs files of torch.export."""
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from .batches import Run

DESCRIPTION = 'description.json'


def check_installed() -> None:
    """Does nothing, because only torch is needed."""


def write(path: Path, program: ExportedProgram, description: Mapping[str, str]) -> None:
    """Writes `program`, with `description` as an extra JSON file."""
    with path.open('wb') as file:  # torch requires a path to end in .pt2, but accepts any open file
        torch.export.save(program, file, extra_files={DESCRIPTION: json.dumps(dict(description))})


def load(path: Path) -> Run:
    """Loads the program in a file."""
    with path.open('rb') as file:
        module = torch.export.load(file).module()

    def run(image: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return tree_leaves(module(image))

    return run
