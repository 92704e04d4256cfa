"""The splits of a folder of data: which one a name means, and how images are divided."""
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from openmmlab_runs.data.datasets import SPLITS
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import told

from .dataset import LabelledData, Picture
from .folder import Folder, words_of

WORDS = dict(train='train', training='train', trainval='train', trainvaltest='train', val='val', valid='val',
             validation='val', validating='val', test='test', testing='test')


def split_in(name: str) -> str:
    """Returns the split that a name has as a whole word, as 'instances_train2017' has 'train'; '' for none or several.
    """
    found = {WORDS[word] for word in words_of(name) if word in WORDS}
    return 'train' if found == {'train', 'val'} else found.pop() if len(found) == 1 else ''


def split_of(path: Path, root: Path) -> str:
    """Returns the split of the innermost folder of a path that names one, or 'train' if none does."""
    parts = path.parent.relative_to(root).parts if path.is_relative_to(root) else path.parent.parts[-2:]
    return next((split for part in reversed(parts) if (split := split_in(part))), 'train')


def pictures_of(files: Sequence[Path], folder: Folder, what: str, data: LabelledData) -> list[Picture]:
    """Returns images with their annotation files, and notes what is left out: files and images without the other."""
    of_image, alone = folder.pair(files)
    near, labels = {image.parent for image in of_image}, set(files)
    bare = [path for path in folder.images if path.parent in near and path not in of_image and path not in labels]
    data.notes += [*told(alone, f'{what}s have no image of their own and are left out'),
                   *told(bare, f'images have no {what} and are left out')]
    return data.measured([Picture(image, path) for image, path in of_image.items()])


def divide(data: LabelledData, pictures: Sequence[Picture], folder: Folder, lists: Mapping[str, Sequence[Path]]
           ) -> None:
    """Puts images into the splits of their lists, or if there are none, of their folders."""
    lists = lists or {split: [one.path for one in pictures if split_of(one.path, folder.root) == split]
                      for split in SPLITS}
    by_image = {one.path: one for one in pictures}
    out = by_image.keys() - {image for images in lists.values() for image in images}
    data.notes += told(sorted(map(folder.name, out)), 'images are in no list of a split and are left out')
    for split in SPLITS:
        if own := [by_image[image] for image in dict.fromkeys(lists.get(split, ())) if image in by_image]:
            data.splits[split] = own


def complete(data: LabelledData, pictures: Sequence[Picture], folder: Folder, lists: Mapping[str, Sequence[Path]],
             names: Sequence[str] = ()) -> LabelledData:
    """Gives data the images of a reader: classes (of `names`, if the layout has them), splits, and sizes that differ.

    An object without a class is a UserError.
    """
    nameless = next((one.annotation for one in pictures for name, _ in one.objects if not name), None)
    if nameless:
        raise UserError(f'{nameless} has an object without the name of a class: give it one.')
    wrong = [f'{folder.name(one.path)} ({one.size[0]} x {one.size[1]} pixels, not {one.stated[0]} x {one.stated[1]})'
             for one in pictures if all(one.stated) and one.stated != one.size]
    data.notes += told(wrong, 'images have another size than their annotation states',
                       ': their objects may lie elsewhere.')
    data.keep_used(names or sorted({name for one in pictures for name, _ in one.objects}), pictures)
    divide(data, pictures, folder, lists)
    return data


def take_share(data: LabelledData, share: float, seed: int) -> None:
    """Moves a share of training to validation; entries of one file stay together. A UserError if either is empty."""
    names = list(dict.fromkeys(str(one.path) for one in data.splits['train']))
    number = max(1, round(share * len(names)))
    if not 0 < share < 1 or number >= len(names):
        raise UserError(f'a share of {share} of {len(names)} images cannot be for validation: take more images, or '
                        'name a share between 0 and 1, a folder or a file with --val.')
    chosen = set(random.Random(seed).sample(names, number))
    pictures = data.splits['train']
    data.splits['train'] = [one for one in pictures if str(one.path) not in chosen]
    data.splits['val'] = [one for one in pictures if str(one.path) in chosen]
    data.notes.append(f'There is no split for validation: it gets {len(data.splits["val"])} images of training (seed '
                      f'{seed}).')
