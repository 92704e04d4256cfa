from pathlib import Path
from pickle import PicklingError

import pytest
import torch

from cpvt_mm.files import write_checkpoint
from cpvt_mm.weights.reading import read_checkpoint


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_checkpoints_are_written_whatever_the_memory_of_tensors(suffix: str, tmp_path: Path) -> None:
    weight = torch.randn(2, 3)
    content = dict(weight=weight, tied=weight, transposed=weight.T, part=weight[1:])
    path = tmp_path / f'a{suffix}'
    write_checkpoint(path, content)
    assert list(tmp_path.iterdir()) == [path]
    read = read_checkpoint(path)
    assert set(read) == set(content) and all(torch.equal(read[name], tensor) for name, tensor in content.items())


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / 'a.pth').write_text('before')
    with pytest.raises((AttributeError, PicklingError)):  # the second one since Python 3.14
        write_checkpoint(tmp_path / 'a.pth', dict(function=lambda: None))
    assert [path.name for path in tmp_path.iterdir()] == ['a.pth']
    assert (tmp_path / 'a.pth').read_text() == 'before'
