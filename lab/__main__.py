"""Runs a command of the lab: `python -m lab COMMAND [options]`; without one it lists them."""
import ast
from importlib import import_module
from pathlib import Path

from openmmlab_tools.cli import Command, run_command
from openmmlab_tools.errors import exit_on_error


def find_commands() -> dict[str, str]:
    """Returns the names of the modules in `commands`, with what each does; nothing is imported."""
    files = sorted(Path(__file__).with_name('commands').glob('[!_]*.py'))
    return {file.stem: str(ast.get_docstring(ast.parse(file.read_text('utf-8')))).split('\n\n')[0] for file in files}


@exit_on_error
def main() -> None:
    commands = {name: Command(f'lab.commands.{name}', words) for name, words in find_commands().items()}
    run_command('python -m lab', commands, lambda module: import_module(module).main())


if __name__ == '__main__':
    main()
