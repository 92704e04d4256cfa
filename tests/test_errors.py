import pytest
from torch.utils.data import DataLoader

from cpvt_mm.errors import UserError, exit_on_error, sentence


class Faulty:
    """Fails on its second item."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index:
            raise UserError('image b.jpg is empty: put the whole file there.')
        return index


@pytest.mark.parametrize('workers', [0, 1])
def test_the_sentence_is_the_same_from_a_worker_of_a_data_loader(workers: int) -> None:
    with pytest.raises(UserError) as error:
        list(DataLoader(Faulty(), num_workers=workers))
    assert ('Traceback' in str(error.value)) == bool(workers)
    assert sentence(error.value) == 'image b.jpg is empty: put the whole file there.'


def test_a_tool_ends_with_the_sentence() -> None:

    @exit_on_error
    def main() -> None:
        raise UserError('a is 1: take 2.')

    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 'error: a is 1: take 2.'
