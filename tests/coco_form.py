"""Small data in COCO's own form, which configs of mmdet for COCO read without other changes than the folder."""
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from PIL import Image

from openmmlab_tools.config_walk import dicts, walk

SIDE = 96  # of the images
READ = ('CocoDataset', 'CocoPanopticDataset')


def cells(number: int) -> list[tuple[int, int, int, int]]:
    """Returns left, top, width and height of up to 9 cells in an image, which do not touch."""
    return [(4 + 30 * (index % 3), 4 + 30 * (index // 3), 24, 22) for index in range(number)]


def save_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def write_coco(root: Path, things: Sequence[str], stuff: Sequence[str]) -> Path:
    """Writes files of objects and panoptic ones, each for training and validation, as those of COCO 2017.

    Panoptic annotations have no id, but segments have: different ones in an image, the same in the other. Each image
    has an object of the first two things, on the first stuff.
    """
    rng = np.random.default_rng(0)
    categories = [dict(supercategory='any', id=index, name=name, isthing=int(index <= len(things)))
                  for index, name in enumerate((*things, *stuff), 1)]
    for split in ('train', 'val'):
        images, annotations, objects = [], list[dict[str, Any]](), list[dict[str, Any]]()
        for number in (139, 285):
            name = f'{number:012}'
            save_image(root / f'{split}2017/{name}.jpg', rng.integers(0, 256, (SIDE, SIDE, 3)))
            images.append(dict(license=2, file_name=f'{name}.jpg', coco_url='http://x', height=SIDE, width=SIDE,
                               date_captured='2013-11-21 01:34:01', flickr_url='http://y', id=number))
            segments = np.full((SIDE, SIDE), 70000)
            infos = []
            for label, (x, y, w, h) in enumerate(cells(2), 1):
                segments[y:y + h, x:x + w] = 300 + label
                infos.append(dict(id=300 + label, category_id=label, iscrowd=0, bbox=[x, y, w, h], area=w * h))
                objects.append(dict(infos[-1], id=len(objects) + 1, image_id=number, segmentation=[
                    [x, y, x + w, y, x + w, y + h, x, y + h]]))
            infos.append(dict(id=70000, category_id=len(things) + 1, iscrowd=0, bbox=[0, 0, SIDE, SIDE],
                              area=int((segments == 70000).sum())))
            annotations.append(dict(segments_info=infos, file_name=f'{name}.png', image_id=number))
            # R + 256 G + 256^2 B is the id of a segment.
            save_image(root / f'annotations/panoptic_{split}2017/{name}.png', np.stack(
                [segments >> shift & 255 for shift in (0, 8, 16)], -1))
        for kind, content, known in (('panoptic', annotations, categories),
                                     ('instances', objects, categories[:len(things)])):
            (root / f'annotations/{kind}_{split}2017.json').write_text(json.dumps(dict(
                info=dict(year=2018), licenses=[], images=images, annotations=content, categories=known)))
    return root


def reads_coco(cfg: Config) -> bool:
    """Tells whether the training and the validation of a config read files of COCO 2017 alone."""
    datasets = [cfg[f'{split}_dataloader'].dataset for split in ('train', 'val') if cfg.get(f'{split}_dataloader')]
    return len(datasets) == 2 and all(
        dataset.type in READ and str(dataset.get('ann_file')).endswith('2017.json') and not dataset.get('metainfo')
        for dataset in datasets)


def move_data(cfg: Config, root: Path) -> None:
    """Makes a config read the files of COCO in a folder, in place."""
    for split in ('train', 'val', 'test'):
        if cfg.get(f'{split}_dataloader'):
            cfg[f'{split}_dataloader'].dataset.data_root = f'{root}/'
        for metric in dicts(cfg.get(f'{split}_evaluator')):
            for _, part in walk(metric):
                for key in ('ann_file', 'seg_prefix'):
                    if part.get(key):
                        part[key] = str(root / part[key].partition('coco/')[2])
