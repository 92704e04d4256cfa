"""Compares the size of an image, as it is loaded, with its annotations: COCO's width and height, or a label map."""
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from openmmlab_runs.errors import UserError
from openmmlab_runs.pictures.bands import read_header

from .datasets import SampleFiles
from .findings import Finding, Kind

Size = tuple[int, int]  # height and width in pixels


def compare_sizes(sample: SampleFiles, image: Size, label_map: Size | None = None, turn: int = 1) -> Iterator[Finding]:
    """Compares sizes of a sample's files, as they are loaded, and of its annotations. A note if EXIF data turns the
    image (see `orientation`), and sizes do not tell whether its annotations are turned, too.
    """
    for kind, file, one, other, but in (
            (Kind.IMAGE_SIZE, sample.image, image, sample.size, '{} x {} in the annotations'),
            (Kind.LABEL_MAP_SIZE, sample.label_map, label_map, image, 'its image {} x {}')):
        if one and other and one != other:
            cause = ', which its EXIF data turns' if turn >= 5 and one == other[::-1] else ''
            yield Finding(kind, str(file), f'is {one[0]} x {one[1]} pixels (height x width), but {but.format(*other)}'
                          + cause)
        elif one and other and turn > 1 and (turn < 5 or one[0] == one[1]):
            yield Finding(Kind.TURNED, sample.image, f'is turned when it is loaded (EXIF orientation {turn}), and '
                          'sizes do not tell whether its annotations are, too: if they are not, remove its EXIF data')


def check_sizes(samples: Sequence[SampleFiles], step: int = 1) -> list[Finding]:
    """Compares sizes by the headers of local files, of each `step`-th sample; other checks tell what cannot be read."""
    with ThreadPoolExecutor() as threads:
        return [finding for found in threads.map(_check, samples[::step]) for finding in found]


def _check(sample: SampleFiles) -> list[Finding]:
    with suppress(UserError):
        image, size = read_header(sample.image), None
        if sample.label_map:
            label_map = read_header(sample.label_map)
            # A loader of label maps does not turn them.
            size = (label_map.width, label_map.height) if label_map.turn >= 5 else (label_map.height, label_map.width)
        return [*compare_sizes(sample, (image.height, image.width), size, image.turn)]
    return []
