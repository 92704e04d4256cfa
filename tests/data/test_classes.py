import pytest

from cpvt_mm.data.classes import check_classes, trained_classes
from tests.conftest import refusal


@pytest.mark.parametrize('meta, expected', [
    (dict(dataset_meta=dict(classes=('a', 'b'))), ['a', 'b']), (dict(dataset_meta=dict(classes='ab')), ['ab']),
    *((meta, ['a', 'b']) for meta in (dict(dataset_meta=dict(CLASSES=['a', 'b'])), dict(CLASSES=('a', 'b')))),
    (dict(dataset_meta=None), []), (dict(dataset_meta=dict(palette=[])), []), (None, [])])
def test_classes_are_found_where_libraries_write_them(meta: dict | None, expected: list[str]) -> None:
    assert trained_classes(dict(meta=meta)) == expected


def test_another_order_is_an_error() -> None:
    assert refusal(check_classes, ['a', 'b', 'c'], ['a', 'c', 'b'], 'x.pth') == (
        "checkpoint x.pth has the 3 classes of the test data in another order (class 1 is 'b' there, and 'c' here), so "
        'metrics would be of wrong classes: put metainfo.classes of test_dataloader.dataset in the order of the '
        'checkpoint.')


@pytest.mark.parametrize('tested, words', [
    ('axy', "for 3 classes, but the test data has 3 of other names: class 1 is 'b' there, and 'x' here"),
    ('ab', "for 3 classes, but the test data has 2 of other names: class 2 is 'c' there, and missing here"),
    ('abcd', "for 3 classes, but the test data has 4 of other names: class 3 is missing there, and 'd' here")])
def test_other_names_are_a_warning(tested: str, words: str, log: list[tuple[str, str]]) -> None:
    check_classes(['a', 'b', 'c'], [*tested], 'x.pth')
    [(level, message)] = log
    assert level == 'WARNING' and words in message


@pytest.mark.parametrize('trained, tested', [(['a'], ('a',)), ([], ['a']), (['a'], [])])
def test_the_same_or_unknown_classes_are_no_fault(trained: list, tested: list, log: list[tuple[str, str]]) -> None:
    check_classes(trained, tested, 'x.pth')
    assert log == []
