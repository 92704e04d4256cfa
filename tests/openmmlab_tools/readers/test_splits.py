"""How images without a split for validation are divided."""
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmmlab_tools.readers.form.dataset import LabelledData, Picture
from openmmlab_tools.readers.form.splits import CROP, take_share
from openmmlab_tools.readers.own_data import find_data
from tests.helpers import refusal
from tests.openmmlab_tools.readers.layouts import yolo

CROPS = tuple(f'slide{slide}_{x}_512.png' for slide in range(3) for x in range(5))


def divided(names: tuple[str, ...], pattern: str | None, share: float = 0.2, seed: int = 0) -> LabelledData:
    data = LabelledData('YOLO', Path('/data'), dict(train=[Picture(Path('/data', name)) for name in names]))
    take_share(data, share, seed, pattern)
    return data


def sources(data: LabelledData, split: str) -> set[str]:
    return {one.path.name.partition('_')[0] for one in data.splits[split]}


@pytest.mark.parametrize('names, pattern, says', [
    (CROPS, None, True), (CROPS, CROP, False), (CROPS, r'slide\d+', False),
    (tuple(name.replace('_512', '-y512') for name in CROPS), None, True),
    (tuple(f'IMG_20240101_{time}.jpg' for time in range(15)), None, False),  # one source cannot be divided
    (tuple(f'{image:06}.jpg' for image in range(15)), None, False)])
def test_names_that_look_like_crops_are_told_unless_they_are_grouped(names: tuple[str, ...], pattern: str | None,
                                                                     says: bool) -> None:
    data = divided(names, pattern)
    assert [note.partition('look like ')[2][:20] for note in data.notes[1:]] == ['crops from 3 images.'] * says
    assert not pattern or sources(data, 'train').isdisjoint(sources(data, 'val'))


@given(st.dictionaries(st.sampled_from('abcdefgh'), st.integers(1, 6), min_size=2), st.floats(0.1, 0.7),
       st.integers(0, 99))
def test_no_group_is_in_two_parts(sizes: dict[str, int], share: float, seed: int) -> None:
    names = tuple(f'{source}_{index}.png' for source, number in sizes.items() for index in range(number))
    number = max(1, round(share * len(names)))
    if number < len(names):
        data, again = (divided(names, '^[a-z]', share, seed) for _ in range(2))
        assert data.splits == again.splits
        assert sources(data, 'train') and sources(data, 'val') and sources(data, 'train').isdisjoint(
            sources(data, 'val'))
        assert len(data.splits['val']) <= number or sources(data, 'val') <= {
            source for source, size in sizes.items() if size == min(sizes.values())}
        assert len(data.splits['train']) + len(data.splits['val']) == len(names)


@pytest.mark.parametrize('pattern, words', [('(', 'no regular expression'), ('none', 'matches nothing in any name'),
                                            ('slide', 'matches the same text in all names')])
def test_patterns_that_make_no_groups_are_refused(pattern: str, words: str) -> None:
    assert words in refusal(divided, CROPS, pattern)


def test_groups_want_data_without_a_split(tmp_path: Path) -> None:
    yolo(tmp_path)
    assert 'the data already has a split' in refusal(find_data, tmp_path, val=str(tmp_path), group_by='a')
