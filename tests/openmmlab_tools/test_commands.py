"""The commands of this package alone, as `python -m openmmlab_tools` runs them."""
from pathlib import Path

from tests.tools.conftest import Run

CONFIG = """
default_scope = 'mmdet'
model = dict(type='{model}')
"""


def test_they_run_configs_without_another_package_of_this_repository(run_python: Run, tmp_path: Path) -> None:
    """Here a config without data, so that there is nothing to check, and the name of a model that nobody registers."""
    config = tmp_path / 'config.py'
    config.write_text(CONFIG.format(model='RetinaNet'))
    done = run_python(f'''
import runpy, sys
for command in ('--help', 'check {config}', 'check {tmp_path}/none.py'):
    sys.argv = ['openmmlab_tools', *command.split()]
    try:
        runpy.run_module('openmmlab_tools', run_name='__main__')
    except SystemExit as end:
        print(end)
print('cpvt_mm' in sys.modules)
''')
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ['train', 'test', 'predict', 'check'], done.stderr
    assert lines[5:] == ['Images checked: 0, errors: 0, notes: 0',
                         f'error: config {tmp_path}/none.py does not exist: check the path.', 'False']
