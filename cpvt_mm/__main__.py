"""The command `cpvt_mm`, and `python -m cpvt_mm`: subcommands that do what files of tools/ do, without a clone."""
import sys
from importlib import import_module

from cpvt_mm.version import __version__
from openmmlab_runs.errors import UserError, did_you_mean, exit_on_error, say

# Modules of `cpvt_mm.commands`. Each is imported only when it is called.
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
    name, *options = sys.argv[1:] or ['--help']
    if name in ('-h', '--help'):
        say('usage: cpvt_mm COMMAND [options]; cpvt_mm COMMAND --help prints the options, and --version the version.',
            *(f'  {command:<10}  {what}' for command, what in COMMANDS.items()))
        return
    if name == '--version':
        say(f'cpvt_mm {__version__}')
        return
    if name not in COMMANDS:
        raise UserError(f'{name!r} is not a command{did_you_mean(name, COMMANDS)}; there are {", ".join(COMMANDS)}.')
    sys.argv = [f'cpvt_mm {name}', *options]  # as argparse tells it
    import_module(f'cpvt_mm.commands.{name.replace("-", "_")}').main()


if __name__ == '__main__':
    main()
