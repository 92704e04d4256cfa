"""Folders as labelling tools write them: four images, each with the same object, of two classes in turn.

The images are 80 x 60 pixels (width x height), two to train on and two to validate. A writer gets a root and writes it.
"""
import base64
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, DefaultScope

from openmmlab_tools.own_data.written_labels import write_labels
from openmmlab_tools.readers.form.dataset import LabelledData, Picture
from tests.tools.conftest import save

WIDTH, HEIGHT = 80, 60
PIXELS = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
LEFT, TOP, RIGHT, BOTTOM = CORNERS = (10, 20, 30, 50)  # of the object
CLASSES = ('cat', 'dog')
SPLITS = dict(a='train', b='train', c='val', d='val')
POLYGON = [(LEFT, TOP), (RIGHT, TOP), (RIGHT, BOTTOM), (LEFT, BOTTOM)]
XML = ('<annotation><size><width>80</width><height>60</height></size><object><name>{name}</name><bndbox><xmin>11</xmin>'
       '<ymin>21</ymin><xmax>30</xmax><ymax>50</ymax></bndbox></object></annotation>')
BOX_LINE = '{label} 0.25 0.583333 0.25 0.5'
POLYGON_LINE = '{label} 0.125 0.333333 0.375 0.333333 0.375 0.833333 0.125 0.833333'

Write = Callable[[Path], None]


NO_WORKERS = {f'{split}_dataloader.{key}': value for split in ('train', 'val', 'test')
              for key, value in (('num_workers', 0), ('persistent_workers', False))}


def dataset(cfg: Config, split: str) -> BaseDataset:
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def stems(data: BaseDataset | Sequence[Picture]) -> list[str]:
    paths = [data.get_data_info(index)['img_path'] if isinstance(data, BaseDataset) else data[index].path
             for index in range(len(data))]
    return [Path(path).stem.rpartition(' ')[2] for path in paths]


def loaded(data: LabelledData, out: Path) -> dict[str, BaseDataset]:
    """Writes labels to a folder, and reads them with mmdet or mmseg, with pixels of label maps."""
    pipeline = [dict(type='mmseg.LoadAnnotations')] if data.is_semantic else []
    with DefaultScope.overwrite_default_scope('mmseg' if data.is_semantic else 'mmdet'):
        return {split: DATASETS.build(dict(arguments, data_root=f'{data.root}/', pipeline=pipeline, metainfo=dict(
            classes=tuple(data.classes), **(dict(palette=data.palette) if data.palette else {}))))
            for split, arguments in write_labels(out, data).items()}


def samples() -> Iterator[tuple[int, str, str, str]]:
    """Yields the class number, class, name and split of each image."""
    for index, (name, split) in enumerate(SPLITS.items()):
        yield index % 2, CLASSES[index % 2], name, split


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding='utf-8')


def names_of(split: str) -> list[str]:
    return [name for name, own in SPLITS.items() if own == split]


def label_map(label: int = 1, background: int = 0) -> np.ndarray:
    pixels = np.full((HEIGHT, WIDTH), background, np.uint8)
    pixels[TOP:BOTTOM, LEFT:RIGHT] = label
    return pixels


def each(images: str, files: str, content: str, more: Mapping[str, str] = {}) -> Write:
    """A file for each image: `images` and `files` are paths with places for the name and the split; and some more."""
    def write(root: Path) -> None:
        for label, name, stem, split in samples():
            save(root / images.format(stem, split), PIXELS)
            text(root / files.format(stem, split), content.format(label=label, name=name, stem=stem))
        for path, lines in more.items():
            text(root / path, lines)
    return write


def lists(path: str, line: str = '{}', names: tuple[str, str] = ('train', 'val')) -> dict[str, str]:
    """The content of a list for each split."""
    return {path.format(name): '\n'.join(line.format(stem, split) for stem in names_of(split))
            for name, split in zip(names, ('train', 'val'), strict=True)}


# Pascal VOC

def voc(root: Path, folder: str = 'Main', xml: str = XML) -> None:
    each('JPEGImages/{0}.jpg', 'Annotations/{0}.xml', xml, lists(f'ImageSets/{folder}/{{}}.txt'))(root)


voc_flat = each('{1}/{0}.png', '{1}/{0}.xml', XML)
# `trainval` and `val` say which images are to train on.
voc_trainval = each('JPEGImages/{0}.jpg', 'Annotations/{0}.xml', XML, {
    'ImageSets/Main/trainval.txt': '\n'.join(SPLITS), 'ImageSets/Main/val.txt': 'c\nd'})
