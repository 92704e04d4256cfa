"""Models of transformers and torchvision on the pyramid."""
import runpy
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import ROOT

EXAMPLE = 'transformers_heads.py'
MODELS = ('UperNet', 'Mask2Former', 'D-FINE')


@pytest.fixture(scope='module')
def models() -> dict[str, tuple[nn.Module, dict[str, Any]]]:
    return runpy.run_path(str(ROOT / 'examples' / EXAMPLE))['models']()


def test_the_example_trains_each_model(capsys: pytest.CaptureFixture) -> None:
    runpy.run_path(str(ROOT / 'examples' / EXAMPLE), run_name='__main__')
    assert [line.partition(':')[0] for line in capsys.readouterr().out.splitlines()] == list(MODELS)


@pytest.mark.parametrize('name', MODELS)
def test_the_backbone_learns(name: str, models: dict) -> None:
    model, labels = models[name]
    model.train()(torch.randn(2, 3, 64, 96), **labels).loss.backward()
    grads = [parameter.grad for key, parameter in model.named_parameters() if '.stages.' in key]
    assert len(grads) > 100 and all(grad is not None and grad.any() for grad in grads)


def test_the_adapter_for_torchvision_trains() -> None:
    guide = (ROOT / 'docs/guides/other_frameworks.md').read_text()
    code = next(block.split('```')[0] for block in guide.split('```python\n') if 'torchvision' in block.split('```')[0])
    found: dict[str, Any] = {}
    exec(code, found)
    boxes = dict(boxes=torch.tensor([[10., 10., 50., 40.]]), labels=torch.tensor([1]))
    losses = found['model'](list(torch.rand(2, 3, 64, 96)), [boxes, boxes])
    sum(losses.values()).backward()
    assert all(parameter.grad is not None for parameter in found['model'].backbone.body.parameters())
