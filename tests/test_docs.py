"""Names and files that documents mention exist, and tables fit a page."""
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from mmengine.registry import Registry

import cpvt_mm.registry
import openmmlab_tools.registry

ROOT = Path(__file__).parents[1]
PAGES = [*(page for page in ROOT.glob('*.md') if page.name != 'CHANGELOG.md'),  # which has old names
         *(page for page in ROOT.glob('docs/**/*.md') if '_build' not in page.parts)]
MORE_PAGES = [*ROOT.glob('configs/*/README.md'), *ROOT.glob('projects/*/README.md'), ROOT / 'demo/nuclei/README.md',
              ROOT / 'openmmlab_tools/README.md', ROOT / 'examples/README.md']
PACKAGES = ('cpvt_mm', 'openmmlab_tools', 'lab')
FOLDERS = (*PACKAGES, 'configs', 'demo', 'docs', 'examples', 'projects', 'tests', 'tools')


def code(page: Path) -> str:
    """The code of a page: what is in backticks, and blocks that are no shell; without what is of an old commit."""
    text = page.read_text()
    return '\n'.join([*re.findall(r'`([^`\n]+)`(?!\s+of\s+commit)', text),
                      *re.findall(r'```(?:none|python)\n(.*?)```', text, re.S)])


def resolve(name: str) -> Any:
    """The module, class, attribute or registered type of a dotted name; an ImportError if there is none."""
    first, *rest = name.split('.')
    if len(rest) == 1 and any(registry.get(name) for registry in REGISTRIES):
        return None
    actual: Any = importlib.import_module(first) if first in PACKAGES else CLASSES[first]
    for part in rest:
        if not hasattr(actual, part):
            importlib.import_module(f'{actual.__name__}.{part}')
        actual = getattr(actual, part)
    return actual


def _classes() -> dict[str, type]:
    files = [path for package in ('cpvt_mm/models', 'cpvt_mm/encodings', 'cpvt_mm/tokens')
             for path in (ROOT / package).glob('*.py')]
    modules = [importlib.import_module('.'.join(path.relative_to(ROOT).with_suffix('').parts)) for path in files]
    return {name: value for module in modules for name, value in vars(module).items() if isinstance(value, type)}


CLASSES = _classes()
REGISTRIES = [value for module in (cpvt_mm.registry, openmmlab_tools.registry) for value in vars(module).values()
              if isinstance(value, Registry)]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_and_files_exist(page: Path) -> None:
    text, missing = code(page), []
    for name in re.findall(r'(?<![\w/.:-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w/])', text):
        if name.split('.')[0] in {*PACKAGES, *CLASSES} and not name.endswith('.py'):
            try:
                resolve(name)
            except ImportError:
                missing.append(name)
    assert missing == []


def missing_paths(text: str, folder: Path) -> list[str]:
    """Returns the paths in a text that do not exist, without paths of an old commit and of the built documentation.

    In a project, a path may be relative to its folder.
    """
    actual = re.finditer(rf'(?<![\w/.:-])(?:{"|".join(FOLDERS)})/[\w/.-]*\w', text)
    paths = [match[0] for match in actual if not re.match(r'`?\s+of\s+commit', text[match.end():])]
    return [path for path in paths if '/_build' not in path and not any((root / path).exists()
                                                                        for root in (ROOT, folder))]


@pytest.mark.parametrize('page', PAGES + MORE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page: Path) -> None:
    assert missing_paths(page.read_text(), page.parent) == []


@pytest.mark.parametrize('package', ['cpvt_mm', 'openmmlab_tools'])
def test_contributing_describes_each_folder(package: str) -> None:
    text = (ROOT / 'CONTRIBUTING.md').read_text()
    folders = [path.parent.name for path in (ROOT / package).glob('*/__init__.py')]
    assert len(folders) > 5 and [name for name in folders if f'`{package}/{name}`' not in text] == []


def test_missing_paths_are_noticed() -> None:
    text = ('`cpvt_mm/optim.py`, tools/no.py, lab/commands, (tests/no/), configs/cpvt/*.py, `lab/no.py` of commit 1, '
            'docs/_build/html, work_dirs/tools/x, README.md')
    assert missing_paths(text, ROOT) == ['tools/no.py', 'tests/no']


@pytest.mark.parametrize('page', PAGES + MORE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_fit_a_page(page: Path) -> None:
    """At most ten columns, and cells of at most 200 characters without the addresses of links."""
    for row in re.findall(r'^\|(.*)\|$', page.read_text(), re.M):
        cells = re.sub(r'\]\([^)]*\)', ']', row).split('|')
        assert len(cells) <= 10, row
        assert all(len(cell.strip()) <= 200 for cell in cells), row