# Names with spaces, in subfolders, with the numbers of lists of a class.
voc_spaces = each('JPEGImages/sub/my {0}.JPG', 'Annotations/sub/my {0}.xml', XML, {
    'ImageSets/Main/train.txt': '\ufeffsub/my a\r\nmy b  1\r\n', 'ImageSets/Main/val.txt': 'sub\\my c\nmy d -1'})
# Roboflow writes polygons into VOC.
voc_polygons = partial(voc, xml=XML.replace('<bndbox>', '<polygon>' + ''.join(
    f'<x{i}>{x}</x{i}><y{i}>{y}</y{i}>' for i, (x, y) in enumerate(POLYGON, start=1)) + '</polygon><bndbox>'))


# YOLO

def yolo(root: Path, line: str = BOX_LINE, suffix: str = '.jpg', description: str = 'names: [cat, dog]',
         places: tuple[str, str] = ('images/{}', 'labels/{}'), pixels: np.ndarray = PIXELS) -> None:
    for label, _, stem, split in samples():
        save(root / places[0].format(split) / f'{stem}{suffix}', pixels)
        text(root / places[1].format(split) / f'{stem}.txt', line.format(label=label) + '\n')
    if description:
        text(root / 'data.yaml', description)


yolo_polygons = partial(yolo, line=POLYGON_LINE)


def yolo_named(description: str) -> Write:
    """Only the splits that data.yaml names count, so an old export beside them does not."""
    def write(root: Path) -> None:
        each('images/{1}/{0}.jpg', 'labels/{1}/{0}.txt', BOX_LINE, {
            'data.yaml': f'names: [cat, dog]\n{description}', 'old_export/labels/z.txt': '0 0.5 0.5 0.1 0.1',
            **lists('lists/{}.txt', '../images/{1}/{0}.jpg'),
            **lists('lists/windows_{}.txt', 'D:\\me\\data\\images\\{1}\\{0}.jpg\r')})(root)
        save(root / 'old_export/images/z.jpg', PIXELS)
    return write


# CVAT's YOLO 1.1: lists with paths of another machine.
yolo_cvat = each('obj_{1}_data/{0}.jpg', 'obj_{1}_data/{0}.txt', BOX_LINE, {
    **lists('{}.txt', 'data/obj_{1}_data/{0}.jpg', ('train', 'valid')), 'obj.names': 'cat\ndog\n',
    'obj.data': 'classes = 2\ntrain = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\n'
                'backup = backup/\n'})
# Label Studio and labelImg write classes.txt.
yolo_classes = each('{1}_images/{0}.jpg', '{1}_labels/{0}.txt', BOX_LINE, {
    'classes.txt': 'cat\ndog\n', 'notes.json': json.dumps(dict(categories=[dict(id=0, name='cat')], info={}))})


# COCO

def coco_of(split: str, file_name: str = '{}.jpg') -> dict[str, Any]:
    own = [(label, name, stem) for label, name, stem, one in samples() if one == split]
    return dict(images=[dict(id=index, file_name=file_name.format(stem), width=WIDTH, height=HEIGHT)
                        for index, (_, _, stem) in enumerate(own, start=1)],
                annotations=[dict(id=index, image_id=index, category_id=label + 1, bbox=[LEFT, TOP, RIGHT - LEFT,
                                  BOTTOM - TOP], area=600, iscrowd=0)
                             for index, (label, _, _) in enumerate(own, start=1)],
                categories=[dict(id=index, name=name) for index, name in enumerate(CLASSES, start=1)])


def coco(root: Path, change: Callable[[str, dict[str, Any]], object] = lambda split, content: None,
         file_name: str = '{}.jpg', encoding: str = 'utf-8') -> None:
    for _, _, stem, split in samples():
        save(root / f'{split}2017/{stem}.jpg', PIXELS)
    for split in ('train', 'val'):
        content = coco_of(split, file_name)
        change(split, content)
        path = root / f'annotations/instances_{split}2017.json'
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, ensure_ascii=False), encoding=encoding)


def coco_roboflow(root: Path) -> None:
    """A file in each folder, and a category above the others, of the name of one of them, without objects."""
    for split, folder in (('train', 'train'), ('val', 'valid')):
        content = coco_of(split)
        content['categories'].insert(0, dict(id=0, name='cat', supercategory='none'))
        for name in names_of(split):
            save(root / f'{folder}/{name}.jpg', PIXELS)
        text(root / f'{folder}/_annotations.coco.json', json.dumps(content))


