"""Writes annotations that mmdet and mmseg cannot read where they lie: COCO files, lists of images, and label maps."""
import json
from pathlib import Path

from openmmlab_data.form.splits import Data, Split
from openmmlab_data.readers.label_maps import to_classes
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import write_image, write_text


def is_written(split: Split) -> bool:
    return split.labels is None or not split.is_whole


def written_file(folder: Path, split: str, is_semantic: bool) -> Path:
    return folder / f'{split}{".txt" if is_semantic else ".json"}'


def write_annotations(folder: Path, data: Data) -> None:
    """Writes the files of splits that need one; a UserError if mmseg would not find an image by its name in a list."""
    for name, split in data.splits.items():
        if not is_written(split):
            continue
        folder.mkdir(exist_ok=True)
        path = written_file(folder, name, data.is_semantic)
        if not data.is_semantic:
            write_text(path, json.dumps(_as_coco(split, data)))
            continue
        names = [image['file_name'].removesuffix(data.suffixes[0]) for image in split.coco['images']]
        if odd := [one for one in names if one != one.strip() or len(one.splitlines()) > 1]:
            raise UserError(f'image {odd[0]!r} has a name that begins or ends with a space, or has several lines, so '
                            'mmseg cannot read it from a list: rename it.')
        if split.meaning:
            for image in split.coco['images']:
                target = folder / name / f'{image["file_name"]}{data.suffixes[1]}'
                target.parent.mkdir(parents=True, exist_ok=True)
                write_image(target, to_classes(image['label_map'], split.meaning), data.palette or None)
        write_text(path, '\n'.join(names) + '\n')


def _as_coco(split: Split, data: Data) -> dict[str, list]:
    """Returns a split with the classes as categories: mmdet numbers classes in the order of the file's categories."""
    names = {category['id']: category['name'] for category in split.coco['categories']}
    ids = {name: index for index, name in enumerate(data.classes, start=1)}
    images = {image['id']: index for index, image in enumerate(split.coco['images'], start=1)}
    own = [one for one in split.coco['annotations'] if names[one['category_id']] in ids]
    return dict(images=[dict(image, id=images[image['id']]) for image in split.coco['images']],
                categories=[dict(id=index, name=name) for name, index in ids.items()],
                annotations=[dict(one, id=index, image_id=images[one['image_id']],
                                  category_id=ids[names[one['category_id']]])
                             for index, one in enumerate(own, start=1)])
