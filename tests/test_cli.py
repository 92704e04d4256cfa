import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import Callable

import pytest

from cpvt_mm.cli import add_cfg_options, check_least, parse_sides, resumable
from cpvt_mm.errors import UserError


def test_options_of_the_config_are_a_dict() -> None:
    parser = ArgumentParser()
    add_cfg_options(parser)
    assert parser.parse_args([]).cfg_options == {}
    assert parser.parse_args(['--cfg-options', 'a.b=1', 'c=x']).cfg_options == {'a.b': 1, 'c': 'x'}


def test_a_size_is_one_side_or_two() -> None:
    assert parse_sides('512') == (512, 512) and parse_sides('1333x800') == (1333, 800)


@pytest.mark.parametrize('text', ['0', '640x0', '-5', '1.5', '640x', 'x640', '1x2x3', ''])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"size '{text}' is not an image size"):
        parse_sides(text)


def test_numbers_must_be_large_enough() -> None:
    args = Namespace(num_jobs=1, sizes=[3, 0])
    check_least(args, 0, 'num_jobs', 'sizes')
    with pytest.raises(UserError, match='--sizes is 0, but must be at least 1'):
        check_least(args, 1, 'num_jobs', 'sizes')
    with pytest.raises(UserError, match='--num-jobs is 1, but must be at least 2'):
        check_least(args, 2, 'num_jobs')


def test_the_warning_about_pkg_resources_is_not_shown(run_python: Callable[[str], subprocess.CompletedProcess]) -> None:
    done = run_python('import cpvt_mm, warnings; import pkg_resources; warnings.warn("another")')
    assert 'another' in done.stderr and 'pkg_resources is deprecated' not in done.stderr


def test_an_interrupted_tool_says_how_to_go_on() -> None:
    @resumable
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match='run the same command again'):
        main()
