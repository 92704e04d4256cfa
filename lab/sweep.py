"""Tests one checkpoint at several image sizes, on whole images or with sliding windows, and plots its metrics."""
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.figure import Figure
from mmengine.config import Config, ConfigDict

from lab.arguments import parse_sides
from openmmlab_runs.checkpoints.fetching import fetched, sha256
from openmmlab_runs.engine import load_config, test
from openmmlab_runs.errors import MissingFile, UserError, first_line
from openmmlab_runs.texts import figure_text, label

from .results import MARKERS, Results, Row, markdown_table, write_report

# Values by size, for each metric and mode.
Curves = dict[str, dict[str, float]]
DEFAULT_SIDE = 512  # pixels, of configs that have a `scale_factor`


class Size(NamedTuple):
    """The `scale` of a Resize, in pixels; a square is written as one number."""
    width: int
    height: int

    def __str__(self) -> str:
        return f'{self.width}' if self.width == self.height else f'{self.width}x{self.height}'


def parse_size(text: str) -> Size:
    """Reads '512' or '1333x800', width first. Raises an ArgumentTypeError if it is neither."""
    return Size(*parse_sides(text))


def side(size: int | str) -> float:
    """Returns the side of a square with the same number of pixels as a size such as 512 or '1333x800'."""
    sides = [int(one) for one in str(size).split('x')]
    return math.prod(sides) ** (1 / len(sides))


def get_test_size(cfg: Config) -> Size:
    """Returns the scale of the test pipeline; a square of 512 pixels if its Resize has no `scale`."""
    scale = _resizes(cfg)[0].get('scale') or DEFAULT_SIDE
    return Size(scale, scale) if isinstance(scale, int) else Size(*scale)


def set_test_size(cfg: Config, size: Size) -> None:
    """Sets the scale of the test pipeline to `size`.

    With `keep_ratio`, images are resized to fit into `size`, with the longer side along the longer side of `size`.
    """
    for transform in _resizes(cfg):
        transform.scale = tuple(size)


def _resizes(cfg: Config) -> list[ConfigDict]:
    pipeline = cfg.test_dataloader.dataset.get('pipeline') or ()
    resizes = [transform for transform in pipeline if str(transform.type).split('.')[-1] == 'Resize']
    if not resizes:
        raise UserError(f'The test pipeline of config {cfg.filename} has no Resize, so no test size can be set: add '
                        'one.')
    return resizes


@dataclass(frozen=True)
class Windows:
    """Sliding windows over an image, whose predictions are averaged: sides and steps in pixels, vertical and
    horizontal.
    """
    crop_size: tuple[int, int]
    stride: tuple[int, int]

    def __str__(self) -> str:
        return 'slide {}x{} by {}x{}'.format(*self.crop_size, *self.stride)


# None is for models that are not segmentors.
Mode = Windows | Literal['whole'] | None


def resolve_mode(cfg: Config, name: str | None = None, crop_size: Sequence[int] | None = None,
                 stride: Sequence[int] | None = None) -> Mode:
    """Finds the mode of a test: 'whole' or 'slide', by default the config's; None for models that are not segmentors.
    """
    if cfg.default_scope != 'mmseg':
        if name:
            raise UserError(f'--mode {name} is for segmentors, but config {cfg.filename} is for {cfg.default_scope}: '
                            'leave it out.')
        return None
    test_cfg = cfg.model.get('test_cfg') or {}
    if (name or test_cfg.get('mode', 'whole')) == 'whole':
        return 'whole'
    sides: dict[str, tuple[int, int]] = {}
    for key, given in (('crop_size', crop_size), ('stride', stride)):
        value = given or test_cfg.get(key)
        if value is None:
            raise UserError(f'model.test_cfg of config {cfg.filename} has no {key} for sliding windows: pass '
                            f'--{key.replace("_", "-")} HEIGHT WIDTH.')
        sides[key] = value[0], value[1]
    windows = Windows(**sides)
    if any(not 1 <= step <= side for step, side in zip(windows.stride, windows.crop_size, strict=True)):
        raise UserError(f'--stride is {windows.stride[0]} {windows.stride[1]}, but must be from 1 to --crop-size '
                        f'({windows.crop_size[0]} {windows.crop_size[1]}): windows further apart leave gaps.')
    return windows


