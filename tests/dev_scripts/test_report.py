from stock_configs.matrix import Record
from stock_configs.report import to_markdown

RECORDS = [
    Record('mmdet', 'a/1.py', 'ResNet', 'built', trial='ran'),
    Record('mmdet', 'a/2.py', 'ResNet', 'refused', 'it is odd.'),
    Record('mmdet', 'a/3.py', 'HourglassNet', 'refused', 'it is odd.'),
    Record('mmdet', 'b/1.py', 'ResNet', 'unavailable', 'lap is not installed'),
    Record('mmdet', 'b/2.py', 'HourglassNet', 'failed', 'KeyError: x'),
    Record('mmdet', 'b/3.py', '', 'fragment', 'no model'),
    Record('mmseg', 'c/1.py', 'PCPVT', 'built', trial='failed', trial_reason='ValueError: y'),
    Record('mmseg', 'd/1.py', 'BEiT', 'plain', trial='ran'),
]


def test_the_page() -> None:
    lines = to_markdown(RECORDS).splitlines()
    for line in (
            '| mmdet | 6 | 1 |  | 2 | 1 | 1 | 1 | 1 | 1 |',
            '| mmdet, of a strided pyramid | 3 | 1 |  | 1 |  | 1 |  | | |',
            '| mmseg | 2 | 1 | 1 |  |  |  |  | 2 | 1 |',
            '| a | 3 | 1 |  | 2 |  |  |  | ran |',
            '| b | 3 |  |  |  | 1 | 1 | 1 |  |',
            '| c | 1 | 1 |  |  |  |  |  | failed |',
            '| d | 1 |  | 1 |  |  |  |  | ran |',
            '- 2: it is odd. `mmdet::a/2.py`, `mmdet::a/3.py`',
            '- 1: KeyError: x `mmdet::b/2.py`',
            '- 1: ValueError: y `mmseg::c/1.py`',
            '- 1: lap is not installed `mmdet::b/1.py`',
    ):
        assert line in lines, line


def test_rows_have_the_cells_of_their_head() -> None:
    tables = [block for block in to_markdown(RECORDS).split('\n\n') if block.startswith('|')]
    assert len(tables) == 3
    for table in tables:
        assert len({line.count('|') for line in table.splitlines()}) == 1, table


def test_no_headings_without_entries_and_no_more_than_three_examples() -> None:
    page = to_markdown([Record('mmseg', f'a/{i}.py', 'ResNet', 'refused', 'it is odd.') for i in range(5)])
    assert '## Failed' not in page and '## mmdet' not in page
    assert '- 5: it is odd. `mmseg::a/0.py`, `mmseg::a/1.py`, `mmseg::a/2.py` and 2 more' in page
