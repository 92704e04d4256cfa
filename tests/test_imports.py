"""Parts of the package import one another in one direction; importing it changes nothing for others."""
import ast
import subprocess
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.conftest import ROOT


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute names of all that a file's import statements name, wherever they stand."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[:len(package) - node.level + 1] if node.level else ()
            module = [*parents, *([node.module] if node.module else [])]
            yield from ('.'.join([*module, alias.name]) for alias in node.names)


def imports_of_parts() -> dict[str, set[str]]:
    """The other parts that each part imports: folders and modules right below `cpvt_mm`."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / 'cpvt_mm').glob('[!_]*'):
        part = path.stem
        files = path.rglob('*.py') if path.is_dir() else [path] if path.suffix == '.py' else []
        names = [name.split('.') for file in files for name in imported_modules(file)]
        found[part] = {name[1] for name in names if name[0] == 'cpvt_mm'} - {part}
    return found


def test_no_two_parts_import_each_other() -> None:
    TopologicalSorter(imports_of_parts()).prepare()  # raises a CycleError


def test_weights_are_read_without_models() -> None:
    assert 'models' not in imports_of_parts()['weights']


# The package itself imports parts of mmcv and mmengine, which may change settings.
STATE = '''
import logging, os, sys, warnings
import numpy, torch, mmcv
import mmengine.config, mmengine.hub, mmengine.model, mmengine.runner, mmengine.visualization
def is_torchs(one):  # torch adds entries when modules of its own are imported
    return getattr(one, '__module__', '').startswith('torch.')
def state():
    loggers = [logging.root, *(logging.getLogger(name) for name in sorted(logging.root.manager.loggerDict))]
    return dict(
        safe=[one for one in torch.serialization.get_safe_globals() if not is_torchs(one)],
        environment=dict(os.environ), warnings=warnings.filters[:],
        levels={logger.name: logger.level for logger in loggers if logger.level},
        numpy=[id(getattr(numpy, name)) for name in numpy.__all__], path=sys.path[:],
        dtype=torch.get_default_dtype(), threads=torch.get_num_threads())
before = state()
import cpvt_mm, cpvt_mm.loading, cpvt_mm.weights.reading
after = state()
print([name for name in before if before[name] != after[name]])
'''


def test_importing_changes_only_registries_and_the_finder_of_openmmlab_compat(
        run_python: Callable[[str], subprocess.CompletedProcess]) -> None:
    done = run_python(STATE)
    assert done.stdout.splitlines()[-1:] == ['[]'], done.stdout + done.stderr
