"""The splits of a folder of data, and which one a name means."""
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openmmlab_runs.errors import UserError
from openmmlab_runs.pictures.bands import Pixels
from openmmlab_runs.texts import some

from .folder import words_of

WORDS = dict(train='train', training='train', trainval='train', trainvaltest='train', val='val', valid='val',
             validation='val', validating='val', test='test', testing='test')


@dataclass(frozen=True)
class Meaning:
    classes: list[str]
    codes: dict[int, int] = field(default_factory=dict)  # value or colour -> class; empty if values are the classes
    are_colours: bool = False  # whether the codes are colours
    palette: list[tuple[int, ...]] = field(default_factory=list)  # the colour of each class; empty if there are none
    are_objects: bool = False  # whether the values are numbers of objects, of one class
    pixels: list[dict[int, int]] = field(default_factory=list)  # the number of pixels of each class, map by map
    notes: list[str] = field(default_factory=list)  # sentences about what was guessed


@dataclass
class Split:
    coco: dict[str, list[dict[str, Any]]]  # see `read_coco`; label maps: `images` with `label_map`, `pixels`
    images: Path  # the folder to which names of images are relative
    labels: Path | None = None  # the COCO file with this content, or the folder of the label maps, if there is one yet
    is_whole: bool = True  # whether the split has all images of the folder, or of the file
    folders: str = ''  # of its images, for a message
    meaning: Meaning | None = None  # how the label maps are converted; None if they are not


@dataclass
class Data:
    form: str
    root: Path
    splits: dict[str, Split]  # 'train', and others of 'val' and 'test'
    classes: list[str] = field(default_factory=list)  # in the order of their labels
    is_semantic: bool = False  # whether the annotations are label maps of classes
    palette: list[tuple[int, ...]] = field(default_factory=list)  # of label maps; empty if they have none
    suffixes: tuple[str, str] = ('', '')  # the ends of the names of images and label maps
    pixels: Counter[Pixels] = field(default_factory=Counter)  # how many images have which channels and types
    notes: list[str] = field(default_factory=list)  # sentences about what is unusual

    def tell_unused(self, names: list[str]) -> None:
        if names:
            self.notes.append(f'{len(names)} classes have no object and are left out: {some(names)}.')


def split_in(name: str) -> str:
    """Returns the split that a name has as a whole word, as 'instances_train2017' has 'train'; '' for none or several.
    """
    found = {WORDS[word] for word in words_of(name) if word in WORDS}
    return 'train' if found == {'train', 'val'} else found.pop() if len(found) == 1 else ''


def split_of(path: Path, root: Path) -> str:
    """Returns the split of the innermost folder of a path that names one, or 'train' if none does."""
    parts = path.parent.relative_to(root).parts if path.is_relative_to(root) else path.parent.parts[-2:]
    return next((split for part in reversed(parts) if (split := split_in(part))), 'train')


def divide(data: Data, share: float, seed: int) -> tuple[Split, Split]:
    """Returns what is left, and a share for validation; entries of one file stay together. A UserError if one is empty.
    """
    split = data.splits['train']
    names = list(dict.fromkeys(image['file_name'] for image in split.coco['images']))
    number = max(1, round(share * len(names)))
    if not 0 < share < 1 or number >= len(names):
        raise UserError(f'a share of {share} of {len(names)} images cannot be for validation: take more images, or '
                        'name a share between 0 and 1, a folder or a file with --val.')
    chosen = set(random.Random(seed).sample(names, number))

    def take(is_val: bool) -> Split:
        images = [image for image in split.coco['images'] if (image['file_name'] in chosen) == is_val]
        ids = {image['id'] for image in images}
        annotations = [one for one in split.coco['annotations'] if one['image_id'] in ids]
        return replace(split, coco=dict(split.coco, images=images, annotations=annotations), is_whole=False)

    return take(False), take(True)
