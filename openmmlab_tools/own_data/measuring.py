"""Measures the datasets of a config: classes, images and boxes; suggests scale and anchors for them."""
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Column, Table

from openmmlab_tools.config_walk import walk
from openmmlab_tools.data.coco import read_coco
from openmmlab_tools.data.config_datasets import Plan
from openmmlab_tools.data.datasets import classes_of, layout_of
from openmmlab_tools.data.uses import DatasetUse
from openmmlab_tools.readers.coco_files import note_records
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.dataset import LabelledData, LabelledObject, Picture
from openmmlab_tools.texts import printable

from .channels import joined
from .config_options import TASKS
from .file_checks import Checked
from .fitted_model import fit_sizes, is_for_cpu
from .image_sizes import fit_images, name_sizes

Measures = dict[str, Any]
MOST_ROWS = 200  # classes of a table
SUGGESTED = ('scales', 'octave_base_scale', 'ratios')


def read_pictures(plan: Plan, checked: Sequence[Checked]) -> LabelledData:
    """Returns the images of a dataset with their sizes as split 'train'. From COCO, it also returns objects, without
    crowds.
    """
    dataset: Any = plan.dataset
    if not is_coco(plan):
        sized = [Picture(Path(sample.image), size=check.size[::-1])
                 for sample, check in zip(plan.samples, checked, strict=True) if check.size]
        return LabelledData('', Path(), dict(train=sized), classes_of(dataset), is_semantic=True)
    coco, account = read_coco(dataset.ann_file, dataset.backend_args), Account()
    note_records(coco, account)
    names = {category['id']: category['name'] for category in coco['categories']}
    classes = classes_of(dataset) or list(names.values())
    pictures = {image['id']: Picture(Path(image['file_name']), size=(image['width'], image['height']))
                for image in coco['images']}
    for annotation in coco['annotations']:
        name = names.get(annotation['category_id'])
        if name in classes and annotation['image_id'] in pictures and not annotation.get('iscrowd'):
            pictures[annotation['image_id']].objects.append(LabelledObject(str(name), annotation))
    return LabelledData('', Path(), dict(train=[*pictures.values()]), classes, account=account)


def is_coco(plan: Plan) -> bool:
    return bool(plan.samples) and layout_of(type(plan.dataset)) == 'coco'


def measure(plan: Plan, data: LabelledData, checked: Sequence[Checked]) -> Measures:
    """Measures a dataset from `read_pictures` and the checks of its samples.

    Returns:
        The splits; the number of images; their widths and heights; the `sizes` of the smallest, the middle and the
        largest image; and the classes. Each class has the number of its images, and for objects their number and the
        sides of their boxes (square root of the area), or for label maps its share of the pixels. Widths, heights and
        sides are the minimum, the quartiles and the maximum, in pixels. If `LoadBandsFromFile` loads the images,
        `channels` contains the minimum, the mean, the standard deviation and the maximum of each channel.
    """
    pictures = data.splits['train']
    sizes = np.array([picture.size for picture in pictures])
    measures = dict(splits=plan.splits, images=len(pictures), width=_quartiles(sizes[:, 0]),
                    height=_quartiles(sizes[:, 1]), sizes=name_sizes(sizes))
    if moments_of_images := [check.moments for check in checked if check.moments]:
        moments = joined(moments_of_images)
        measures['channels'] = [dict(zip(('least', 'mean', 'std', 'most'), map(float, values), strict=True))
                                for values in zip(moments.least, moments.mean, moments.std, moments.most, strict=True)]
    total = sum(sum(check.pixels.values()) for check in checked)
    if not data.is_semantic:
        measures['classes'] = {name: _of_objects(pictures, name) for name in data.classes}
        measures['all'] = _of_objects(pictures)
    elif total:
        measures['classes'] = {
            name: dict(images=sum(index in check.pixels for check in checked),
                       pixels=round(sum(check.pixels.get(index, 0) for check in checked) / total, 6))
            for index, name in enumerate(data.classes)}
    return measures


def _of_objects(pictures: Sequence[Picture], name: str | None = None) -> Measures:
    """Measures the objects of a class; None: of all."""
    boxes_by_picture = [[instance.keys['bbox'] for instance in picture.objects if name in (None, instance.name)]
                        for picture in pictures]
    boxes = np.array([box for boxes in boxes_by_picture for box in boxes]).reshape(-1, 4)
    width, height = boxes[(boxes[:, 2:] > 0).all(axis=1), 2:].T
    return dict(images=sum(map(bool, boxes_by_picture)), objects=len(boxes), side=_quartiles(np.sqrt(width * height)),
                height_by_width=_quartiles(height / width))


def _quartiles(values: np.ndarray) -> list[float]:
    return np.quantile(values, (0, .25, .5, .75, 1)).round(2).tolist() if len(values) else []


def sizes_of(measures: Measures) -> str:
    least, _, most = measures['sizes']
    return (f'{", ".join(measures["splits"])}: {measures["images"]} images, '
            f'{least if least == most else f"{least} to {most}"} pixels (width x height).')


def to_table(measures: Measures) -> Table:
    columns = ['objects', 'side of boxes, pixels: smallest, 25, 50, 75 %, largest'] if 'all' in measures else [
        'pixels']
    table = Table(Column('class', overflow='fold'), *(Column(name, justify='right') for name in ('images', *columns)))
    several, classes = 'all' in measures and len(measures['classes']) > 1, [*measures['classes'].items()]
    for name, part in [*classes[:MOST_ROWS], *([('all', measures['all'])] if several else [])]:
        values = [f'{part["pixels"]:.2%}'] if 'pixels' in part else [
            str(part['objects']), ', '.join(f'{side:.0f}' for side in part['side'])]
        table.add_row(escape(printable(name)), str(part['images']), *values)
    if len(classes) > MOST_ROWS:
        table.caption = f'and {len(classes) - MOST_ROWS} more classes: --out writes all to statistics.json'
    return table


def to_table_of_channels(channels: Sequence[dict[str, float]]) -> Table:
    columns = ('channel', 'least value', 'mean', 'standard deviation', 'largest value')
    table = Table(*(Column(name, justify='right') for name in columns))
    for index, values in enumerate(channels, start=1):
        table.add_row(str(index), *(f'{value:.6g}' for value in values.values()))
    return table


def suggest(use: DatasetUse, parts: Sequence[LabelledData]) -> Measures:
    """Returns the suggested `scale` (width and height), or `crop_size` if images should keep their sizes, and anchors,
    for the model that uses a dataset, and the images of datasets from `read_pictures`. Weights of a whole model are for
    its anchors.
    """
    is_segmentor = use.scope == 'mmseg'
    data = LabelledData('', Path(), dict(train=[picture for part in parts for picture in part.splits['train']]),
                  is_semantic=is_segmentor)
    fit = fit_images(data, TASKS['semantic' if is_segmentor else 'boxes'].limits[is_for_cpu(use.model)])
    model = copy.deepcopy(use.model)
    fit_sizes(model, data, fit, keep_anchors=bool(use.load_from))
    suggested: Measures = dict(crop_size=(fit.crop, fit.crop)) if fit.crop else dict(scale=fit.scale)
    for path, part in walk(model):
        if part.get('type') == 'AnchorGenerator' and len(fit.boxes):
            suggested.update({'.'.join(['model', *map(str, path), key]): part[key] for key in SUGGESTED if key in part})
    return suggested
