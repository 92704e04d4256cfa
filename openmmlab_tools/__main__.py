"""The command `python -m openmmlab_tools`: it trains, tests and checks configs of any package that is installed."""
from openmmlab_tools.cli import run_command, start
from openmmlab_tools.commands import COMMANDS
from openmmlab_tools.errors import exit_on_error


@exit_on_error
def main() -> None:
    run_command('python -m openmmlab_tools', COMMANDS, start)


if __name__ == '__main__':
    main()
