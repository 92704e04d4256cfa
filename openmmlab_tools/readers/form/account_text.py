"""The whole account of data as text: what the terminal shows, and then all that it shortens."""
from collections import Counter
from collections.abc import Iterator

from .dataset import LabelledData

MEANING = ('This file lists all records and files that were found. The first lines are also printed. Below them are '
           'all examples, each with its number of records.')


def account_text(data: LabelledData) -> str:
    """Returns the sentences of the account up to a blank line, then details, and the classes of each split."""
    accounts = [(str(data.root), data.account), *([('the data for validation', data.validation)] if data.validation
                                                  else [])]
    lines = [line for _, account in accounts for line in account.lines()]
    for name, account in accounts:
        lines += ['', f'# {name}', MEANING, *account.details()]
    return '\n'.join([*lines, '', '# Classes', *_classes(data)])


def summary_of(text: str) -> list[str]:
    """Returns the sentences that a terminal shows of such a text."""
    return text.split('\n\n')[0].splitlines()


def _classes(data: LabelledData) -> Iterator[str]:
    for split, pictures in data.splits.items():
        images = Counter(name for picture in pictures for name in picture.classes(data.classes))
        objects = Counter(other.name for picture in pictures for other in picture.objects)
        for name in data.classes:
            yield f'{split}: {name}: ' + (f'{objects[name]} objects in ' * (not data.is_semantic)) + (
                f'{images[name]} images')
