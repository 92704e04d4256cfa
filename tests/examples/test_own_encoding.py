"""The studies that compare an own encoding with others, from the data to the table."""
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpvt_mm import POSITION_ENCODINGS
from lab.commands.convert import write_camvid, write_nuclei
from tests.helpers import ROOT
from tests.lab.test_datasets import make_camvid, make_nuclei
from tests.tools.conftest import Run, read_rows

OWN = ROOT / 'examples/own_encoding'


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets configs import the encoding, and forgets it afterwards."""
    monkeypatch.syspath_prepend(OWN)
    yield
    sys.modules.pop('my_encodings', None)
    POSITION_ENCODINGS.module_dict.pop('RowPE', None)


@pytest.mark.slow
@pytest.mark.parametrize('study, write, make', [('camvid', write_camvid, make_camvid),
                                                ('nuclei', write_nuclei, make_nuclei)])
def test_an_own_encoding_is_compared(study: str, write: Callable[[Path, Path], Iterator[int]],
                                     make: Callable[[Path], Path], imported: None, run_tool: Run, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    list(write(make(tmp_path / 'source'), tmp_path / 'data' / study))
    monkeypatch.chdir(tmp_path)
    options: dict[str, object] = {'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1,
                                  'train_dataloader.batch_size': 2}
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        options |= {f'{loader}.num_workers': 0, f'{loader}.persistent_workers': False}
    assert run_tool('lab compare', OWN / f'{study}.py', '--only', 'RowPE', 'PEG', '--seeds', 0, '--jobs', 1,
                    '--cfg-options', *(f'{key}={value}' for key, value in options.items())) == ''
    rows = read_rows(tmp_path / f'work_dirs/{study}/results.csv')
    assert list(dict.fromkeys(row['variant'] for row in rows)) == ['RowPE', 'PEG']
    own, peg = (int(row['parameters']) for row in (rows[0], rows[-1]))
    assert peg - own == 9 * sum([32, 64, 128, 192])  # ten of a PEG a channel, and one of a row
