import csv
import io

from rich.console import Console

from cpvt_mm.data.findings import Finding, Kind, to_csv, to_table

FINDINGS = [Finding(Kind.NOT_ANNOTATED, 'a.json', 'has no annotation of [1].jpg')] + [
    Finding(Kind.IMAGE, f'{i}.jpg', 'does not exist') for i in range(5)]


def test_the_table_has_a_row_for_each_kind_with_the_first_of_it() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(to_table(FINDINGS))
    text = console.export_text()
    for words in ('image that is missing or cannot be read ', ' 5 ', '0.jpg does not exist', '2.jpg does', 'and 2 more',
                  'image without annotation (a note) ', ' 1 ', 'a.json has no annotation of [1].jpg'):
        assert words in text
    assert '3.jpg' not in text and text.index('cannot be read') < text.index('without annotation')


def test_the_csv_has_all() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([('train', finding) for finding in FINDINGS]))))
    assert rows[0] == dict(split='train', severity='note', what='image without annotation', file='a.json',
                           detail='has no annotation of [1].jpg')
    assert [(row['severity'], row['file']) for row in rows[1:]] == [('error', f'{i}.jpg') for i in range(5)]
