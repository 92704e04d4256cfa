import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import GOLDEN

CONVERT, PUBLISH = 'model_converters/convert_checkpoint.py', 'model_converters/publish_model.py'


class Exploit:

    def __reduce__(self) -> tuple:
        return os.mkdir, ('hacked',)


def test_a_file_of_mmseg_is_converted_and_published(run_tool: Callable[..., str], tmp_path: Path,
                                                    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch,
                                                    ) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict=torch.load(GOLDEN / 'mmseg.pth', weights_only=True), optimizer={}), 'a.pth')
    assert run_tool(CONVERT, 'a.pth', 'b.pth', '--to', 'twins') == ''
    assert capsys.readouterr().out == ('a.pth: a PyramidCPVT of format mmseg\n'
                                       'a.pth: models of its format have a norm_eps of 1e-05, which b.pth does not '
                                       'contain: set it in the new model\n'
                                       'b.pth: written in format twins or timm; left out: optimizer\n')
    assert run_tool(PUBLISH, 'b.pth', 'model') == ''
    [path] = tmp_path.glob('model-*.pth')
    assert capsys.readouterr().out == f'{path.name}: written; left out: nothing\n'
    assert 'pos_block.0.proj.0.weight' in torch.load(path, weights_only=True)['state_dict']


@pytest.mark.parametrize('arguments', [(CONVERT, 'evil.pth', 'b.pth'), (PUBLISH, 'evil.pth', 'b')])
def test_code_in_a_checkpoint_is_refused_in_a_sentence(arguments: tuple[str, ...], run_tool: Callable[..., str],
                                                       tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict={}, extra=Exploit()), 'evil.pth')
    assert run_tool(*arguments).startswith('error: checkpoint evil.pth is damaged, or contains code or objects')
    assert [path.name for path in tmp_path.iterdir()] == ['evil.pth']
