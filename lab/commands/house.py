"""Measures the shape of this repository: lines, files, circles of imports, and what a forward pass runs.

The sizes are for information. `tests/test_house.py` holds the rules: one direction of imports, no circles, files and
functions that a reader can survey, and few Python calls in a forward pass.
"""
import ast
import cProfile
import pstats
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cpvt_mm import PEG, create_backbone

ROOT = Path(__file__).parents[2]
PACKAGES = ('cpvt_mm', 'openmmlab_tools', 'lab')
SOURCE = (*PACKAGES, 'tools', 'demo', 'projects')
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    """Returns the Python files of folders of the repository, but not what `.mim` links to."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob('*.py') if '.mim' not in path.parts)


def length(path: Path) -> int:
    return path.read_bytes().count(b'\n')


def definitions(path: Path) -> Iterator[tuple[str, Definition]]:
    """Yields the functions and methods of a file with their names, a method as `Class.method`."""
    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                yield prefix + child.name, child
            name = getattr(child, 'name', '') if isinstance(child, ast.ClassDef | Definition) else ''
            yield from inside(child, f'{prefix}{name}.' if name else prefix)
    yield from inside(ast.parse(path.read_text()), '')


def imports(path: Path) -> set[str]:
    """Returns the modules that a file names in imports, also in functions; `from a import b` names `a` and `a.b`."""
    package = path.parent.relative_to(ROOT).parts
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = '.'.join([*(package[:len(package) - node.level + 1] if node.level else ()),
                             *([node.module] if node.module else [])])
            names |= {base} | {f'{base}.{alias.name}' for alias in node.names}
    return names


def module_of(path: Path) -> str:
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


def room_of(path: Path) -> str:
    """Returns the folder of a file, or the file itself where it lies at the top of a package."""
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if len(parts) > 2 or parts[-1] == '__init__' else parts)


def import_graph() -> dict[str, set[str]]:
    """Returns for each module of the packages the modules of ours that it imports."""
    files = {module_of(path): path for path in python_files(*PACKAGES)}
    return {module: {name for name in imports(path) if name in files} - {module} for module, path in files.items()}


def graph_of_rooms() -> dict[str, set[str]]:
    """Returns for each room of the packages the other rooms that it imports."""
    files, graph = python_files(*PACKAGES), defaultdict[str, set[str]](set)
    rooms = {module_of(path): room_of(path) for path in files}
    collecting = {module_of(path) for path in files if path.name == '__init__.py'}  # names for those outside
    for module, others in import_graph().items():
        if module not in collecting:
            graph[rooms[module]] |= {rooms[name] for name in others} - {rooms[module]}
    return graph


def reached(module: str) -> dict[str, int]:
    """Returns the modules that a reader opens who follows all imports from one, with their lines."""
    graph, files = import_graph(), {module_of(path): path for path in python_files(*PACKAGES)}
    todo, known = [module], set[str]()
    while todo:
        name = todo.pop()
        if name not in known:
            known.add(name)
            todo += graph[name]
    return {name: length(files[name]) for name in sorted(known)}


def broken_imports() -> list[str]:
    """Returns imports from our packages that name no file; type checkers pass them, as OpenMMLab has no types."""
    known = set(map(module_of, python_files(*PACKAGES)))
    return [f'{path.relative_to(ROOT)}: {name}' for path in python_files(*SOURCE, 'tests') for name in imports(path)
            if name.split('.')[0] in PACKAGES and name not in known and name.rpartition('.')[0] not in known]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns groups of files or folders that import each other, directly or through other files."""
    reach = {room: set(others) for room, others in graph.items()}
    for middle in graph:  # Warshall's algorithm
        for others in reach.values():
            others |= reach[middle] if middle in others else set()
    return [list(group) for group in {tuple(sorted(other for other in reach[room] if room in reach.get(other, ())))
                                      for room in graph if room in reach[room]}]


def sizes() -> dict[str, tuple[int, int]]:
    """Returns the numbers of lines and Python files: of each folder, of everything except tests, and of the tests."""
    lines_and_files = {name: (sum(map(length, paths)), len(paths))
                       for name, paths in ((name, python_files(name)) for name in (*PACKAGES, 'projects'))}
    tools = python_files('tools', 'demo')
    lines_and_files['tools and demo'] = sum(map(length, tools)), len(tools)
    lines_and_files['all'] = tuple(map(sum, zip(*lines_and_files.values(), strict=True)))  # type: ignore[assignment]
    tests = python_files('tests')
    return {**lines_and_files, 'tests': (sum(map(length, tests)), len(tests))}


def longest() -> dict[str, tuple[int, str]]:
    """Returns the lines and the name of the longest file and of the longest function."""
    paths = python_files(*SOURCE)
    functions = [(1 + (node.end_lineno or 0) - node.lineno, f'{path.relative_to(ROOT)}: {name}')
                 for path in paths for name, node in definitions(path)]
    return {'file': max((length(path), str(path.relative_to(ROOT))) for path in paths), 'function': max(functions)}


def forward_pass() -> dict[str, int]:
    """Returns what a forward pass of the small pyramid runs: calls, functions to the PEG, files and their lines.

    Calls are the primitive ones that cProfile counts, in Python and in C. It calls a function that runs inside itself
    recursive; such calls are those of torch's `Module.__call__` for parts of parts, two for each, and are not counted.
    """
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
    return {'calls of a forward pass': stats.prim_calls, 'functions to the PEG': depths[0],
            'files of a forward pass': len(files), 'lines of a forward pass': sum(length(Path(name)) for name in files)}


def is_of_backbones(name: str) -> bool:
    return 'cpvt_mm' in Path(name).parts[-4:]


def main() -> None:
    for name, (lines, files) in sizes().items():
        print(f'{name:24}{lines:8} lines{files:6} files')
    for kind, (lines, name) in longest().items():
        print(f'longest {kind}: {lines} lines, {name}')
    for name, value in forward_pass().items():
        print(f'{name:40}{value:8}')
    backbone = reached('cpvt_mm.models.pyramid_cpvt')
    print(f'{"the backbone imports":24}{sum(backbone.values()):8} lines{len(backbone):6} files')
    for room, others in sorted(graph_of_rooms().items()):
        print(f'{room} -> {", ".join(sorted(others))}')
