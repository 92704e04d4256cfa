"""The command `cpvt_mm`, and `python -m cpvt_mm`: subcommands that do what files of tools/ do, without a clone."""
from pathlib import Path
from runpy import run_path

from openmmlab_tools.cli import run_command
from openmmlab_tools.errors import exit_on_error

COMMANDS = {
    'train': 'train a config',
    'test': 'evaluate a checkpoint',
    'predict': 'paint and write predictions for images',
    'new-config': 'write a config that trains on your data',
    'check': 'check and measure the data of a config',
    'swap': 'put a backbone of cpvt_mm into a config of mmdet or mmseg',
    'export': 'export a model to ONNX or torch.export',
}


@exit_on_error
def main() -> None:
    version = run_path(str(Path(__file__).with_name('version.py')))['__version__']  # the package imports torch
    run_command('cpvt_mm', 'cpvt_mm.commands', COMMANDS, version)


if __name__ == '__main__':
    main()
