"""Settings of Sphinx for the documentation site; `make docs` builds it."""
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import signature, stringify_signature

ROOT = Path(__file__).parents[1]
# The extension and this checkout's package.
sys.path[:0] = [str(ROOT / 'docs/_ext'), str(ROOT)]

import openmmlab_tools.libraries  # noqa: E402

openmmlab_tools.libraries.require = lambda *modules: None  # they are mocked, without versions

project = 'cpvt_mm'
author = 'The cpvt_mm authors'
copyright = 'the cpvt_mm authors'
release = re.search(r"__version__ = '(.+)'", (ROOT / 'cpvt_mm/version.py').read_text())[1]

extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx_copybutton',
    'help_of_tools',
    'sentences_of_data',
]
exclude_patterns = ['_build']

# Notebooks are committed with their outputs; tests/examples runs them.
nb_execution_mode = 'off'
myst_enable_extensions = ['deflist']
myst_heading_anchors = 3

# mmcv would have to be compiled, and the others need it.
autodoc_mock_imports = ['terminaltables', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'pycocotools', 'gradio']
autodoc_member_order = 'bysource'
autodoc_typehints = 'description'
autodoc_typehints_description_target = 'documented'
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
toc_object_entries_show_parents = 'hide'
napoleon_numpy_docstring = False
# Attributes are listed in the description of their class.
napoleon_use_ivar = True
# Docstrings write code between single backticks, as Markdown does.
default_role = 'code'

html_theme = 'pydata_sphinx_theme'
html_title = f'{project} {release}'
html_static_path = ['_static']
html_css_files = ['layout.css']
html_show_sourcelink = False
html_theme_options = dict(
    navigation_with_keys=False,
    show_toc_level=2,
    footer_start=['copyright'],
    footer_end=[])
html_context = dict(default_mode='auto')
# A page without subpages needs no bar of sections.
html_sidebars = {'get_started': [], 'changelog': [], 'contributing': []}


def show_arguments(app: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None,
                   returned: str | None) -> tuple[str | None, str | None]:
    """Takes the arguments of a class from `__init__`; autodoc prefers `__new__`, which huggingface_hub's mixin has."""
    if what == 'class' and arguments == '(*args, **kwargs)':
        arguments = stringify_signature(signature(obj.__init__, bound_method=True), show_annotation=False)
    return arguments, returned


def setup(app: Sphinx) -> None:
    app.connect('autodoc-process-signature', show_arguments)
