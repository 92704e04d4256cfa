"""Each file of a folder is an image, a label or a description that is used, or it is named as left out."""
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
from hypothesis import given, settings
from hypothesis import strategies as st

from openmmlab_data.form.dataset import LabelledData
from openmmlab_data.readers.own_data import find_data
from openmmlab_runs.errors import UserError
from tests.openmmlab_data import layouts

NAMES = ('a', 'c', 'z', 'train', 'test', 'TRAIN', 'train_list', 'classes', 'labels', 'labelmap', 'data', 'a_mask',
         'a_labelTrainIds', 'README', '.hidden', 'obj', 'split', 'instances_test', '_annotations.coco', 'trainval')
SUFFIXES = ('.txt', '.csv', '.json', '.xml', '.yaml', '.png', '.jpg', '.names', '.data', '.md', '', '.tif', '.lst')
TEXTS = ('', 'hello', 'cat\ndog\n', 'a\nb\n', 'c.jpg\nd.jpg\n', 'images/train/a.jpg\n', 'x_1.jpg\nx_2.jpg\n',
         '0 0.5 0.5 0.1 0.1\n', '0001\n0002\n', '{}', '[]', '<annotation/>', '<a', 'names: [cat, dog]', 'x: 1\n',
         layouts.XML.format(name='cat'), json.dumps(layouts.coco_of('train')), 'image,split\na.jpg,test\nb.jpg,train\n',
         'filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,80,60,cat,1,1,9,9\n', 'classes = 2\nnames = x.names\n')
FOLDERS = ('', 'train', 'images', 'labels', 'annotations', 'splits', 'ImageSets/Main', 'extra', '.git', 'masks')


def files_below(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob('*') if path.is_file()]


def content_of(data: LabelledData) -> Any:
    """Returns all that training gets."""
    return data.classes, {split: [(one.path, one.size, one.objects, one.label_map) for one in pictures]
                          for split, pictures in data.splits.items()}


def sentences(data: LabelledData) -> list[str]:
    return [line for line in data.notes if not re.match(r'\d+ files: ', line)]


@settings(max_examples=150)
@given(st.data())
def test_a_further_file_is_used_or_named(draw: st.DataObject) -> None:
    """In all layouts, whatever its name, suffix and text; and one that is left out changes nothing."""
    with TemporaryDirectory() as folder:
        root = Path(folder, 'data')
        draw.draw(st.sampled_from(layouts.WRITERS))(root)
        before = find_data(root)
        parents = sorted({path.parent for path in root.rglob('*')} | {root / name for name in FOLDERS})
        name = draw.draw(st.sampled_from(NAMES) | st.from_regex(r'[a-z]{1,9}', fullmatch=True))
        path = draw.draw(st.sampled_from(parents)) / (name + draw.draw(st.sampled_from(SUFFIXES)))
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in ('.png', '.tif', '.jpg') and draw.draw(st.booleans()):
            cv2.imwrite(str(path), layouts.PIXELS)
        else:
            path.write_text(draw.draw(st.sampled_from(TEXTS) | st.text(st.characters(codec='utf-8'), max_size=40)))
        check(root, path, before)


def check(root: Path, path: Path, before: LabelledData) -> None:
    """Asserts that a file of a folder is used or named, and that all files are counted."""
    name = path.relative_to(root).as_posix()
    try:
        data = find_data(root)
    except UserError as error:
        assert '\n' not in str(error) and path.name in str(error), error
        return
    found = data.account.files
    assert found and sum(found.numbers) == len(files_below(root))
    assert sorted(one for names in (*found.used.values(), *found.left_out.values()) for one in names) == sorted(
        files_below(root))
    if any(name in names for names in found.left_out.values()):
        pattern = next(pattern for pattern, names in found.left_out.items() if name in names)
        assert pattern in found.sentence(99)
        told = [line for line in sentences(data) if line not in sentences(before)]
        assert content_of(data) == content_of(before) or any(path.name in line for line in told)
