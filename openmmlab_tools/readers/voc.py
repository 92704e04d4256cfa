"""Pascal VOC: an XML file for each image, and lists of images in ImageSets."""
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from openmmlab_tools.errors import FileFault, first_line
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.objects import Shape, number_of, points_of, rotated, size_of
from openmmlab_tools.readers.form.records import Record, RecordObject, read_each

from .layouts import VOC, Reading

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
# Elements that are read, and elements that do not describe objects.
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
        raise FileFault(path, f'is not {encoding}, {"which it names" if named else "perhaps GBK"}: save it as UTF-8'
                        ) from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise FileFault(path, f'is not XML ({first_line(error)}): put the whole file there') from error


def read_voc(reading: Reading) -> LabelledData:
    """Reads an XML file for each image; a UserError for another format. Corners count from 1 and belong to the box.
    Polygons, and rotated boxes of roLabelImg, become masks, and difficult objects crowds. Those that MIT's LabelMe has
    deleted are left out.
    """
    return read_each(reading.files, LabelledData(VOC, reading.folder.root), reading.folder, 'XML file', _records)


def _records(path: Path, account: Account) -> Iterator[Record]:
    root = parse(path)
    account.read((element.tag for element in root), OF_IMAGE)
    width, height = (root.findtext(f'size/{side}') or root.findtext(f'imagesize/{other}')
                     for side, other in (('width', 'ncols'), ('height', 'nrows')))
    size = size_of(width, height, str(path))
    yield Record(str(path), [root.findtext('filename', '')], (
        _record_object(element, f'{path}, object {index},', account) for index, element
        in enumerate(root.iter('object'), 1)), size)


def _record_object(element: ElementTree.Element, where: str, account: Account) -> RecordObject:
    account.read((part.tag for part in element), OF_OBJECT, 'object/')
    flags = {key: (element.findtext(key) or '').strip() == '1' for key in ('deleted', 'difficult')}
    return RecordObject(left='objects are deleted') if flags['deleted'] else RecordObject(
        element.findtext('name') or '', _shape(element, where), ignored='objects are difficult' * flags['difficult'])


def _shape(element: ElementTree.Element, where: str) -> Shape:
    polygon, turned = element.find('polygon'), element.find('robndbox')
    if polygon is not None and len(polygon):
        # <pt><x>..</x><y>..</y></pt> of LabelMe's old format, or <x1>..</x1><y1>..</y1> of Roboflow
        texts = [point.findtext(axis, '') for point in polygon.iter('pt') for axis in ('x', 'y')] or [
            point.text or '' for point in polygon]
        return Shape(parts=[points_of(texts, where)])
    if turned is not None:
        x, y, width, height, angle = (number_of(turned.findtext(key), where, key)
                                      for key in ('cx', 'cy', 'w', 'h', 'angle'))
        return Shape(parts=[rotated(x, y, width, height, float(np.rad2deg(angle)))])
    return Shape([number_of(element.findtext(f'bndbox/{key}'), where, key) for key in CORNERS], counts_from_1=True)
