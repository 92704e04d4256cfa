"""The parts of the package import one another in one direction."""
import ast
from collections.abc import Iterator
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
