"""Tables and plots of a metric against image size."""
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from cpvt_mm.files import write_figure, write_text
from cpvt_mm.tables import Row, markdown_table, to_csv


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean of the values and half of their range, or None instead of the range of a single value."""
    return sum(values) / len(values), (max(values) - min(values)) / 2 if len(values) > 1 else None


def collect(rows: Sequence[Row], series: str, metric: str) -> dict[str, dict[int | str, tuple[float, float | None]]]:
    """Returns the spread of `metric` for each value of column `series` and each `size`, in the order of the rows."""
    values: dict[str, dict[int | str, list[float]]] = {}
    for row in rows:
        values.setdefault(row[series], {}).setdefault(row['size'], []).append(row[metric])
    return {name: {size: spread(found) for size, found in by_size.items()} for name, by_size in values.items()}


def to_markdown(rows: Sequence[Row], series: str, metric: str, digits: int = 1) -> str:
    """Makes a table of `metric`, mean and half range: a line per value of column `series`, a column per size."""
    sizes = sorted({row['size'] for row in rows}, key=side)

    def cell(mean: float, half: float | None) -> str:
        return f'{mean:.{digits}f}' + ('' if half is None else f' ± {half:.{digits}f}')

    lines = [[name, *(cell(*by_size[size]) if size in by_size else '' for size in sizes)]
             for name, by_size in collect(rows, series, metric).items()]
    return markdown_table([series, *(f'{size} px' for size in sizes)], lines)


def write_report(folder: Path, rows: Sequence[Row], curves: Sequence[Row], series: str, metric: str, title: str,
                 digits: int = 1) -> str:
    """Writes results.csv, results.md and results.png.

    Args:
        folder: The output folder.
        rows: Rows of results.csv.
        curves: Rows of the table and the plot; often the same as `rows`.
        series: Column of `curves` that names the lines.
        metric: Column of `curves` with the plotted values.
        title: Title of the plot.
        digits: Decimal places in the table. Defaults to 1.

    Returns:
        The table.
    """
    table = to_markdown(curves, series, metric, digits)
    write_text(folder / 'results.csv', to_csv(rows))
    write_text(folder / 'results.md', table)
    write_figure(folder / 'results.png', plot(curves, series, metric, title))
    return table


def plot(rows: Sequence[Row], series: str, metric: str, title: str) -> Figure:
    """Plots `metric` against size, a line per value of column `series`; error bars span lowest to highest value.

    A rectangle, such as '1333x800', is at the position of a square with the same area.
    """
    figure = Figure(figsize=(8, 5), layout='constrained')
    axes = figure.subplots()
    sizes = sorted({row['size'] for row in rows}, key=side)
    collected = collect(rows, series, metric)
    for i, (name, by_size) in enumerate(collected.items()):
        shift = 1 + 0.006 * (i - (len(collected) - 1) / 2)  # so that bars do not hide each other
        x = sorted(by_size, key=side)
        means, halves = zip(*(by_size[size] for size in x), strict=True)
        axes.errorbar([side(size) * shift for size in x], means, yerr=[half or 0 for half in halves], label=name,
                      capsize=3, marker='os^Dv<>P*X'[i % 10], linestyle='-' if i < 10 else '--')
    axes.set(xscale='log', xlabel='test size (pixels a side)', ylabel=metric, title=title)
    axes.set_xticks(list(map(side, sizes)), labels=list(map(str, sizes)),
                    rotation=45 if any('x' in str(size) for size in sizes) else 0)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize='small', loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def side(size: int | str) -> float:
    """Returns the side of a square with the same number of pixels."""
    sides = [int(one) for one in str(size).split('x')]
    return math.prod(sides) ** (1 / len(sides))
