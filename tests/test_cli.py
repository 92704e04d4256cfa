from argparse import ArgumentParser

import pytest

from cpvt_mm.cli import add_cfg_options, resumable


def test_options_of_the_config_are_a_dict() -> None:
    parser = ArgumentParser()
    add_cfg_options(parser)
    assert parser.parse_args([]).cfg_options == {}
    assert parser.parse_args(['--cfg-options', 'a.b=1', 'c=x']).cfg_options == {'a.b': 1, 'c': 'x'}


def test_an_interrupted_tool_says_how_to_go_on() -> None:
    @resumable
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match='run the same command again'):
        main()
