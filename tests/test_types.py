"""Type checkers know the names of the package, also those that are imported late, and find wrong ones."""
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cpvt_mm
from cpvt_mm.registry import LAZY_MODULES
from tests.helpers import ROOT

RIGHT = '''
import cpvt_mm
from cpvt_mm import POSITION_ENCODINGS, PyramidCPVT, UserError, create_backbone, load_pretrained, predict

found = cpvt_mm.predict('a.png', 'c.py', 'c.pth')
reveal_type(found[0])
reveal_type(found[0].boxes)
reveal_type(next(predict('a.png', 'c.py', 'c.pth', stream=True)))
reveal_type(create_backbone('pvtv2-b0'))
reveal_type(cpvt_mm.DetDataPreprocessor())
'''
REVEALED = ['openmmlab_tools.pictures.prediction.Prediction', 'numpy.ndarray',
            'openmmlab_tools.pictures.prediction.Pred',
            'cpvt_mm.models.pyramid_cpvt.PyramidCPVT', 'cpvt_mm.preprocessors.DetDataPreprocessor']
WRONG = ['cpvt_mm.predikt', 'from cpvt_mm import make_batch_invarient', 'found[0].boxs',
         "cpvt_mm.predict('a.png', 'c.py', 'c.pth', batch_size='a')",
         "cpvt_mm.predict('a.png', 'c.py', 'c.pth', tile_scale='x')", "create_backbone('pvtv2-b0', pretrained='yes')"]


def test_names_that_are_imported_late_are_written_twice_and_exist() -> None:
    tree = ast.parse(Path(cpvt_mm.__file__).read_text('utf-8'))
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING']
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    named = {alias.asname: node.module for node in imports for alias in node.names
             if alias.name != '*' and node.module != 'public'}
    assert {name: str(module).rpartition('.')[2] for name, module in named.items()} == {
        name: module.rpartition('.')[2] for name, module in {**LAZY_MODULES, **cpvt_mm.LATE}.items()}
    assert all(getattr(cpvt_mm, name).__name__ == name for name in named)
    with pytest.raises(AttributeError, match="has no attribute 'predikt'"):
        cpvt_mm.predikt  # noqa: B018


@pytest.mark.slow
def test_mypy_knows_types_and_finds_wrong_names(tmp_path: Path) -> None:
    pytest.importorskip('mypy')
    path = tmp_path / 'user.py'
    path.write_text(RIGHT + '\n'.join(WRONG))
    done = subprocess.run([sys.executable, '-m', 'mypy', '--strict', '--no-error-summary', '--cache-dir',
                           str(tmp_path / 'cache'), str(path)], cwd=tmp_path, env={'MYPYPATH': str(ROOT), 'PATH': ''},
                          capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith('user.py:')]
    types = re.findall('Revealed type is "(.*)"', '\n'.join(lines))
    assert [type_.startswith(begin) for type_, begin in zip(types, REVEALED, strict=True)] == [True] * len(REVEALED)
    faulty = {int(line.split(':')[1]) for line in lines if ' error: ' in line}
    first = RIGHT.count('\n') + 1
    assert faulty == {*range(first, first + len(WRONG))}
