"""The examples run, and what they show is true."""
import os
import re
import runpy
import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from torch import nn

from cpvt_mm import PyramidCPVT, create_backbone
from cpvt_mm.export import exported
from tests.backbones import NARROW
from tests.helpers import ROOT

Run = Callable[..., dict[str, Any]]
EXAMPLES = ROOT / 'examples'
# Decoders make layers also for the map without channels.
pytestmark = pytest.mark.filterwarnings('ignore:Initializing zero-element tensors:UserWarning')


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs an example as a script, in this process; returns its variables."""

    def run(name: str, *args: object) -> dict[str, Any]:
        monkeypatch.setattr(sys, 'argv', [name, *map(str, args)])
        return runpy.run_path(str(EXAMPLES / name), run_name='__main__')

    return run


def test_examples_are_short_listed_and_tested() -> None:
    tests = ''.join(path.read_text() for path in Path(__file__).parent.glob('test_*.py'))
    for path in EXAMPLES.glob('*.py'):
        assert len(path.read_text().splitlines()) <= 60 and f'{path.name}\'' in tests
        assert f'({path.name})' in (EXAMPLES / 'README.md').read_text()


def test_plain_pytorch_classifies_images_of_all_sizes(run_example: Run, capsys: pytest.CaptureFixture) -> None:
    run_example('plain_pytorch.py')
    sizes, losses = zip(*(line.split(': loss ') for line in capsys.readouterr().out.splitlines()), strict=True)
    assert len(set(sizes)) > 5
    assert float(losses[-1]) < log(2) / 2  # half of that of a guess


@pytest.mark.usefixtures('float64')
def test_adapters_learn_alone_and_merge_into_the_weights(run_example: Run, capsys: pytest.CaptureFixture) -> None:
    actual = run_example('peft_lora.py')
    torch.manual_seed(0)
    before, after = create_backbone(actual['NAME']).state_dict(), actual['backbone'].state_dict()
    assert before.keys() == after.keys() and all('.lora_' in name for name in actual['learnt'])
    # Of each of its 8 blocks three weights, to which two matrices belong each.
    adapted = {name for name in before if re.fullmatch(r'stages\.\d\.blocks\.\d\.attn\.(q|kv|proj)\.weight', name)}
    assert {name for name in before if not torch.equal(before[name], after[name])} == adapted and len(adapted) == 8 * 3
    torch.testing.assert_close(actual['merged'], actual['adapted'])
    losses = re.findall(r'^loss (.+)$', capsys.readouterr().out, re.MULTILINE)
    assert float(losses[-1]) < float(losses[0]) / 2


@pytest.mark.slow
def test_int8_products(run_example: Run, toy_shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    files = [tmp_path / 'float32.onnx', tmp_path / 'int8.onnx']
    backbone = PyramidCPVT({**NARROW, 'depths': (1, 1, 1, 1)}).eval()
    with exported(backbone, files[0], dict(mean='[128, 128, 128]', std='[64, 64, 64]')):
        pass
    actual = run_example('onnxruntime_int8.py', *files, toy_shapes / 'images/training')
    size, _, errors = re.fullmatch(r'size (.+)x, time (.+)x, errors (.+)', capsys.readouterr().out.strip()).groups()
    assert float(size) < 0.5  # a quarter for the weights; the graph stays
    # A weight is off by half a step of 1/127 of the largest in its row at most, an input by half of 1/255 of its range.
    assert all(0 < float(error) < 0.1 for error in errors.split()) and len(errors.split()) == 4
    # No image both calibrates and compares.
    assert len(actual['errors']) == len(actual['feeds']) / 2 and next(actual['calibration'], None) is None
    maps = actual['int8'].run(None, {'image': np.zeros((1, 3, 33, 47), np.float32)})
    assert [x.shape[2:] for x in maps] == [(9, 12), (5, 6), (3, 3), (2, 2)]


@pytest.mark.slow
@torch.no_grad()
def test_decoders_of_smp_give_logits_of_the_size_of_the_image(run_example: Run, capsys: pytest.CaptureFixture) -> None:
    actual = run_example('segmentation_models_pytorch_decoders.py')
    assert capsys.readouterr().out.splitlines() == [
        f'{decoder}: (1, 3, 65, 97)' for decoder in ('Unet', 'FPN', 'UPerNet', 'Segformer')]
    unet = actual['smp'].Unet(actual['NAME'], encoder_weights=None, classes=2).eval()
    image = torch.randn(1, 3, 33, 97)
    padded = nn.functional.pad(image, (0, 128 - 97, 0, 64 - 33))
    assert torch.equal(actual['segment'](unet, image), unet(padded)[..., :33, :97])
    assert all(map(torch.equal, unet.encoder(padded)[2:], unet.encoder.model(padded)))


def test_models_of_transformers_train_with_their_backbones(run_example: Run, capsys: pytest.CaptureFixture) -> None:
    models = run_example('transformers_heads.py')['models']()
    assert [line.partition(':')[0] for line in capsys.readouterr().out.splitlines()] == list(models)
    for model, labels in models.values():
        model.train()(torch.randn(2, 3, 64, 96), **labels).loss.backward()
        grads = [parameter.grad for key, parameter in model.named_parameters() if '.stages.' in key]
        assert len(grads) > 100 and all(grad is not None and grad.any() for grad in grads)


@pytest.mark.slow
def test_the_adapter_for_torchvision_trains() -> None:
    guide = (ROOT / 'docs/guides/other_frameworks.md').read_text()
    code, = re.findall(r'```python\n([^`]*torchvision[^`]*)```', guide)
    actual: dict[str, Any] = {}
    exec(code, actual)
    boxes = dict(boxes=torch.tensor([[10., 10., 50., 40.]]), labels=torch.tensor([1]))
    losses = actual['model'](list(torch.rand(2, 3, 64, 96)), [boxes, boxes])
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in actual['model'].backbone.body.parameters())


# The notebooks of docs/tutorials.
NOTEBOOKS = sorted((ROOT / 'docs/tutorials').glob('*.ipynb'))
# Tests train for fewer iterations than readers do.
SHORTER = {
    'first_detector': {'num_train=800, num_val=20': 'num_train=8, num_val=4', 'iter_450': 'iter_10',
                       "{'log_level': 'WARNING'}": "{'log_level': 'WARNING', 'train_cfg.max_iters': 10, "
                                                   "'train_cfg.val_interval': 10}"},
    'which_encoding': {'iterations=150': 'iterations=5'}}


@pytest.mark.slow
@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')])))
    content = nbformat.read(notebook, as_version=4)
    for long, short in SHORTER[notebook.stem].items():
        cell, = (cell for cell in content.cells if long in cell.source)
        cell.source = cell.source.replace(long, short)
    NotebookClient(content, timeout=900, resources=dict(metadata=dict(path=str(tmp_path)))).execute()  # an error raises


@pytest.mark.parametrize('notebook', NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_has_its_figures_and_nothing_of_a_machine(notebook: Path) -> None:
    outputs = [output for cell in nbformat.read(notebook, as_version=4).cells for output in cell.get('outputs', [])]
    assert sum('image/png' in output.get('data', {}) for output in outputs) >= 2
    assert all(output['output_type'] in ('display_data', 'execute_result') for output in outputs)
    assert '/home/' not in notebook.read_text() and str(ROOT) not in notebook.read_text()
