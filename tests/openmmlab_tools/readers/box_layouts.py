"""The same boxes of one class in each layout, as labelling tools write them, and changes of these records."""
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openmmlab_tools.errors import UserError
from openmmlab_tools.readers.form.dataset import LabelledData
from openmmlab_tools.readers.form.settling import ROUNDED
from openmmlab_tools.readers.own_data import find_data
from tests.openmmlab_tools.readers import layouts
from tests.openmmlab_tools.readers.layouts import HEIGHT, PIXELS, WIDTH, text
from tests.tools.conftest import save

Box = tuple[float, float, float, float]  # left, top, right and bottom, in images of 80 x 60 pixels
Boxes = Sequence[Box]


def as_coco(root: Path, boxes: Boxes) -> None:
    def change(split: str, content: dict[str, Any]) -> None:
        content['annotations'] = [
            dict(id=100 * image['id'] + index, image_id=image['id'], category_id=1, iscrowd=0,
                 area=(right - left) * (bottom - top), bbox=[left, top, right - left, bottom - top])
            for image in content['images'] for index, (left, top, right, bottom) in enumerate(boxes)]
    layouts.coco(root, change)


def as_voc(root: Path, boxes: Boxes) -> None:
    objects = ''.join(
        f'<object><name>cat</name><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{right}</xmax>'
        f'<ymax>{bottom}</ymax></bndbox></object>' for left, top, right, bottom in boxes)
    layouts.voc(root, xml=f'<annotation>{objects}</annotation>')


def as_yolo(root: Path, boxes: Boxes) -> None:
    layouts.yolo(root, line='\n'.join(
        f'0 {(left + right) / 160} {(top + bottom) / 120} {(right - left) / 80} {(bottom - top) / 60}'
        for left, top, right, bottom in boxes))


def as_labelme(root: Path, boxes: Boxes) -> None:
    layouts.labelme(lambda name: [dict(label='cat', shape_type='rectangle', points=[box[:2], box[2:]])
                                  for box in boxes])(root)


def as_cvat(root: Path, boxes: Boxes) -> None:
    layouts.cvat(''.join(f'<box label="cat" xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}"/>'
                         for left, top, right, bottom in boxes))(root)


def as_label_studio(root: Path, boxes: Boxes) -> None:
    tasks = []
    for _, _, stem, split in layouts.samples():
        save(root / f'{split}/{stem}.jpg', PIXELS)
        results = [dict(type='rectanglelabels', original_width=80, original_height=60, value=dict(
            x=left / .8, y=top / .6, width=(right - left) / .8, height=(bottom - top) / .6, rectanglelabels=['cat']))
            for left, top, right, bottom in boxes]
        tasks.append(dict(data=dict(image=f'{stem}.jpg'), annotations=[dict(result=results)]))
    text(root / 'project.json', json.dumps(tasks))


def as_csv(root: Path, boxes: Boxes) -> None:
    lines = ['filename,class,xmin,ymin,xmax,ymax']
    for _, _, stem, split in layouts.samples():
        save(root / f'{split}/{stem}.jpg', PIXELS)
        lines += [f'{stem}.jpg,cat,{left},{top},{right},{bottom}' for left, top, right, bottom in boxes]
    text(root / 'boxes.csv', '\n'.join(lines))


WRITERS: dict[str, Callable[[Path, Boxes], None]] = {
    'COCO': as_coco, 'VOC': as_voc, 'YOLO': as_yolo, 'LabelMe': as_labelme, 'CVAT': as_cvat,
    'Label Studio': as_label_studio, 'CSV': as_csv}


# Changes

CHANGES = 'doubled', 'moved', 'renamed'


def change_records(rng: random.Random, layout: str, root: Path) -> None:
    """Writes random boxes, and the same with one doubled, moved beyond the border, or of an image that is called
    otherwise.

    Raises:
        AssertionError: If nobody is told of the change, or if a copy changes what training gets.
    """
    root.mkdir(exist_ok=True)
    boxes = [_random_box(rng) for _ in range(rng.randint(1, 30))]
    WRITERS[layout](root / 'before', boxes)
    WRITERS[layout](root / 'after', boxes)
    before, change = find_data(root / 'before'), rng.choice(CHANGES)
    chosen = rng.randrange(len(boxes))
    if change == 'doubled':
        boxes.insert(rng.randint(0, len(boxes)), boxes[chosen])
        WRITERS[layout](root / 'after', boxes)
    elif change == 'moved':
        beyond = rng.uniform(ROUNDED + 0.1, WIDTH)
        left, top, right, bottom = boxes[chosen]
        boxes[chosen] = rng.choice([
            (-beyond, top, right - left - beyond, bottom), (left, -beyond, right, bottom - top - beyond),
            (WIDTH + beyond - right + left, top, WIDTH + beyond, bottom),
            (left, HEIGHT + beyond - bottom + top, right, HEIGHT + beyond)])
        WRITERS[layout](root / 'after', boxes)
    else:
        _rename(root / 'after', rng.choice('abcd'))
    try:
        after = find_data(root / 'after')
    except UserError:
        return
    assert all(after.account.lost(what) == 0 for what in ('images', 'objects'))
    assert _told(after) != _told(before), f'{change} silently: {after.notes}'
    if change == 'doubled':
        assert _trained(after) == _trained(before), 'a copy changes what training gets'


def _random_box(rng: random.Random) -> Box:
    left, top = rng.uniform(0, WIDTH - 30), rng.uniform(0, HEIGHT - 30)
    return round(left, 2), round(top, 2), round(left + rng.uniform(4, 30), 2), round(top + rng.uniform(4, 30), 2)


def _rename(root: Path, name: str) -> None:
    """Gives the record of an image another name: its file, and what files call it."""
    for path in [path for path in root.rglob('*') if path.suffix in ('.json', '.xml', '.csv', '.txt')]:
        text(path, path.read_text().replace(f'{name}.jpg', 'z.jpg'))
        if path.stem == name:
            path.rename(path.with_stem('z'))


def _told(data: LabelledData) -> list[str]:
    return [line.replace(str(data.root), '') for line in data.notes]


def _trained(data: LabelledData) -> Any:
    return {split: [(picture.path.name, sorted((other.name, other.keys['bbox']) for other in picture.objects))
                    for picture in pictures]
            for split, pictures in data.splits.items()}
