"""Measures the shape of this repository: lines, files, circles of imports, and what a forward pass runs.

`tests/test_house.py` compares the numbers with `[tool.house]` in pyproject.toml.
"""
import ast
import cProfile
import pstats
import re
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cpvt_mm import PyramidCPVT, create_backbone
from cpvt_mm.encodings import PEG
from cpvt_mm.models.backbone import Backbone

ROOT = Path(__file__).parents[2]
PACKAGES = ('cpvt_mm', 'openmmlab_runs', 'openmmlab_data', 'openmmlab_compat', 'lab')
SOURCE = (*PACKAGES, 'tools', 'demo', 'projects')
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    """Returns the Python files of folders of the repository, but not what `.mim` links to."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob('*.py') if '.mim' not in path.parts)


def length(path: Path) -> int:
    return path.read_bytes().count(b'\n')


def words(*paths: Path) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def definitions(path: Path) -> Iterator[tuple[str, Definition]]:
    """Yields the functions and methods of a file with their names, a method as `Class.method`."""
    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                yield prefix + child.name, child
            name = getattr(child, 'name', '') if isinstance(child, ast.ClassDef | Definition) else ''
            yield from inside(child, f'{prefix}{name}.' if name else prefix)
    yield from inside(ast.parse(path.read_text()), '')


def arguments_of(node: Definition) -> int:
    """Returns the number of arguments, without `self` and `cls`."""
    names = [arg.arg for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
    return len(names) - (names[:1] in (['self'], ['cls']))


def imports(path: Path) -> set[str]:
    """Returns the modules that a file names in imports, also in functions; `from a import b` names `a` and `a.b`."""
    package = path.parent.relative_to(ROOT).parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = '.'.join([*(package[:len(package) - node.level + 1] if node.level else ()),
                             *([node.module] if node.module else [])])
            found |= {base} | {f'{base}.{alias.name}' for alias in node.names}
    return found


def module_of(path: Path) -> str:
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


def room_of(path: Path) -> str:
    """Returns the folder of a file, or the file itself where it lies at the top of a package."""
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if len(parts) > 2 or parts[-1] == '__init__' else parts)


def import_graph() -> dict[str, set[str]]:
    """Returns for each room of the packages the other rooms that it imports."""
    rooms = {module_of(path): room_of(path) for path in python_files(*PACKAGES)}
    graph: dict[str, set[str]] = defaultdict(set)
    for path in python_files(*PACKAGES):
        if path.name != '__init__.py':  # collects names for those outside
            graph[room_of(path)] |= {rooms[name] for name in imports(path) if name in rooms} - {room_of(path)}
    return graph


def broken_imports() -> list[str]:
    """Returns imports from our packages that name no file; type checkers pass them, as OpenMMLab has no types."""
    known = set(map(module_of, python_files(*PACKAGES)))
    return [f'{path.relative_to(ROOT)}: {name}' for path in python_files(*SOURCE, 'tests') for name in imports(path)
            if name.split('.')[0] in PACKAGES and name not in known and name.rpartition('.')[0] not in known]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns groups of rooms that import each other, directly or through others."""
    reach = {room: set(others) for room, others in graph.items()}
    for middle in graph:  # Warshall's algorithm
        for others in reach.values():
            others |= reach[middle] if middle in others else set()
    return [list(group) for group in {tuple(sorted(other for other in reach[room] if room in reach.get(other, ())))
                                      for room in graph if room in reach[room]}]


def repeated_names() -> list[str]:
    """Returns names of files and of public classes that occur more than once in the packages.

    Each package may have a `registry`, as mmengine looks for one, and `commands` are called as people type them.
    """
    files = [path for path in python_files(*PACKAGES)
             if path.stem not in ('__init__', '__main__', 'registry') and path.parent.name != 'commands']
    classes = [node.name for path in files for node in ast.parse(path.read_text()).body
               if isinstance(node, ast.ClassDef) and not node.name.startswith('_')]
    return [name for name, count in Counter([*(path.name for path in files), *classes]).items() if count > 1]


def sizes() -> dict[str, tuple[int, int]]:
    """Returns the lines and files of Python of each folder, of all but tests, and of the tests."""
    found = {name: (sum(map(length, paths)), len(paths))
             for name, paths in ((name, python_files(name)) for name in (*PACKAGES, 'projects'))}
    tools = python_files('tools', 'demo')
    found['tools and demo'] = sum(map(length, tools)), len(tools)
    found['all'] = tuple(map(sum, zip(*found.values(), strict=True)))  # type: ignore[assignment]
    tests = python_files('tests')
    return {**found, 'tests': (sum(map(length, tests)), len(tests))}


def shape() -> dict[str, int]:
    """Returns the largest of each kind, and the words of the docs."""
    functions = [(name, node) for path in python_files(*SOURCE) for name, node in definitions(path)]
    backbones = {f'{kind.__name__}.__init__' for kind in (PyramidCPVT, *Backbone.__subclasses__())}
    return {
        'lines of a file': max(map(length, python_files(*SOURCE))),
        'lines of a function': 1 + max((node.end_lineno or 0) - node.lineno for _, node in functions),
        'arguments of a function': max(arguments_of(node) for name, node in functions if name not in backbones),
        'arguments of a backbone': max(arguments_of(node) for name, node in functions if name in backbones),
        'circles of folders': len(circles(import_graph())),
        'names that occur twice': len(repeated_names()),
        'cpvt_mm in openmmlab_*': sum(len(re.findall('cpvt_mm', path.read_text()))
                                      for path in python_files(*PACKAGES[1:4])),
        'words of docs': words(*(path for path in (ROOT / 'docs').rglob('*.md') if '_build' not in path.parts)),
        'words of CHANGELOG': words(ROOT / 'CHANGELOG.md'),
    }


def forward_pass() -> dict[str, int]:
    """Returns what a forward pass of the small pyramid runs: calls (cProfile), functions to the PEG, lines of files."""
    model, image = create_backbone('pyramid-cpvt-small').eval(), torch.zeros(1, 3, 64, 64)
    model(image)
    profile = cProfile.Profile()
    with torch.no_grad():
        profile.runcall(model, image)
    stats: Any = pstats.Stats(profile)  # types are not known for its numbers
    files = {name for name, _, _ in stats.stats if is_of_backbones(name)}
    depths: list[int] = []

    def measure(*_: object) -> None:
        depths.append(sum(is_of_backbones(frame.filename) for frame in traceback.extract_stack()))

    peg = next(module for module in model.modules() if isinstance(module, PEG))
    next(child for child in peg.modules() if isinstance(child, torch.nn.Conv2d)).register_forward_pre_hook(measure)
    model(image)
    return {'calls of a forward pass': stats.total_calls, 'functions to the PEG': depths[0],
            'files of a forward pass': len(files), 'lines of a forward pass': sum(length(Path(name)) for name in files)}


def is_of_backbones(name: str) -> bool:
    return 'cpvt_mm' in Path(name).parts[-4:]


def main() -> None:
    for name, (lines, files) in sizes().items():
        print(f'{name:24}{lines:8} lines{files:6} files')
    for name, value in {**shape(), **forward_pass()}.items():
        print(f'{name:40}{value:8}')
    for room, others in sorted(import_graph().items()):
        print(f'{room} -> {", ".join(sorted(others))}')
