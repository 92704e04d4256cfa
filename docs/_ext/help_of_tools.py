"""A Sphinx extension that appends the `--help` of every tool, and the commands of the lab, to reference/tools."""
import io
import os
import runpy
import sys
from contextlib import redirect_stdout
from itertools import groupby
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

ROOT = Path(__file__).parents[2]


def read_help(tool: Path, mocked: list[str]) -> str:
    """The `--help` of a Python tool, which runs in this process: torch is imported once for all."""
    output, argv, path = io.StringIO(), sys.argv, sys.path[:]
    sys.argv, sys.path[:] = [str(tool), '--help'], [str(tool.parent), *path]
    os.environ['COLUMNS'] = '76'  # argparse breaks lines for the width of a terminal
    try:
        with mock(mocked), redirect_stdout(output):
            runpy.run_path(str(tool), run_name='__main__')
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f'{tool} --help ended with {end.code}') from end
    finally:
        sys.argv, sys.path[:] = argv, path
    return output.getvalue()


def read_comment(script: Path) -> str:
    """The comment at the head of a shell script."""
    lines = script.read_text().splitlines()[1:]
    return '\n'.join(line[2:] for line in lines[:next(i for i, line in enumerate(lines) if line[:1] != '#')])


def find_tools() -> list[Path]:
    """All tools for people, folder by folder; paths from the root of the repository."""
    modules = [*ROOT.glob('tools/**/*.py'), *ROOT.glob('demo/*.py')]
    files = [*(file for file in modules if '__main__' in file.read_text()), *ROOT.glob('tools/**/*.sh')]
    tools = [file.relative_to(ROOT) for file in files]
    return sorted(tools, key=lambda tool: (tool.parts[0] != 'tools', tool.parent, tool.name))


def append_help(app: Sphinx, page: str, source: list[str]) -> None:
    if page != 'reference/tools':
        return
    for folder, tools in groupby(find_tools(), key=lambda tool: tool.parent):
        source[0] += f'\n## {folder}\n'
        for tool in tools:
            text = (read_comment(ROOT / tool) if tool.suffix == '.sh'
                    else read_help(ROOT / tool, app.config.autodoc_mock_imports))
            source[0] += f'\n### {tool.name}\n\n```text\n{text}\n```\n'
    text = read_help(ROOT / 'lab/__main__.py', app.config.autodoc_mock_imports)
    source[0] += f'\n## python -m lab\n\n```text\n{text}\n```\n'


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect('source-read', append_help)
    return dict(parallel_read_safe=True)