def reversed_categories(split: str, content: dict[str, Any]) -> None:
    """Categories of the validation are in another order, with other numbers."""
    if split == 'val':
        content['categories'] = [dict(id=7, name='dog'), dict(id=3, name='cat')]
        for annotation in content['annotations']:
            annotation['category_id'] = {1: 3, 2: 7}[annotation['category_id']]


def bare(split: str, content: dict[str, Any]) -> None:
    """Nothing is there that can be computed."""
    for one in content['annotations']:
        del one['iscrowd'], one['area']
    for one in content['images']:
        del one['width'], one['height']


def coco_panoptic(root: Path) -> None:
    for split in ('train', 'val'):
        content = coco_of(split)
        for annotation, image in zip(content['annotations'], content['images'], strict=True):
            category, number = annotation.pop('category_id'), 300 + annotation['id']
            pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            pixels[...] = (5, 0, 0)
            pixels[TOP:BOTTOM, LEFT:RIGHT] = (number % 256, number // 256, 0)
            name = Path(image['file_name']).stem
            save(root / f'annotations/panoptic_{split}2017/{name}.png', pixels)
            save(root / f'{split}2017/{name}.jpg', PIXELS)
            annotation.clear()
            annotation.update(image_id=image['id'], file_name=f'{name}.png', segments_info=[
                dict(id=number, category_id=category, iscrowd=0, bbox=[], area=1),
                dict(id=5, category_id=9, iscrowd=0)])
        content['categories'] = [dict(category, isthing=1) for category in content['categories']] + [
            dict(id=9, name='sky', isthing=0)]
        text(root / f'annotations/panoptic_{split}2017.json', json.dumps(content))


# LabelMe, CVAT and Label Studio

def labelme(shape: Callable[[str], list[dict[str, Any]]]) -> Write:
    def write(root: Path) -> None:
        for _, name, stem, split in samples():
            save(root / f'{split}/{stem}.jpg', PIXELS)
            text(root / f'{split}/{stem}.json', json.dumps(dict(
                version='5.4.1', flags={}, shapes=shape(name), imagePath=f'{stem}.jpg', imageData=None,
                imageHeight=HEIGHT, imageWidth=WIDTH)))
    return write


def shape(kind: str, points: list[Any], **more: Any) -> Callable[[str], list[dict[str, Any]]]:
    """The object as a shape of LabelMe, beside a point, which is no object."""
    return lambda name: [dict(label=name, points=points, shape_type=kind, group_id=None, flags={}, **more),
                         dict(label=name, points=[[1, 1]], shape_type='point', group_id=None)]


MASK = shape('mask', [[LEFT, TOP], [RIGHT - 1, BOTTOM - 1]], mask=base64.b64encode(
    cv2.imencode('.png', label_map(255)[TOP:BOTTOM, LEFT:RIGHT])[1]).decode())


def cvat(element: str) -> Write:
    def write(root: Path) -> None:
        images = ''.join(
            f'<image id="{index}" name="{stem}.jpg" subset="{split.capitalize()}" width="{WIDTH}" height="{HEIGHT}">'
            f'{element.format(name)}<points label="{name}" points="1,1"/></image>'
            for index, (_, name, stem, split) in enumerate(samples()))
        text(root / 'annotations.xml', f'<?xml version="1.0"?><annotations>{images}</annotations>')
        for name in SPLITS:
            save(root / f'images/{name}.jpg', PIXELS)
    return write


def label_studio(kind: str, value: dict[str, Any], short: bool = False) -> Write:
    """The names have what Label Studio puts before those of uploads; the files do not."""
    def write(root: Path) -> None:
        tasks: list[dict[str, Any]] = []
        for index, (_, name, stem, split) in enumerate(samples()):
            save(root / f'{split}/{stem}.jpg', PIXELS)
            size, address = dict(original_width=WIDTH, original_height=HEIGHT), f'/data/upload/3/0123abcd-{stem}.jpg'
            if short:
                tasks.append(dict(id=index, image=address, label=[{**value, kind: [name], **size}]))
                continue
            result = dict(size, id='x', type=kind, from_name='label', to_name='image', value={**value, kind: [name]})
            cancelled = dict(was_cancelled=True, result=[result] * 3)
            tasks.append(dict(id=index, file_upload=f'0123abcd-{stem}.jpg', data=dict(image=address),
                              annotations=[dict(was_cancelled=False, result=[result]), cancelled]))
        text(root / 'project-1.json', json.dumps(tasks))
    return write


PERCENT = dict(x=100 * LEFT / WIDTH, y=100 * TOP / HEIGHT, width=100 * (RIGHT - LEFT) / WIDTH,
               height=100 * (BOTTOM - TOP) / HEIGHT, rotation=0)
POINTS_IN_PERCENT = dict(points=[[100 * x / WIDTH, 100 * y / HEIGHT] for x, y in POLYGON], closed=True)

# The rows of the table in docs/guides/own_data.md, by their names there: writers of folders with boxes or masks.
BOXES: dict[str, list[Write]] = {
    'COCO': [coco, coco_roboflow, *(partial(coco, change=change) for change in (reversed_categories, bare)),
             partial(coco, encoding='utf-8-sig', file_name='..\\..\\images\\{}.jpg'),
             partial(coco, file_name='C:/old/place/{}.jpg')],
    'Pascal VOC': [voc, voc_flat, voc_trainval, voc_spaces, partial(voc, folder='Segmentation')],
    'YOLO': [
        yolo, yolo_classes, partial(yolo, places=('{}', '{}')),
        *(partial(yolo, suffix='.JPG', places=places) for places in (
            ('Images/{}', 'Labels/{}'), ('{}_images', 'labels_{}'), ('{}/images', '{}/labels'))),
        partial(yolo, description='names: {0: cat, 1: dog}'), partial(yolo, line=f'{BOX_LINE} 0.875'),
        partial(yolo, line=f'{BOX_LINE} 0.1 0.2 2 0.3 0.4 2', description='names: [cat, dog]\nkpt_shape: [2, 3]'),
        yolo_named('train: [images/train]\nval: [images/val]'),
        yolo_named('path: .\ntrain: ../images/train\nval: ../images/val'),
        yolo_named('train: lists/train.txt\nval: lists/val.txt'),
        yolo_named('train: lists\\windows_train.txt\nval: lists\\windows_val.txt')],
    'YOLO of CVAT': [yolo_cvat],
    'LabelMe': [labelme(shape('rectangle', [[RIGHT, BOTTOM], [LEFT, TOP]]))],
    'CVAT': [cvat(f'<box label="{{}}" xtl="{LEFT}" ytl="{TOP}" xbr="{RIGHT}" ybr="{BOTTOM}" occluded="0"/>')],
    'Label Studio': [label_studio('rectanglelabels', PERCENT), label_studio('rectanglelabels', PERCENT, short=True)]}
MASKS: dict[str, list[Write]] = {
    'COCO, panoptic': [coco_panoptic],
    'Pascal VOC': [voc_polygons],
    'YOLO, polygons and oriented boxes': [yolo_polygons],
    'LabelMe': [labelme(shape('polygon', POLYGON)), labelme(MASK)],
    'CVAT': [cvat('<polygon label="{}" points="' + ';'.join(f'{x},{y}' for x, y in POLYGON) + '"/>'),
             cvat(f'<mask label="{{}}" rle="0, 600" left="{LEFT}" top="{TOP}" width="{RIGHT - LEFT}" '
                  f'height="{BOTTOM - TOP}"/>'),
             cvat('<box label="{}" xtl="5" ytl="25" xbr="35" ybr="45" rotation="90"/>')],
    'Label Studio': [label_studio('polygonlabels', POINTS_IN_PERCENT),
                     label_studio('rectanglelabels', dict(PERCENT, x=100 * RIGHT / WIDTH, width=100 * 30 / WIDTH,
                                                          height=100 * 20 / HEIGHT, rotation=90))]}


# Label maps: a writer gets the root and the pixels of an image's label map.

def maps(images: str, labels: str, pixels: Callable[[str], np.ndarray] = lambda name: label_map(), table: str = '',
         names: str = '', mode: str | None = None) -> Write:
    """`images` and `labels` are paths with places for the name and the split."""
    def write(root: Path) -> None:
        for _, _, stem, split in samples():
            labels_of = pixels(stem)
            save(root / images.format(stem, split), np.resize(PIXELS, (*labels_of.shape[:2], 3)))
            save(root / labels.format(stem, split), labels_of, mode)
        if table:
            text(root / table, names)
    return write


def coloured(name: str = '') -> np.ndarray:
    return np.array([(0, 0, 0), (200, 30, 10)], np.uint8)[label_map()]


def voc_maps(root: Path) -> None:
    """Few of the images have label maps; a list names them. Beside them are maps of objects."""
    maps('JPEGImages/{0}.jpg', 'SegmentationClass/{0}.png')(root)
    maps('JPEGImages/{0}.jpg', 'SegmentationObject/{0}.png', lambda name: label_map(9))(root)
    save(root / 'JPEGImages/z.jpg', PIXELS)
    for split in ('train', 'val'):
        text(root / f'ImageSets/Segmentation/{split}.txt', '\n'.join(names_of(split)))


LABEL_MAPS: dict[str, list[Write]] = {
    'Label maps': [
        *(maps(f'{images}{{0}}.jpg', f'{labels}.png') for images, labels in (
            ('images/{1}/', 'annotations/{1}/{0}'), ('{1}/images/', '{1}/masks/{0}_mask'), ('{1}/', '{1}/{0}'),
            ('{1}_images/', '{1}_gt/{0}'), ('train_images/{1}/', 'labels_train/{1}/{0}'))),
        maps('Images/{1}/{0}.JPG', 'Masks/{1}/{0}.PNG'), maps('img/{1}/{0}.png', 'labels/{1}/{0}.tif'),
        maps('images/{1}/{0}.jpg', 'labels/{1}/{0}.png', lambda name: np.stack([label_map()] * 3, axis=2)), voc_maps],
    'Masks with 0 and 255': [maps('images/{1}/{0}.jpg', 'masks/{1}/{0}.png', lambda name: label_map(255)),
                             maps('images/{1}/{0}.jpg', 'masks/{1}/{0}.bmp', lambda name: label_map(255), mode='L')],
    'Colours': [
        maps('images/{1}/{0}.jpg', 'masks/{1}/{0}.png', coloured, *table) for table in (
            ('labelmap.txt', '# label:color_rgb:parts:actions\nsky:0,0,0::\nroad:200,30,10::'),
            ('classes.txt', 'sky 0 0 0\nroad 200 30 10'), ('class_dict.csv', 'name,r,g,b\nsky,0,0,0\nroad,200,30,10'),
            ('class_names.txt', '0 0 0\tsky\n200 30 10\troad'), ('', ''))],
    'Values in a table': [maps('images/{1}/{0}.jpg', 'masks/{1}/{0}.png', lambda name: label_map(40, 7), '_classes.csv',
                               'Pixel Value, Class\n7, sky\n40, road')]}
# Objects of a map have numbers from 1 on, as those of Penn-Fudan.
TWO = label_map()
TWO[2:8, 2:8] = 2
OBJECTS: dict[str, list[Write]] = {'Numbers of objects': [
    maps('PNGImages/{1}/{0}.png', 'PedMasks/{1}/{0}_mask.png', lambda name: TWO if name in 'bd' else label_map())]}
TABLES = BOXES, MASKS, LABEL_MAPS, OBJECTS
WRITERS = [write for table in TABLES for writers in table.values() for write in writers]


# Damage

TEXTS = ('.json', '.xml', '.txt', '.yaml', '.names', '.data', '.csv', '.py')
WORDS = [b'nan', b'inf', b'-1', b'1e7', b'99999999', b'x', b'', b'"', b'<', b'&', b'../..', b'[', b'{', b'*a', b'&a',
         b'\0', b'\xff', b'1e400', b'5000000000', b'null', b'true', b'[[]]', b'{}', b'{{ fileDirname }}', b'None',
         b'-1e308', b'\\ud800', b'a' * 10_000]


def damage(rng: random.Random, root: Path, pattern: str = '*') -> None:
    """Replaces a few words of an annotation file; or flips bytes of a file, or cuts it."""
    paths = sorted(path for path in root.rglob(pattern) if path.is_file())
    path = rng.choice([path for path in paths if path.suffix in TEXTS and rng.random() < 0.9] or paths)
    content = path.read_bytes()
    if path.suffix in TEXTS and rng.random() < 0.8:
        parts = re.split(rb'([\s,:;<>"=\[\]{}]+)', content)
        for place in rng.sample(range(len(parts)), min(rng.choice((1, 2)), len(parts))):
            parts[place] = rng.choice((*WORDS, parts[place] * 2))
        content = b''.join(parts)
    elif content:
        place = rng.randrange(len(content))
        content = content[:place] + rng.choice((b'', bytes([rng.randrange(256)]) + content[place + 1:]))
    path.write_bytes(content)
