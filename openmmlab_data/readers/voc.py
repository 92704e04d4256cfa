"""Pascal VOC: an XML file for each image, and lists of images in ImageSets."""
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from openmmlab_data.form.account import Account
from openmmlab_data.form.dataset import LabelledData, LabelledObject
from openmmlab_data.form.folder import Folder, read_lines
from openmmlab_data.form.objects import box, number_of, ordered, points_of, polygons, rotated, size_of
from openmmlab_data.form.splits import complete, pictures_of
from openmmlab_runs.data.datasets import SPLITS
from openmmlab_runs.errors import UserError, first_line

from .layouts import VOC, Reading

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
# Elements that are read, or that say nothing about objects.
OF_IMAGE = frozenset(('folder', 'filename', 'path', 'source', 'owner', 'size', 'imagesize', 'segmented', 'object'))
OF_OBJECT = frozenset(('name', 'pose', 'truncated', 'difficult', 'occluded', 'bndbox', 'polygon', 'robndbox', 'type',
                       'deleted', 'verified', 'date', 'id', 'part'))


def parse(path: Path) -> ElementTree.Element:
    """Reads XML in the encoding that it names, or in UTF-8; a UserError for other files."""
    content = path.read_bytes()
    try:
        return ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError):  # Expat reads GBK and its like only as text
        pass
    named = re.match(rb'\s*<\?xml[^>]*encoding=["\']([-\w]+)["\'][^>]*>', content)
    encoding = named[1].decode() if named else 'UTF-8'
    try:
        return ElementTree.fromstring(content[named.end() if named else 0:].decode(encoding))
    except UnicodeDecodeError as error:
        raise UserError(f'{path} is not {encoding}, {"which it names" if named else "perhaps GBK"}: save it as UTF-8.'
                        ) from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise UserError(f'{path} is not XML ({first_line(error)}): put the whole file there.') from error


def read_voc(reading: Reading) -> LabelledData:
    """Reads an XML file for each image; a UserError for another format. Corners count from 1 and belong to the box.
    Polygons, and rotated boxes of roLabelImg, become masks, and difficult objects crowds. Those that MIT's LabelMe has
    deleted are left out.
    """
    data, folder = LabelledData(VOC, reading.folder.root), reading.folder
    pictures, difficult, account = pictures_of(
        reading.files, folder, 'XML file', data, lambda path: parse(path).findtext('filename', '')), 0, data.account
    for picture in pictures:
        file = str(picture.annotation)
        root = parse(Path(file))
        account.read((one.tag for one in root), OF_IMAGE)
        picture.stated = size_of(root.findtext('size/width') or root.findtext('imagesize/ncols'),
                                 root.findtext('size/height') or root.findtext('imagesize/nrows'), file)
        for index, found in enumerate(root.iter('object'), start=1):
            account.seen['objects'] += 1
            account.read((one.tag for one in found), OF_OBJECT, 'object/')
            if (found.findtext('deleted') or '').strip() == '1':
                account.leave('objects', 'objects are deleted', file)
                continue
            keys = _shape(found, f'{file}, object {index},', picture.size, account)
            keys['iscrowd'] = int((found.findtext('difficult') or '').strip() == '1')
            difficult += keys['iscrowd']
            picture.objects.append(LabelledObject((found.findtext('name') or '').strip(), keys))
    data.notes += [f'{difficult} objects are difficult: losses and metrics ignore them.'] if difficult else []
    return complete(data, pictures, folder, read_lists(data, folder, 'Main', [one.path for one in pictures]))


def _shape(found: ElementTree.Element, where: str, size: tuple[int, int], account: Account) -> dict[str, Any]:
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
    numbers = (number_of(found.findtext(f'bndbox/{key}'), where, key) for key in CORNERS)
    left, top, right, bottom = ordered(numbers, account, where)
    return box(left - 1, top - 1, right, bottom, size)


def read_lists(data: LabelledData, folder: Folder, kind: str, images: Sequence[Path]) -> dict[str, list[Path]]:
    """Reads the images of each split from ImageSets: those of `kind`, 'Main' for boxes or 'Segmentation' for label
    maps, or else others. `trainval` is what is in no list for validation. A UserError if a name means two images.
    """
    lists = [path for path in folder.of('.txt') if 'ImageSets' in path.parts
             and path.stem in (*SPLITS, 'trainval')]
    lists = [path for path in lists if path.parent.name == kind] or lists
    # The names of images and their ends, such as `sub/a`, and the images that have them.
    by_end: dict[str, set[Path]] = defaultdict(set)
    for image in images:
        for depth in range(1, 5):
            by_end['/'.join(image.with_suffix('').parts[-depth:])].add(image)
    named: dict[str, list[Path]] = {}
    for path in lists:
        for line in read_lines(path):
            # Lists of a class have 1, 0 or -1 behind the name.
            ends = (re.sub(r'\.(jpe?g|png|bmp|tiff?|webp|xml)$', '', name.replace('\\', '/'), flags=re.IGNORECASE)
                    for name in (line, re.sub(r'\s+-?[01]$', '', line)))
            found = next((by_end[end] for end in ends if end in by_end), set())
            if len(found) > 1:
                raise UserError(f'{path} names {line}, which {" and ".join(map(folder.name, sorted(found)[:2]))} may '
                                'be: write names with their folders.')
            named.setdefault(path.stem, []).extend(found)
            if not found:
                data.account.remark(f'names of {path.name} have no image', line)
    if 'train' not in named and 'trainval' in named:
        held_out = {*named.get('val', ())}
        named['train'] = [image for image in named['trainval'] if image not in held_out]
    return {split: named[split] for split in SPLITS if named.get(split)}
