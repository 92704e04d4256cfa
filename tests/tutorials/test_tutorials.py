"""The notebooks of docs/tutorials run from the first cell to the last."""
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / 'docs/tutorials').glob('*.ipynb'))
# Tests train for fewer iterations than readers do.
SHORTER = {
    'first_detector': {'num_train=200, num_val=20': 'num_train=8, num_val=4', 'iter_400': 'iter_50',
                       "'train_cfg.max_iters': 400, 'train_cfg.val_interval': 400":
                       "'train_cfg.max_iters': 50, 'train_cfg.val_interval': 50"},
    'which_encoding': {'iterations=150': 'iterations=5'}}


@pytest.mark.slow
@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_it_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')])))
    content = nbformat.read(notebook, as_version=4)
    for long, short in SHORTER[notebook.stem].items():
        cell, = (cell for cell in content.cells if long in cell.source)
        cell.source = cell.source.replace(long, short)
    NotebookClient(content, timeout=900, resources=dict(metadata=dict(path=str(tmp_path)))).execute()  # an error raises


@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_it_is_committed_with_its_figures_and_nothing_of_a_machine(notebook: Path) -> None:
    outputs = [output for cell in nbformat.read(notebook, as_version=4).cells for output in cell.get('outputs', [])]
    assert sum('image/png' in output.get('data', {}) for output in outputs) >= 2
    assert all(output['output_type'] in ('display_data', 'execute_result') for output in outputs)
    assert '/home/' not in notebook.read_text() and str(ROOT) not in notebook.read_text()
