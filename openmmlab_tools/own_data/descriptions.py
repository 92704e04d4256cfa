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
from openmmlab_tools.texts import counted, some

from .channels import Bands
from .image_sizes import Fit, name_sizes, sizes_of


def describe_data(data: LabelledData, fit: Fit, bands: Bands | None = None) -> list[str]:
    """Returns sentences about data; `bands` describes images that `LoadBandsFromFile` loads, not mmcv's loader."""
    low, middle, high = name_sizes(sizes_of(data))
    lines = [f'{data.root} contains {data.form}.', *(
        f'{name}: {counted(len(pictures), "image")} in '
        f'{folders_of([picture.path for picture in pictures], data.root)}' + ('' if data.is_semantic else (
            f', with {counted(sum(len(picture.objects) for picture in pictures), "object")}')) + '.'
        for name, pictures in data.splits.items())]
    channels = ' or '.join(map(str, sorted({kind.channels for kind in data.pixels})))
    lines.append(f'Images have {channels} channels and {low} pixels (width x height).' if low == high else
                 f'Images have {channels} channels. The smallest has {low} pixels (width x height), the largest '
                 f'{high}, and the median {middle}.')
    if len(fit.boxes):
        (a, b, c), (d, e, f) = np.quantile(fit.boxes, (.25, .5, .75), axis=0).T
        lines.append(f'In training, the median box has a side of {b:.0f} pixels (the square root of its area), and '
                     f'half of the boxes have {a:.0f} to {c:.0f}. Height divided by width is {d:.2f} to {f:.2f} for '
                     f'half of them (median {e:.2f}).')
    deep = sum(number for kind, number in data.pixels.items() if not kind.is_plain)
    if bands:
        lines += bands.notes
    elif max(kind.channels for kind in data.pixels) > 3:
        lines.append('mmcv only reads the first three channels, because the file calls the fourth alpha '
                     '(transparency). If the fourth contains data, save the images as TIFF without this name '
                     '(tifffile: '
                     "photometric='rgb', extrasamples=['unspecified']).")
    if deep and not bands:
        lines.append(f'{counted(deep, "image")} with 16 bits per channel will be read as 8 bits (value // 256). If the '
                     'values that matter are in a smaller range, convert the images to 8 bits yourself.')
    return [*lines, *fit.notes, *data.notes]


def check_written(cfg: Config) -> tuple[list[str], bool]:
    """Checks the data of a written config by file headers. Returns sentences, and whether training would raise an
    error.
    """
    first: dict[Kind, str] = {}
    is_fatal = False
    for plan in plan_checks(cfg):
        for finding in (*plan.findings, *check_sizes(plan.samples)):
            is_fatal |= finding.kind in plan.fatal
            told = f'{"error" if finding.is_error else "note"}, {finding.kind.text}: {finding.sentence}'
            first.setdefault(finding.kind, told)
    return [*first.values()], is_fatal


def folders_of(paths: Sequence[Path], root: Path) -> str:
    names = [os.path.relpath(folder, root).replace(os.sep, '/') for folder in sorted({path.parent for path in paths})]
    return some(['the folder itself' if name == '.' else f'{name}/' for name in names], 3)
