"""Sentences about data, and about a config that was written for them."""
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.config import Config

from openmmlab_tools.data.config_datasets import plan_checks
from openmmlab_tools.data.findings import Kind
from openmmlab_tools.data.named_files import check_sizes
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.texts import some

from .channels import Bands
from .image_sizes import Fit, name_sizes, sizes_of


def describe_data(data: LabelledData, fit: Fit, bands: Bands | None = None) -> list[str]:
    """Returns sentences about data; `bands` are those of images that are loaded whole, not by mmcv's loader."""
    low, middle, high = name_sizes(sizes_of(data))
    lines = [f'{data.root} has {data.form}.', *(
        f'{name}: {len(pictures)} images of {folders_of([one.path for one in pictures], data.root)}' + (
            '' if data.is_semantic else f', {sum(len(one.objects) for one in pictures)} objects') + '.'
        for name, pictures in data.splits.items())]
    lines.append(f'Images are {low} to {high} pixels (width x height), {middle} in the middle, with '
                 f'{" or ".join(map(str, sorted({one.channels for one in data.pixels})))} channels.')
    if len(fit.boxes):
        (a, b, c), (d, e, f) = np.quantile(fit.boxes, (.25, .5, .75), axis=0).T
        lines.append(f'Boxes have sides of {a:.0f}, {b:.0f} and {c:.0f} pixels at the scale of training (quartiles of '
                     f'the root of the area), and height / width of {d:.2f}, {e:.2f} and {f:.2f}.')
    deep = sum(number for one, number in data.pixels.items() if not one.is_plain)
    if bands:
        lines += bands.notes
    elif max(one.channels for one in data.pixels) > 3:
        lines.append('Of more than three channels, mmcv reads the first three. If the fourth is no alpha, save images '
                     "as TIFF that does not call it so (tifffile: photometric='rgb', extrasamples=['unspecified']).")
    if deep and not bands:
        lines.append(f'{deep} images have 16 bits per channel, but are read as 8 bits (value // 256): convert '
                     'them to 8 bits, with the range of values that you need.')
    return [*lines, *fit.notes, *data.notes]


def check_written(cfg: Config) -> tuple[list[str], bool]:
    """Checks the data of a written config, by the headers of files; returns sentences, and whether training refuses it.
    """
    first: dict[Kind, str] = {}
    is_fatal = False
    for plan in plan_checks(cfg):
        for one in (*plan.findings, *check_sizes(plan.samples)):
            is_fatal |= one.kind in plan.fatal
            told = f'{"error" if one.is_error else "note"}, {one.kind.text}: {one.sentence}'
            first.setdefault(one.kind, told)
    return [*first.values()], is_fatal


def folders_of(paths: Sequence[Path], root: Path) -> str:
    names = [os.path.relpath(folder, root).replace(os.sep, '/') for folder in sorted({path.parent for path in paths})]
    return some(['its own folder' if name == '.' else f'{name}/' for name in names], 3)
