"""The splits of a folder of data: which one a name means, and how images are divided."""
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from openmmlab_runs.data.datasets import SPLITS
from openmmlab_runs.errors import UserError
from openmmlab_runs.texts import shell

from .dataset import LabelledData, Picture
from .folder import Folder, split_in

# The name of a crop, with the image that it is from: slide1_0_512.png, slide1_x0_y512.png.
CROP = r'^(.+?)[_-]\D?\d+[_-]\D?\d+\.\w+$'


def split_of(path: Path, root: Path) -> str:
    """Returns the split of the innermost folder of a path that names one, or 'train' if none does."""
    parts = path.parent.relative_to(root).parts if path.is_relative_to(root) else path.parent.parts[-2:]
    return next((split for part in reversed(parts) if (split := split_in(part))), 'train')


def pictures_of(files: Sequence[Path], folder: Folder, what: str, data: LabelledData,
                named_in: Callable[[Path], str] | None = None) -> list[Picture]:
    """Returns images with their annotation files, and accounts for files and images without the other; `named_in` reads
    the name of the image from a file that no image is called like.
    """
    of_image, alone = folder.pair(files)
    if named_in:
        for path, text in [(path, named_in(path)) for path in alone]:
            if (place := folder.match([text], path, path.parent).get(text)) and place not in of_image:
                of_image[place] = path
                alone.remove(path)
    near, labels = {image.parent for image in of_image}, set(files)
    bare = [path for path in folder.images if path.parent in near and path not in of_image and path not in labels]
    data.account.seen['images'] += len(files) + len(bare)
    data.account.leave_all('images', f'{what}s have no image of their own', alone)
    data.account.leave_all('images', f'images have no {what}', bare)
    return data.measured([Picture(image, path) for image, path in of_image.items()])


def divide(data: LabelledData, pictures: Sequence[Picture], folder: Folder, lists: Mapping[str, Sequence[Path]]
           ) -> None:
    """Puts images into the splits of their lists, or if there are none, of their folders."""
    # An image that only its annotation file holds is in the folder of that file.
    places = {one.path: one.path if one.path.is_relative_to(folder.root) else one.annotation or one.path
              for one in pictures}
    lists = lists or {split: [path for path, place in places.items() if split_of(place, folder.root) == split]
                      for split in SPLITS}
    by_image = {one.path: one for one in pictures}
    listed = {image for images in lists.values() for image in images}
    for one in pictures:
        if one.path not in listed:
            data.account.leave('images', 'images are in no list of a split', folder.name(one.path), one.records)
            data.account.leave('objects', 'objects are of images in no list of a split', '',
                               sum(other.records for other in one.objects))
    for split in SPLITS:
        if own := [by_image[image] for image in dict.fromkeys(lists.get(split, ())) if image in by_image]:
            data.splits[split] = own


def complete(data: LabelledData, pictures: Sequence[Picture], folder: Folder, lists: Mapping[str, Sequence[Path]],
             names: Sequence[str] = ()) -> LabelledData:
    """Gives data the images of a reader, with classes (of `names`, if the layout has them) and splits; see `settle`."""
    data.settle(names or sorted({other.name.strip() for one in pictures for other in one.objects}), pictures)
    divide(data, pictures, folder, lists)
    return data


def choose_groups(names: Sequence[str], number: int, seed: int, pattern: str) -> set[str]:
    """Returns at most `number` names, in whole groups, in a random order; the smallest group if all are larger.

    A group is the names in which the regular expression finds the same: its first group, or all that matches if it has
    none. A name in which it finds nothing is alone. A UserError if it is none, or there is one group.
    """
    try:
        found = {name: re.search(pattern, name) for name in names}
    except re.error as error:
        raise UserError(f'group_by is {pattern}, which is no regular expression ({error}): correct it.') from None
    groups: dict[object, list[str]] = {}
    for name, match in found.items():
        groups.setdefault((match.groups() or (match[0],))[:1] if match else name, []).append(name)
    if len(groups) == 1 or not any(found.values()):
        what = 'nothing in any name' if not any(found.values()) else 'the same in all names'
        raise UserError(f'group_by is {pattern}, which finds {what}, such as {names[0]}: correct it.')
    chosen: set[str] = set()
    for group in random.Random(seed).sample(list(groups.values()), len(groups)):
        chosen.update(group if len(chosen) + len(group) <= number else ())
    smallest = min(groups.values(), key=len)
    return chosen or {*smallest}


def take_share(data: LabelledData, share: float, seed: int, group_by: str | None = None) -> None:
    """Moves a share of training to validation; entries of one file, or of a group, stay together (`choose_groups`).

    A UserError if either is empty.
    """
    pictures, root = data.splits['train'], data.root
    name_of = {one.path: (one.path.relative_to(root) if one.path.is_relative_to(root) else one.path).as_posix()
               for one in pictures}
    names = list(name_of.values())
    number = max(1, round(share * len(names)))
    if not 0 < share < 1 or number >= len(names):
        raise UserError(f'a share of {share} of {len(names)} images cannot be for validation: take more images, or '
                        'name a share between 0 and 1, a folder or a file with --val.')
    chosen = (choose_groups(names, number, seed, group_by) if group_by is not None else
              set(random.Random(seed).sample(names, number)))
    data.splits['train'] = [one for one in pictures if name_of[one.path] not in chosen]
    data.splits['val'] = [one for one in pictures if name_of[one.path] in chosen]
    data.notes.append(f'There is no split for validation: it gets {len(data.splits["val"])} images of training (seed '
                      f'{seed}).')
    sources = {match[1] for name in names if (match := re.search(CROP, name))}
    if group_by is None and 1 < len(sources) <= len(names) / 4:
        data.notes.append(f'Names look like crops of {len(sources)} images, such as {names[0]}: crops of one image in '
                          f'both parts make metrics too good. {shell("--group-by", CROP)} keeps them together.')
