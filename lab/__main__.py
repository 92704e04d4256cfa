"""Runs a command of the lab: `python -m lab COMMAND [options]`; without one it lists them."""
import ast
from pathlib import Path

from openmmlab_tools.cli import run_command
from openmmlab_tools.errors import exit_on_error


def find_commands() -> dict[str, str]:
    """Returns the names of the modules in `commands`, with what each does; nothing is imported."""
    files = sorted(Path(__file__).with_name('commands').glob('[!_]*.py'))
    return {file.stem: str(ast.get_docstring(ast.parse(file.read_text('utf-8')))).split('\n\n')[0] for file in files}


@exit_on_error
def main() -> None:
    run_command('python -m lab', 'lab.commands', find_commands())


if __name__ == '__main__':
    main()
