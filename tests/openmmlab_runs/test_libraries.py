"""Libraries of the stack that are others than they should be."""
import sys
from pathlib import Path

import pytest

from openmmlab_runs.libraries import require
from tests.conftest import refusal


@pytest.mark.parametrize('library', ['mmcv', 'mmdet', 'mmseg', 'mmpretrain'])
@pytest.mark.parametrize('content, version', [
    (None, 'unknown'), ('', 'unknown'), ('__version__ = None', 'None'), ('__version__ = "0.30.0"', '0.30.0')])
def test_another_library_of_the_name_is_told_with_its_place(library: str, content: str | None, version: str,
                                                            tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / library).mkdir()
    if content is not None:
        (tmp_path / library / '__init__.py').write_text(content)
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition('.')[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    told = refusal(require, library, error=ImportError)
    assert told.startswith(f'{library} cannot be imported ({tmp_path}/{library} is found first, of version {version}, ')
    sys.modules.pop(library)
