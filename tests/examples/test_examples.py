from tests.examples.conftest import EXAMPLES


def test_examples_are_short_listed_and_tested() -> None:
    listed = (EXAMPLES / 'README.md').read_text()
    paths = list(EXAMPLES.glob('*.py'))
    assert len(paths) == 4
    for path in paths:
        assert len(path.read_text().splitlines()) <= 40
        assert f'({path.name})' in listed
        assert (EXAMPLES.parent / f'tests/examples/test_{path.name}').is_file()
