"""The command `cpvt_mm`, and `python -m cpvt_mm`: subcommands that do what files of tools/ do, without a clone."""
from functools import partial
from pathlib import Path
from runpy import run_path

from openmmlab_tools.cli import Command, run_command, start
from openmmlab_tools.commands import COMMANDS as GENERAL
from openmmlab_tools.errors import exit_on_error

COMMANDS = {
    'train': GENERAL['train'],
    'test': GENERAL['test'],
    'predict': GENERAL['predict'],
    'new-config': Command('cpvt_mm.commands.new_config', 'write a config that trains on your data'),
    'check': GENERAL['check'],
    'distil': Command('cpvt_mm.commands.distil', 'train a backbone without labels: it learns from a larger model'),
    'swap': Command('cpvt_mm.commands.swap', 'put a backbone of cpvt_mm into a config of mmdet or mmseg'),
    'export': Command('cpvt_mm.commands.export', 'export a model to ONNX or torch.export'),
}


@exit_on_error
def main() -> None:
    version = run_path(str(Path(__file__).with_name('version.py')))['__version__']  # the package imports torch
    run_command('cpvt_mm', COMMANDS, partial(start, package='cpvt_mm.public'), version)


if __name__ == '__main__':
    main()
