from pathlib import Path

from cpvt_mm.analysis.report import collect, plot, to_markdown, write_report

ROWS = [dict(encoding=encoding, seed=seed, size=size, mIoU=value) for encoding, seed, size, value in [
    ('none', 0, 96, 30.), ('none', 0, 128, 40.), ('none', 1, 96, 32.), ('none', 1, 128, 44.), ('PEG', 0, 128, 80.)]]


def test_means_and_half_ranges_over_seeds() -> None:
    assert collect(ROWS, 'encoding', 'mIoU') == {'none': {96: (31., 1.), 128: (42., 2.)}, 'PEG': {128: (80., None)}}


def test_table_has_a_line_a_series_and_a_column_a_size() -> None:
    assert to_markdown(ROWS, 'encoding', 'mIoU') == (
        '| encoding | 96 px | 128 px |\n'
        '|---|---|---|\n'
        '| none | 31.0 ± 1.0 | 42.0 ± 2.0 |\n'
        '| PEG |  | 80.0 |\n')


def test_a_report_is_three_files(tmp_path: Path) -> None:
    table = write_report(tmp_path, ROWS, ROWS, 'encoding', 'mIoU', 'a title', digits=2)
    assert '| 31.00 ± 1.00 |' in table and (tmp_path / 'results.md').read_text() == table
    assert (tmp_path / 'results.csv').read_text().startswith('encoding,seed,size,mIoU\nnone,0,96,30.0\n')
    assert (tmp_path / 'results.png').read_bytes().startswith(b'\x89PNG')


def test_plot_draws_the_means_and_bars_of_each_series() -> None:
    axes, = plot(ROWS, 'encoding', 'mIoU', 'a title').axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ['none', 'PEG']
    lines = [container.lines for container in axes.containers]
    assert [list(line[0].get_ydata()) for line in lines] == [[31., 42.], [80.]]
    assert [path.vertices[:, 1].tolist() for path in lines[0][2][0].get_paths()] == [[30., 32.], [40., 44.]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ['96', '128']


def test_a_rectangle_stands_where_a_square_of_its_area_does() -> None:
    rows = [dict(metric='AP', size=size, value=value) for size, value in [('100', 1.), ('400x100', 3.), ('300', 2.)]]
    axes, = plot(rows, 'metric', 'value', 'a title').axes
    assert list(axes.containers[0].lines[0].get_xdata()) == [100, 200, 300]
    assert list(axes.containers[0].lines[0].get_ydata()) == [1, 3, 2]
    assert [label.get_text() for label in axes.get_xticklabels()] == ['100', '400x100', '300']
