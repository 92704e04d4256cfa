"""Checks the files of datasets: images, and label maps in ADE20K's layout."""
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from openmmlab_tools.data.config_datasets import Plan
from openmmlab_tools.data.datasets import SampleFiles, classes_of, layout_of
from openmmlab_tools.data.findings import Finding, Kind
from openmmlab_tools.data.image_files import decode, noted, read
from openmmlab_tools.data.named_files import compare_sizes
from openmmlab_tools.errors import FileFault
from openmmlab_tools.pictures.bands import decode_bands
from openmmlab_tools.pictures.images import LOSES_BITS, orientation, size_as_loaded

from .channels import Moments, moments_of


@dataclass
class Checked:
    findings: list[Finding]
    size: tuple[int, int] | None = None  # height and width of the image; None if it cannot be read
    pixels: Counter[int] = field(default_factory=Counter)  # of each class in the label map
    dtype: str = ''  # of an image that `LoadBandsFromFile` loads
    moments: Moments | None = None  # of the values of such an image
    digest: bytes | None = None  # a hash of the image's file; None if it cannot be read


@dataclass(frozen=True)
class Labels:
    """The rule by which mmseg converts the values of a label map to classes."""
    num_classes: int  # classes are 0 to `num_classes - 1`
    reduce_zero_label: bool = False  # whether value 0 is ignored, and value 1 is class 0
    label_map: Mapping[int, int] | None = None  # old class -> new class, if only some classes of a dataset are used
    ignored: Collection[int] = (255,)  # labels that mean no class

    def unknown(self, values: Iterable[int]) -> list[int]:
        return [value for value in map(int, values)
                if (label := self.label_of(value)) not in self.ignored and not 0 <= label < self.num_classes]

    def label_of(self, value: int) -> int:
        label = value
        if self.reduce_zero_label:
            label = 255 if value in (0, 255) else value - 1
        return (self.label_map or {}).get(label, label)


def check_sample(sample: SampleFiles, labels: Labels | None = None, backend_args: dict[str, Any] | None = None,
                 bands: dict[str, Any] | None = None) -> Checked:
    """Checks an image, and its label map if there is one.

    Args:
        sample: The files.
        labels: The values that a label map may have. Defaults to None: any.
        backend_args: Arguments of mmengine's file backend. Defaults to None: chosen by the path.
        bands: The `LoadBandsFromFile` of the config that loads the image. Defaults to None: mmcv's loader does.
    """
    checked, path, turn = Checked([]), sample.image, 1
    with noted(checked.findings, Kind.IMAGE, path):
        content = read(path, backend_args)
        checked.digest = blake2b(content, digest_size=16).digest()
        if bands:
            checked.findings += _check_bands(decode_bands(content, path), path, bands, checked)
        else:
            image, loses_bits = decode(content, path)
            checked.findings += [Finding(Kind.BITS, path, LOSES_BITS)] * loses_bits
            checked.size, turn = size_as_loaded(image), orientation(image)
    shape = _check_label_map(sample.label_map, labels, backend_args, checked) if sample.label_map else None
    if checked.size:
        checked.findings += compare_sizes(sample, checked.size, shape, turn)
    return checked


def _check_bands(image: np.ndarray, path: str, bands: dict[str, Any], checked: Checked) -> Iterator[Finding]:
    checked.size, checked.dtype = image.shape[:2], image.dtype.name
    if image.shape[2] != bands['channels']:
        yield Finding(Kind.CHANNELS, path, f'has {image.shape[2]} channels, but LoadBandsFromFile of the config has '
                      f'channels={bands["channels"]}')
        return
    checked.moments = moments_of(image)
    if empty := checked.moments.empty:
        kind, advice = (Kind.NO_VALUE, ': set fill=mean of LoadBandsFromFile') if bands.get('fill') is None else (
            Kind.FILLED, '')
        yield Finding(kind, path, f'has no value (NaN, infinite or nodata) at {100 * empty:.2g} % of its pixels'
                      f'{advice}')


def _check_label_map(path: str, labels: Labels | None, backend_args: dict[str, Any] | None, checked: Checked
                     ) -> tuple[int, int] | None:
    """Checks a label map, and returns its height and width, or None if the file is no label map."""
    with noted(checked.findings, Kind.LABEL_MAP, path):
        values = np.asarray(decode(read(path, backend_args), path)[0]).squeeze()
        if values.ndim != 2:
            raise FileFault(path, f'has {values.shape[-1]} channels, but a label map has one')
        pixels = dict(zip(*(part.tolist() for part in np.unique(values, return_counts=True)), strict=True))
        if labels and (unknown := labels.unknown(pixels)):
            checked.findings.append(Finding(
                Kind.LABEL, path, f'has {", ".join(map(str, unknown))}, but there are {labels.num_classes} classes'
                + ' and 0 is ignored' * labels.reduce_zero_label))
        for value, count in pixels.items():
            checked.pixels[labels.label_of(value) if labels else value] += count
        return values.shape[0], values.shape[1]
    return None


def find_copies(results: Sequence[tuple[Plan, list[Checked]]]) -> Iterator[tuple[Plan, Finding]]:
    """Yields the dataset and a finding for each image file with the content of another file; see `check_files`."""
    first: dict[bytes, tuple[str, Plan]] = {}
    known: set[str] = set()
    for plan, checks in results:
        for sample, checked in zip(plan.samples, checks, strict=True):
            path = os.path.normpath(sample.image)
            if checked.digest is None or path in known:
                continue
            known.add(path)
            other, where = first.setdefault(checked.digest, (path, plan))
            if other != path:
                yield plan, Finding(Kind.COPY, path, f'has the same content as {other}, which is for '
                                    f'{" and ".join(where.splits)}')


def check_files(plan: Plan) -> Iterator[Checked]:
    """Checks the files of a dataset, and yields what is found in each of its samples."""
    dataset, labels = plan.dataset, None
    if dataset is not None and layout_of(type(dataset)) == 'label maps' and (
            num_classes := min(plan.heads.values(), default=len(classes_of(dataset)))):
        labels = Labels(num_classes, dataset.reduce_zero_label, dataset.label_map, plan.use.ignored_labels)
    bands, first = plan.use.bands, ''
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # decoders release Python's lock, so threads suffice
        checks = threads.map(lambda sample: check_sample(sample, labels, getattr(dataset, 'backend_args', None), bands),
                             plan.samples)
        for sample, checked in zip(plan.samples, checks, strict=True):
            first = first or checked.dtype
            if checked.dtype not in ('', first):
                checked.findings.append(Finding(Kind.TYPE, sample.image, f'has {checked.dtype}, but the first {first}'))
            yield checked
