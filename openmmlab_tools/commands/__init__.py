"""Commands that run any config of mmdet, mmseg or mmpretrain: they parse arguments, call the library, and print.

Each module has `parse_args` and `run`. What takes long to import is imported in `run`, after the arguments are parsed.
"""
from openmmlab_tools.cli import Command

COMMANDS = {name: Command(f'openmmlab_tools.commands.{name}', words) for name, words in {
    'train': 'train a config',
    'test': 'evaluate a checkpoint',
    'predict': 'draw predictions on images, and write them',
    'check': 'check and measure the data of a config',
}.items()}
