"""Runs a command of the lab: `python -m lab NAME [options]`; without a name it lists them."""
import ast
import sys
from importlib import import_module
from pathlib import Path

from openmmlab_runs.errors import UserError, did_you_mean, exit_on_error, say


def find_commands() -> dict[str, str]:
    """Returns the names of the modules in `commands`, with what each does; nothing is imported."""
    files = sorted(Path(__file__).with_name('commands').glob('[!_]*.py'))
    return {file.stem: str(ast.get_docstring(ast.parse(file.read_text('utf-8')))).split('\n\n')[0] for file in files}


@exit_on_error
def main() -> None:
    commands = find_commands()
    name, *options = sys.argv[1:] or ['--help']
    if name in ('-h', '--help'):
        say('usage: python -m lab NAME [options]; python -m lab NAME --help prints the options.',
            *(f'  {command:<24}  {" ".join(what.split())}' for command, what in commands.items()))
        return
    if name not in commands:
        raise UserError(f'{name!r} is not a command{did_you_mean(name, commands)}; there are {", ".join(commands)}.')
    sys.argv = [f'python -m lab {name}', *options]  # as argparse tells it
    import_module(f'lab.commands.{name}').main()


if __name__ == '__main__':
    main()
