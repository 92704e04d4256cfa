from argparse import ArgumentParser
from collections.abc import Callable

import pytest
from torch.utils.data import DataLoader

from cpvt_mm.cli import add_cfg_options, resumable
from cpvt_mm.errors import MissingFile, UserError, exit_on_error, sentence


def failing(error: BaseException) -> Callable[..., None]:
    """A function that raises an error, whatever it gets."""

    def run(*args: object) -> None:
        raise error

    return run


@pytest.mark.parametrize(('workers', 'cls'), [(0, UserError), (1, MissingFile)])
def test_the_sentence_is_the_same_from_a_worker_of_a_data_loader(workers: int, cls: type[UserError]) -> None:
    words = 'image b.jpg is empty: put the whole file there.'
    with pytest.raises(cls) as error:
        list(DataLoader(range(2), collate_fn=failing(cls(words)), num_workers=workers))
    assert ('Traceback' in str(error.value)) == bool(workers)
    assert sentence(error.value) == words


def test_a_missing_file_is_an_error_of_the_system_too() -> None:
    assert issubclass(MissingFile, FileNotFoundError)


def test_a_tool_ends_with_the_sentence_and_an_interrupted_one_says_how_to_go_on() -> None:
    with pytest.raises(SystemExit) as end:
        exit_on_error(failing(MissingFile('a is 1: take 2.')))()
    assert end.value.code == 'error: a is 1: take 2.'
    with pytest.raises(SystemExit, match='run the same command again'):
        resumable(failing(KeyboardInterrupt()))()


def test_options_of_the_config_are_a_dict() -> None:
    parser = ArgumentParser()
    add_cfg_options(parser)
    assert parser.parse_args([]).cfg_options == {}
    assert parser.parse_args(['--cfg-options', 'a.b=1', 'c=x']).cfg_options == {'a.b': 1, 'c': 'x'}
