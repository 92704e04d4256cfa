"""The one form of data: what each reader returns, each check and measure takes, and the writer writes."""
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from openmmlab_runs.pictures.bands import Pixels, read_header
from openmmlab_runs.texts import some, told

EMPTY = ': they teach what is no object (--drop-empty leaves them out)'


class LabelledObject(NamedTuple):
    """An object of an image."""
    name: str  # of its class
    keys: dict[str, Any]  # COCO's `bbox` (x, y, width, height), `area` and `iscrowd`, perhaps `segmentation`


@dataclass(frozen=True)
class LabelMap:
    """A file with the class of each pixel."""
    path: Path
    pixels: dict[int, int]  # the number of pixels of each class
    codes: dict[int, int] | None = None  # value or colour -> class; None: values are classes, in one channel
    are_colours: bool = False  # whether the codes are colours


@dataclass
class Picture:
    """An image with its objects, or its label map."""
    path: Path
    annotation: Path | None = None  # its own file, if there is one
    size: tuple[int, int] = (0, 0)  # width and height in pixels
    stated: tuple[int, int] = (0, 0)  # the same, according to the annotation, if it states a size
    objects: list[LabelledObject] = field(default_factory=list)
    label_map: LabelMap | None = None

    def classes(self, names: Sequence[str]) -> set[str]:
        """Returns the classes that the image shows; `names` are those of all labels."""
        return {names[label] for label in self.label_map.pixels} if self.label_map else {
            one.name for one in self.objects}


@dataclass
class LabelledData:
    """Images with labels, in splits; the labels are objects, or else label maps (`is_semantic`)."""
    form: str  # the name of the layout
    root: Path
    splits: dict[str, list[Picture]] = field(default_factory=dict)  # 'train', and others of 'val' and 'test'
    classes: list[str] = field(default_factory=list)  # in the order of their labels
    is_semantic: bool = False
    palette: list[tuple[int, ...]] = field(default_factory=list)  # of label maps; empty if they have none
    pixels: Counter[Pixels] = field(default_factory=Counter)  # how many images have which channels and types
    notes: list[str] = field(default_factory=list)  # sentences about what is unusual

    def measured(self, pictures: list[Picture]) -> list[Picture]:
        """Sets the sizes of images that have none, and counts their types; a UserError if one is no image."""
        with ThreadPoolExecutor() as threads:
            for picture, header in zip(pictures, threads.map(read_header, [one.path for one in pictures]), strict=True):
                picture.size = picture.size if all(picture.size) else (header.width, header.height)
                self.pixels[header.pixels] += 1
        return pictures

    def keep_used(self, names: Sequence[str], pictures: Sequence[Picture]) -> None:
        """Makes those of the names classes that have an object; the others are told."""
        used = {one.name for picture in pictures for one in picture.objects}
        self.classes = [name for name in dict.fromkeys(names) if name in used]
        if unused := [name for name in dict.fromkeys(names) if name not in used]:
            self.notes.append(f'{len(unused)} classes have no object and are left out: {some(unused)}.')

    def about_splits(self) -> Iterator[str]:
        """Yields sentences about images without objects, splits without a class, and images in two splits."""
        for name, pictures in self.splits.items():
            if empty := 0 if self.is_semantic else sum(not one.objects for one in pictures):
                yield f'{empty} images of {name} have no objects{EMPTY * (name == "train")}.'
            present = set().union(*(one.classes(self.classes) for one in pictures))
            if missing := [one for one in self.classes if one not in present]:
                yield f'{name} has no {"pixel" if self.is_semantic else "object"} of class {", ".join(missing)}.'
        trained = {one.path for one in self.splits['train']}
        for name in ('val', 'test'):
            both = sorted(trained & {one.path for one in self.splits.get(name, ())})
            yield from told(both, f'images are in train and {name}', ': metrics will be too good.')
