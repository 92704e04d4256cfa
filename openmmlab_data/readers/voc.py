"""Pascal VOC: an XML file for each image, and lists of images in ImageSets."""
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from openmmlab_data.form.dataset import LabelledData, LabelledObject
from openmmlab_data.form.folder import Folder, read_lines
from openmmlab_data.form.objects import box, number_of, points_of, polygons, rotated, size_of
from openmmlab_data.form.splits import complete, pictures_of
from openmmlab_runs.data.datasets import SPLITS
from openmmlab_runs.errors import UserError, first_line

from .layouts import VOC, Reading

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


def parse(path: Path) -> ElementTree.Element:
    try:
        return ElementTree.parse(str(path)).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise UserError(f'{path} is not XML ({first_line(error)}): put the whole file there.') from error


def read_voc(reading: Reading) -> LabelledData:
    """Reads an XML file for each image; a UserError for another format. Corners count from 1 and belong to the box.
    Polygons, and rotated boxes of roLabelImg, become masks, and difficult objects crowds.
    """
    data, folder = LabelledData(VOC, reading.folder.root), reading.folder
    pictures, difficult = pictures_of(reading.files, folder, 'XML file', data), 0
    for picture in pictures:
        file = str(picture.annotation)
        root = parse(Path(file))
        picture.stated = size_of(root.findtext('size/width'), root.findtext('size/height'), file)
        for index, found in enumerate(root.iter('object'), start=1):
            keys = _shape(found, f'{file}, object {index},', picture.size)
            keys['iscrowd'] = int((found.findtext('difficult') or '').strip() == '1')
            difficult += keys['iscrowd']
            picture.objects.append(LabelledObject((found.findtext('name') or '').strip(), keys))
    data.notes += [f'{difficult} objects are difficult: losses and metrics ignore them.'] if difficult else []
    return complete(data, pictures, folder, read_lists(folder, 'Main', [one.path for one in pictures]))


def _shape(found: ElementTree.Element, where: str, size: tuple[int, int]) -> dict[str, Any]:
    polygon, turned = found.find('polygon'), found.find('robndbox')
    if polygon is not None and len(polygon):
        # <pt><x>..</x><y>..</y></pt> of LabelMe's old format, or <x1>..</x1><y1>..</y1> of Roboflow
        texts = [point.findtext(axis, '') for point in polygon.iter('pt') for axis in ('x', 'y')] or [
            one.text or '' for one in polygon]
        return polygons([points_of(texts, where)], size)
    if turned is not None:
        x, y, width, height, angle = (number_of(turned.findtext(key), where, key)
                                      for key in ('cx', 'cy', 'w', 'h', 'angle'))
        return polygons([rotated(x, y, width, height, angle * 180 / 3.141592653589793)], size)
    left, top, right, bottom = (number_of(found.findtext(f'bndbox/{key}'), where, key) for key in CORNERS)
    return box(left - 1, top - 1, right, bottom, size)


def read_lists(folder: Folder, kind: str, images: Sequence[Path]) -> dict[str, list[Path]]:
    """Reads the images of each split from ImageSets: those of `kind`, 'Main' for boxes or 'Segmentation' for label
    maps, or else others. `trainval` is what is in no list for validation.
    """
    lists = [path for path in folder.of('.txt') if 'ImageSets' in path.parts
             and path.stem in (*SPLITS, 'trainval')]
    lists = [path for path in lists if path.parent.name == kind] or lists
    by_stem = {image.stem: image for image in images}
    # The names of images below their folder, such as `sub/a`, from the shortest end on.
    by_end = {'/'.join(image.with_suffix('').parts[-depth:]): image for depth in (4, 3, 2) for image in images}
    named: dict[str, list[Path]] = {}
    for path in lists:
        for line in read_lines(path):
            # Lists of a class have 1, 0 or -1 behind the name.
            for name in (line, re.sub(r'\s+-?[01]$', '', line)):
                name = name.replace('\\', '/')
                bare = re.sub(r'\.(jpe?g|png|bmp|tiff?|webp|xml)$', '', name, flags=re.IGNORECASE)
                image = by_end.get(bare) or by_stem.get(name) or by_stem.get(bare)
                if image:
                    named.setdefault(path.stem, []).append(image)
                    break
    if 'train' not in named and 'trainval' in named:
        held_out = {*named.get('val', ())}
        named['train'] = [image for image in named['trainval'] if image not in held_out]
    return {split: named[split] for split in SPLITS if split in named}
