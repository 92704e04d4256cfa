"""Writes labels beside a config, as mmdet and mmseg read them: COCO files, or lists of images with label maps."""
import json
from collections.abc import Sequence
from os.path import commonpath
from pathlib import Path
from typing import Any

from openmmlab_tools.errors import UserError
from openmmlab_tools.files import write_image, write_text
from openmmlab_tools.readers.form.account_text import account_text
from openmmlab_tools.readers.form.dataset import LabelledData, Picture
from openmmlab_tools.readers.form.folder import inside
from openmmlab_tools.readers.form.label_map_files import to_classes

ACCOUNT = 'account.txt'  # this file next to the labels reports which images and objects were used


def write_labels(folder: Path, data: LabelledData) -> dict[str, dict[str, Any]]:
    """Writes the labels of all splits into a new folder. Returns the arguments of their datasets; their `data_root` is
    the root of the data. Raises a UserError if mmseg would not find an image by its name in a list.
    """
    for pictures in data.splits.values() if data.is_semantic else ():
        if odd := [name for name in _names(pictures)[1] if name != name.strip() or len(name.splitlines()) > 1]:
            raise UserError(f'image {odd[0]!r} has a name that begins or ends with a space, or has several lines, so '
                            'mmseg cannot read it from a list: rename it.')
    folder.mkdir()
    write_text(folder / ACCOUNT, account_text(data))
    write = _write_maps if data.is_semantic else _write_coco
    return {split: write(folder.resolve(), split, pictures, data) for split, pictures in data.splits.items()}


def to_coco(pictures: Sequence[Picture], classes: Sequence[str], root: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns images and objects in COCO's layout. All classes are categories, whose order mmdet numbers."""
    ids = {name: index for index, name in enumerate(classes, start=1)}
    objects = [dict(instance.keys, image_id=index, category_id=ids[instance.name])
               for index, picture in enumerate(pictures, start=1) for instance in picture.objects]
    return dict(images=[dict(id=index, file_name=inside(picture.path, root), width=picture.size[0],
                             height=picture.size[1])
                        for index, picture in enumerate(pictures, start=1)],
                categories=[dict(id=index, name=name) for name, index in ids.items()],
                annotations=[dict(keys, id=index) for index, keys in enumerate(objects, start=1)])


def _write_coco(folder: Path, split: str, pictures: Sequence[Picture], data: LabelledData) -> dict[str, Any]:
    file = folder / f'{split}.json'
    write_text(file, json.dumps(to_coco(pictures, data.classes, data.root)))
    return dict(type='CocoDataset', ann_file=str(file), data_prefix=dict(img=''))


def _write_maps(folder: Path, split: str, pictures: Sequence[Picture], data: LabelledData) -> dict[str, Any]:
    """Writes a list of images, and their label maps, unless these have classes and the names of their images already.
    """
    maps = [picture.label_map for picture in pictures if picture.label_map]
    images, names = _names(pictures)
    labels = Path(commonpath([label_map.path.parent for label_map in maps]))
    ends = pictures[0].path.suffix, maps[0].path.name.removeprefix(pictures[0].path.stem)
    bare = [name.removesuffix(ends[0]) for name in names]
    if all(label_map.codes is None and label_map.path == labels / f'{name}{ends[1]}' and name == name.strip()
           and one_image == f'{name}{ends[0]}' for label_map, name, one_image in zip(maps, bare, names, strict=True)):
        names = bare
    else:
        labels, ends = folder / split, ('', '.png')
        for label_map, name in zip(maps, names, strict=True):
            target = labels / f'{name}.png'
            target.parent.mkdir(parents=True, exist_ok=True)
            write_image(target, to_classes(label_map), data.palette or None)
    file = folder / f'{split}.txt'
    write_text(file, '\n'.join(names) + '\n')
    return dict(type='BaseSegDataset', ann_file=str(file), data_prefix=dict(
        img_path=inside(images, data.root), seg_map_path=inside(labels, data.root)), img_suffix=ends[0],
        seg_map_suffix=ends[1])


def _names(pictures: Sequence[Picture]) -> tuple[Path, list[str]]:
    """Returns the folder of images, and their names in it."""
    folder = Path(commonpath([picture.path.parent for picture in pictures]))
    return folder, [picture.path.relative_to(folder).as_posix() for picture in pictures]
