"""The one form of data: what each reader returns, each check and measure takes, and the writer writes."""
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from openmmlab_runs.errors import UserError
from openmmlab_runs.pictures.bands import Pixels, read_header
from openmmlab_runs.texts import some, told

from .account import Account

OTHER_SIZE = 'images have another size than their annotation states', ': their objects may lie elsewhere.'
EMPTY = ': they teach what is no object (--drop-empty leaves them out)'


class LabelledObject(NamedTuple):
    """An object of an image."""
    name: str  # of its class
    keys: dict[str, Any]  # COCO's `bbox` (x, y, width, height), `area` and `iscrowd`, perhaps `segmentation`
    records: int = 1  # how many of the source became this object


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
    records: int = 1  # how many of the source are about this image

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
    account: Account = field(default_factory=Account)
    notes: list[str] = field(default_factory=list)  # sentences about what is unusual

    def measured(self, pictures: list[Picture]) -> list[Picture]:
        """Sets the sizes of images that have none, and counts their types; a UserError if one is no image."""
        wrong = []
        with ThreadPoolExecutor() as threads:
            for picture, header in zip(pictures, threads.map(read_header, [one.path for one in pictures]), strict=True):
                actual = header.width, header.height
                if picture.size != actual and all(picture.size):  # it is written as it is, so that training refuses it
                    wrong.append(_other_size(picture.path, actual, picture.size))
                else:
                    picture.size = actual
                self.pixels[header.pixels] += 1
        self.notes += told(wrong, *OTHER_SIZE)
        return pictures

    def settle(self, names: Sequence[str], pictures: Sequence[Picture]) -> None:
        """Leaves out objects without an area, makes those of the names classes that have an object, and tells what is
        odd about both, and about sizes. An object without a class is a UserError.
        """
        for picture in pictures:
            if not all(one.name.strip() for one in picture.objects):
                raise UserError(f'{picture.annotation} has an object without the name of a class: give it one.')
            objects = [one._replace(name=one.name.strip()) for one in picture.objects]
            picture.objects = [one for one in objects if has_area(one.keys, picture.size)]
            self.account.leave('objects', 'objects lie outside of their image, or are smaller than a pixel',
                               picture.annotation, sum(one.records for one in objects) - sum(
                                   one.records for one in picture.objects))
        used = {one.name for picture in pictures for one in picture.objects}
        bare = list(dict.fromkeys(name.strip() for name in names))
        self.classes = [name for name in bare if name in used]
        if unused := [name for name in bare if name not in used]:
            self.notes.append(f'{len(unused)} classes have no object and are left out: {some(unused)}.')
        by_case = Counter(name.casefold() for name in self.classes)
        if alike := [name for name in self.classes if by_case[name.casefold()] > 1]:
            self.notes.append(f'Classes differ by case only: {", ".join(alike)}. Correct them if they are one.')
        wrong = [_other_size(one.path, one.size, one.stated) for one in pictures
                 if all(one.stated) and one.stated != one.size]
        self.notes += told(wrong, *OTHER_SIZE)

    def close(self) -> None:
        """Counts what is used, and begins the notes with the account."""
        used = {id(one): one for pictures in self.splits.values() for one in pictures}.values()
        self.account.used = Counter(images=sum(one.records for one in used),
                                    objects=sum(one.records for picture in used for one in picture.objects))
        self.notes = [*self.account.lines(), *self.notes]

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


def _other_size(path: Path, actual: tuple[int, int], stated: tuple[int, int]) -> str:
    return f'{path} ({actual[0]} x {actual[1]} pixels, not {stated[0]} x {stated[1]})'


def has_area(keys: dict[str, Any], size: tuple[int, int]) -> bool:
    """Returns whether an object is at least a pixel wide and high, in its image; mmdet leaves out others."""
    x, y, width, height = keys['bbox']
    inside = [min(start + side, most) - max(start, 0) for start, side, most in zip((x, y), (width, height), size,
                                                                                  strict=True)]
    return min(width, height) >= 1 and min(inside) > 0


def one_of_each(pictures: Iterable[Picture], account: Account) -> list[Picture]:
    """Joins what several records say about one image; what they say twice is left out.

    Raises:
        UserError: If they contradict: they state two sizes, or two classes for one place.
    """
    found: dict[Path, Picture] = {}
    for one in pictures:
        first = found.setdefault(one.path, one)
        if first is one:
            continue
        known, other_size = (each.stated if all(each.stated) else each.size for each in (first, one))
        if all(known) and all(other_size) and known != other_size:
            raise UserError(f'{one.path} has {known} pixels in {first.annotation}, but {other_size} in '
                            f'{one.annotation}: remove one of the records.')
        first.records += one.records
        names = {_place(each): each.name for each in first.objects}
        for other in one.objects:
            name = names.get(_place(other), other.name)
            if name != other.name:
                raise UserError(f'{one.path} has two records, in {first.annotation} and {one.annotation}, which call '
                                f'the object at {other.keys["bbox"]} {name} and {other.name}: remove one of them.')
            if _place(other) in names:
                account.leave('objects', 'objects are said twice about one image', one.path.name, other.records)
            else:
                first.objects.append(other)
    return [*found.values()]


def _place(one: LabelledObject) -> str:
    return str((one.keys['bbox'], one.keys.get('segmentation')))