def set_mode(cfg: Config, mode: Mode) -> None:
    """Sets the test mode of a segmentor; see `resolve_mode`."""
    if isinstance(mode, Windows):
        cfg.merge_from_dict({'model.test_cfg': dict(mode='slide', crop_size=mode.crop_size, stride=mode.stride)})
    elif mode:
        cfg.merge_from_dict({'model.test_cfg': dict(mode=mode)})


def checkpoint_sha256(path: str | Path) -> str:
    """Returns the SHA-256 of a checkpoint file (a path, or an address, see `fetched`), in hexadecimal."""
    try:
        with fetched(path) as local:
            return sha256(Path(local))
    except FileNotFoundError as error:
        raise MissingFile(f'checkpoint {path} does not exist: check the path.') from error
    except OSError as error:
        raise UserError(f'checkpoint {path} cannot be read ({error.strerror or first_line(error)}): check the path.'
                        ) from error


@dataclass(frozen=True)
class Sweep:
    """A config and a checkpoint (a path or URL), the folder of their results, and config values to override."""
    config: str | Path
    checkpoint: str
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Config:
        """Loads the complete config."""
        cfg = load_config(self.config, self.options, work_dir=str(self.folder))
        cfg.log_level = 'WARNING'
        # Persistent workers end in a destructor, which takes seconds and ignores Ctrl-C; a test needs one pass only.
        cfg.test_dataloader.persistent_workers = False
        return cfg

    def results(self) -> Results:
        """Opens the results in the folder."""
        config = {key: value for key, value in self.load().to_dict().items() if key != 'work_dir'}
        return Results(self.folder, dict(checkpoint=checkpoint_sha256(self.checkpoint), config=config))

    def test(self, size: Size, mode: Mode) -> Row:
        """Tests at one size; returns the mode (if it is not None), the size, and the metrics."""
        cfg = self.load()
        set_test_size(cfg, size)
        set_mode(cfg, mode)
        metrics = test(cfg, self.checkpoint)
        return {**({'mode': str(mode)} if mode else {}), 'size': str(size),
                **{name: float(value) for name, value in metrics.items()}}


def curves(rows: Sequence[Row], metrics: Sequence[str]) -> Curves:
    """Converts rows of `Sweep.test` to a curve for each metric and mode."""
    lines: Curves = {}
    for metric in metrics:
        for row in rows:
            name = f'{metric}, {row["mode"]}' if 'mode' in row else metric
            lines.setdefault(name, {})[row['size']] = row[metric]
    return lines


def write_sweep(folder: Path, rows: Sequence[Row], metrics: Sequence[str], title: str) -> str:
    """Writes results.csv, results.md and results.png of rows of `Sweep.test`; returns the table."""
    lines = curves(rows, metrics)
    table = to_markdown(lines)
    write_report(folder, rows, table, plot(lines, metrics[0] if len(metrics) == 1 else 'value', title))
    return table


def to_markdown(lines: Curves) -> str:
    """Makes a table with a line for each curve and a column for each size."""
    sizes = sorted({size for values in lines.values() for size in values}, key=side)
    # Fractions need more digits than percentages.
    digits = 1 if max(max(values.values()) for values in lines.values()) > 1 else 3
    cells = [[name, *(f'{values[size]:.{digits}f}' if size in values else '' for size in sizes)]
             for name, values in lines.items()]
    return markdown_table(['metric', *(f'{size} px' for size in sizes)], cells)


def plot(lines: Curves, metric: str, title: str) -> Figure:
    """Plots each curve against the size; a rectangle is at the position of a square with the same area."""
    figure = Figure(figsize=(8, 5), layout='constrained')
    axes = figure.subplots()
    sizes = sorted({size for values in lines.values() for size in values}, key=side)
    for i, (name, values) in enumerate(lines.items()):
        x = sorted(values, key=side)
        axes.plot([side(size) for size in x], [values[size] for size in x], label=label(name),
                  marker=MARKERS[i % len(MARKERS)])
    axes.set(xscale='log', xlabel='test size (pixels a side)', ylabel=label(metric), title=figure_text(title))
    axes.set_xticks([side(size) for size in sizes], labels=sizes,
                    rotation=45 if any('x' in size for size in sizes) else 0)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize='small', loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
