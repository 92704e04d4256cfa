"""The form of data that all readers return, and that checks, measurements and the writer use."""
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from openmmlab_tools.errors import FileFault
from openmmlab_tools.pictures.bands import Pixels, read_header
from openmmlab_tools.texts import some, told

from .account import SHOWN, Account
from .files import sort_files
from .folder import Folder
from .objects import Extent

OTHER_SIZE = 'images have another size than their annotation states', ': their objects may lie elsewhere.'
EMPTY = ': they teach what is no object (--drop-empty leaves them out)'


class LabelledObject(NamedTuple):
    """An object in an image."""
    name: str  # its class
    keys: dict[str, Any]  # COCO's `bbox` (x, y, width, height), `area` and `iscrowd`, perhaps `segmentation`
    records: int = 1  # the number of records in the source for this object
    extent: Extent | None = None  # left, top, right and bottom before clipping; None: the same as `bbox`
    ignored: str = ''  # the reason why losses and metrics ignore it (see `Account.leave`); then `iscrowd` is 1


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
    records: int = 1  # the number of records in the source about this image

    def classes(self, names: Sequence[str]) -> set[str]:
        """Returns the classes that occur in the image; `names` are the classes of the labels 0, 1, 2, ..."""
        return {names[label] for label in self.label_map.pixels} if self.label_map else {
            instance.name for instance in self.objects}


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
    validation: Account | None = None  # of other data that were named for validation
    notes: list[str] = field(default_factory=list)  # sentences about what is unusual

    def measured(self, pictures: list[Picture]) -> list[Picture]:
        """Sets the sizes of images that have none, and counts their types; raises a UserError if a file is no image."""
        wrong = []
        with ThreadPoolExecutor() as threads:
            for picture, header in zip(pictures, threads.map(read_header, [picture.path for picture in pictures]),
                                       strict=True):
                actual = header.width, header.height
                if picture.size != actual and all(picture.size):  # keep the size, so that training raises an error
                    wrong.append(other_size(picture.path, actual, picture.size))
                else:
                    picture.size = actual
                self.pixels[header.pixels] += 1
        self.notes += told(wrong, *OTHER_SIZE)
        return pictures

    def close(self, folder: Folder) -> None:
        """Counts what is used of records and files, and begins the notes with the account."""
        used = {id(picture): picture for pictures in self.splits.values() for picture in pictures}.values()
        objects = [(instance, picture) for picture in used for instance in picture.objects]
        self.account.used = Counter(images=sum(picture.records for picture in used),
                                    objects=sum(instance.records for instance, _ in objects if not instance.ignored))
        for instance, picture in objects:
            if instance.ignored:
                self.account.leave('objects', f'{instance.ignored}: losses and metrics ignore them', picture.path.name,
                                   instance.records)
        self.account.use('labels', *(path for picture in used for path in (
            picture.annotation, picture.label_map.path if picture.label_map else None) if path))
        self.account.use('images', *(picture.path for picture in used))
        self.account.files = sort_files(folder.files, folder.hidden, folder.root, self.account.roles)
        self.notes = [*self.account.lines(), *self.notes]

    def about_splits(self) -> Iterator[str]:
        """Yields sentences about images without objects, splits without a class, and images in two splits."""
        for name, pictures in self.splits.items():
            if empty := 0 if self.is_semantic else sum(not picture.objects for picture in pictures):
                yield f'{empty} images of {name} have no objects{EMPTY * (name == "train")}.'
            present = set().union(*(picture.classes(self.classes) for picture in pictures))
            if missing := [name for name in self.classes if name not in present]:
                yield (f'{name} has no {"pixel" if self.is_semantic else "object"} of class {some(missing, SHOWN)}.')
        trained = {picture.path for picture in self.splits['train']}
        for name in ('val', 'test'):
            both = sorted(trained & {picture.path for picture in self.splits.get(name, ())})
            yield from told(both, f'images are in train and {name}', ': metrics will be too good.')


def other_size(path: Path, actual: tuple[int, int], stated: tuple[int, int]) -> str:
    return f'{path} ({actual[0]} x {actual[1]} pixels, not {stated[0]} x {stated[1]})'


def one_of_each(pictures: Iterable[Picture], account: Account) -> list[Picture]:
    """Joins what several records say about one image.

    Raises:
        UserError: If they contradict: they state two sizes, or two classes for one place.
    """
    by_path: dict[Path, Picture] = {}
    for picture in pictures:
        first = by_path.setdefault(picture.path, picture)
        if first is picture:
            continue
        known, other_size = (each.stated if all(each.stated) else each.size for each in (first, picture))
        if all(known) and all(other_size) and known != other_size:
            raise FileFault(picture.path, f'has {known} pixels in {first.annotation}, but {other_size} in '
                            f'{picture.annotation}: remove one of the records')
        first.records += picture.records
        if picture.annotation:
            account.use('labels', picture.annotation)
        names: dict[str, set[str]] = defaultdict(set)
        for each in first.objects:
            names[_place(each)].add(each.name)
        for other in picture.objects:
            here = sorted(names.get(_place(other), {other.name}))
            if other.name not in here:
                raise FileFault(picture.path, f'has two records. At {other.keys["bbox"]}, {first.annotation} labels '
                                f'{", ".join(here)}, but {picture.annotation} labels {other.name}: remove one record')
        first.objects += picture.objects
    return [*by_path.values()]


def _place(instance: LabelledObject) -> str:
    return str((instance.keys['bbox'], instance.keys.get('segmentation')))
