from argparse import ArgumentParser

import pytest
from torch.utils.data import DataLoader

from cpvt_mm.cli import add_cfg_options, resumable
from cpvt_mm.errors import MissingFile, UserError, exit_on_error, sentence


class Faulty:
    """Fails on its second item."""

    def __init__(self, error: type[UserError]) -> None:
        self.error = error

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index:
            raise self.error('image b.jpg is empty: put the whole file there.')
        return index


@pytest.mark.parametrize(('workers', 'cls'), [(0, UserError), (1, MissingFile)])
def test_the_sentence_is_the_same_from_a_worker_of_a_data_loader(workers: int, cls: type[UserError]) -> None:
    with pytest.raises(cls) as error:
        list(DataLoader(Faulty(cls), num_workers=workers))
    assert ('Traceback' in str(error.value)) == bool(workers)
    assert sentence(error.value) == 'image b.jpg is empty: put the whole file there.'


def test_a_missing_file_is_an_error_of_the_system_too() -> None:
    assert issubclass(MissingFile, FileNotFoundError)


def test_a_tool_ends_with_the_sentence() -> None:

    @exit_on_error
    def main() -> None:
        raise MissingFile('a is 1: take 2.')

    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 'error: a is 1: take 2.'


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
