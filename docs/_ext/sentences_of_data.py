"""A Sphinx extension that appends all sentences about data to reference/data_sentences, by file."""
import ast
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

PACKAGE = Path(__file__).parents[2] / 'openmmlab_tools'
TELLING = ('UserError', 'leave', 'leave_all', 'remark', 'told', 'append')  # calls that take text for readers


def text_of(node: ast.AST) -> str:
    """Returns the text of a constant or an f-string, with … for each value; '' for other code."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ''
    if isinstance(node, ast.JoinedStr):
        return ''.join(text_of(part) or '…' for part in node.values)
    return ''


def sentences(module: ast.Module) -> Iterator[str]:
    """Yields the texts that a module may tell."""
    for call in ast.walk(module):
        name = getattr(call.func, 'id', getattr(call.func, 'attr', '')) if isinstance(call, ast.Call) else ''
        for argument in call.args if name in TELLING else ():
            if ' ' in (text := text_of(argument).strip()):
                yield text


def append_sentences(app: Sphinx, page: str, source: list[str]) -> None:
    if page != 'reference/data_sentences':
        return
    for path in sorted(path for name in ('own_data', 'readers') for path in (PACKAGE / name).rglob('*.py')):
        module = ast.parse(path.read_text())
        if found := list(dict.fromkeys(sentences(module))):
            title = (ast.get_docstring(module) or path.stem).split('\n')[0]
            source[0] += f'\n## {title}\n\n' + ''.join(f'- {one.replace("<", "&lt;")}\n' for one in found)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect('source-read', append_sentences)
    return dict(parallel_read_safe=True)
