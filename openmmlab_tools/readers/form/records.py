"""Readers yield a record with objects for each image. The functions here make data of these records."""
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from openmmlab_tools.errors import UserError

from .account import Account
from .dataset import LabelledData, LabelledObject, Picture, one_of_each
from .folder import Folder
from .objects import Shape, merged
from .splits import complete


class RecordObject(NamedTuple):
    """An object in a record, or the reason why it is left out."""
    name: str = ''  # its class
    shape: Shape | None = None
    group: object = None  # objects with the same class and group are joined; None: not joined
    left: str = ''  # the reason to leave it out, see `Account.leave`
    records: int = 1  # the number of records in the source for this object
    ignored: str = ''  # see `LabelledObject`


class Record(NamedTuple):
    """The annotation of one image, as a file or a part of a file states it."""
    where: str  # the file, or a part of it, for messages
    texts: Sequence[str]  # what may be its path, the surest first
    objects: Iterable[RecordObject]
    size: tuple[int, int] = (0, 0)  # the stated width and height in pixels, if any
    split: str = ''
    left: str = ''  # a reason to leave the image out


Parse = Callable[[Path, Account], Iterable[Record]]  # the records of a file


def read_each(files: Sequence[Path], data: LabelledData, folder: Folder, file_kind: str, parse: Parse) -> LabelledData:
    """Reads a layout with one annotation file for each image. `file_kind` names such a file in messages."""
    account, record_of = data.account, cache(lambda path: next(iter(parse(path, data.account))))
    pictures, unused = pictures_of(files, folder, file_kind, data, lambda path: record_of(path).texts[0])
    for picture in pictures:
        assert picture.annotation
        fill(picture, record_of(picture.annotation), account)
    for path in unused:
        objects = sum(instance.records for instance in record_of(path).objects)
        account.seen['objects'] += objects
        account.leave('objects', f'objects are of {file_kind}s that are not used', path.name, objects)
    return complete(data, pictures, folder)


def read_many(files: Sequence[Path], data: LabelledData, folder: Folder, parse: Parse) -> LabelledData:
    """Reads a layout in which a file describes many images. Raises a UserError if none of these images exists."""
    account, known, lists = data.account, list[tuple[Picture, Record]](), dict[str, list[Path]]()
    for path in files:
        bases = path.parent, path.parent / 'images'
        records = [record._replace(objects=[*record.objects], texts=[*map(folder.full_name, record.texts)])
                   for record in parse(path, account)]
        chosen = [record.texts[0] if len(record.texts) == 1 else next((
            text for text in record.texts if folder.match([text], path, *bases)), '') for record in records]
        places = folder.match(filter(None, chosen), path, *bases)
        for record, text in zip(records, chosen, strict=True):
            objects = sum(instance.records for instance in record.objects)
            account.seen['images'] += 1
            if text in places and not record.left:
                known.append((Picture(places[text], path), record))
                lists.setdefault(record.split, []).append(places[text])
                continue
            account.seen['objects'] += objects
            name = next(iter(record.texts), record.where)
            if text in places:
                account.leave('images', record.left, record.where.rstrip(','))
                account.leave('objects', 'objects are in skipped images', name, objects)
            else:
                account.leave('images', f'images of {path.name} are not there', name)
                account.leave('objects', 'objects are of images that are not there', name, objects)
    if not known:
        raise UserError(f'none of the images in {files[0]} exists: put them into {folder.root} or a folder below.')
    data.measured([picture for picture, _ in known])
    for picture, record in known:
        fill(picture, record, account)
    lists.pop('', None)
    return complete(data, one_of_each((picture for picture, _ in known), account), folder,
                    lists if len(lists) > 1 else {})


def fill(picture: Picture, record: Record, account: Account) -> None:
    """Adds the objects of a record to its image. Records with the same class and group become one object."""
    where, groups = record.where.rstrip(','), dict[tuple[str, object], list[RecordObject]]()
    for index, instance in enumerate(record.objects):
        account.seen['objects'] += instance.records
        if instance.left or not instance.shape:
            account.leave('objects', instance.left, where, instance.records)
            continue
        if instance.shape.is_swapped:
            account.remark('boxes have their corners swapped and are read the other way round', where)
        groups.setdefault((instance.name.strip(), index if instance.group is None else str(instance.group)),
                          []).append(instance)
    picture.stated = record.size
    for (name, _), parts in groups.items():
        shapes, ignored = [part.shape for part in parts if part.shape], parts[0].ignored
        keys = merged([shape.keys(picture.size) for shape in shapes], picture.size)
        extents = [shape.extent(picture.size) for shape in shapes]
        left, top, right, bottom = (ends(sides) for ends, sides in zip(
            (min, min, max, max), zip(*extents, strict=True), strict=True))
        picture.objects.append(LabelledObject(name, dict(keys, iscrowd=int(bool(ignored))), sum(
            part.records for part in parts), (left, top, right, bottom), ignored))


def pictures_of(files: Sequence[Path], folder: Folder, file_kind: str, data: LabelledData,
                named_in: Callable[[Path], str] | None = None) -> tuple[list[Picture], list[Path]]:
    """Returns images with their annotation files, and files that are not used, and accounts for these and for images
    without a file; `named_in` reads the name of the image from a file that no image is called like.
    """
    of_image, alone, second = folder.pair(files)
    if named_in:
        for path, text in [(path, named_in(path)) for path in alone]:
            if (place := folder.match([text], path, path.parent).get(text)) and place not in of_image:
                of_image[place] = path
                alone.remove(path)
    near = {image.parent for image in of_image}
    bare = [path for path in folder.images if path.parent in near and path not in of_image
            and path not in folder.labels]
    data.account.seen['images'] += len(files) + len(bare)
    data.account.leave_all('images', f'{file_kind}s have no image of their own', [*map(folder.name, alone)])
    data.account.leave_all('images', f'{file_kind}s belong to images that already have another file',
                           [*map(folder.name, second)])
    data.account.leave_all('images', f'images have no {file_kind}', [*map(folder.name, bare)])
    return data.measured([Picture(image, path) for image, path in of_image.items()]), [*alone, *second]
