"""Measures the datasets of a config: classes, images and boxes; suggests scale and anchors for them."""
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from rich.markup import escape
from rich.table import Column, Table

from openmmlab_data.form.splits import Data, Split
from openmmlab_runs.config_walk import walk
from openmmlab_runs.data.coco import read_coco
from openmmlab_runs.data.config_datasets import Plan
from openmmlab_runs.data.datasets import classes_of, layout_of
from openmmlab_runs.texts import printable

from .channels import joined
from .file_checks import Checked
from .image_sizes import LIMITS, fit_images, fit_model, is_for_cpu, name_sizes

Measures = dict[str, Any]
SUGGESTED = ('scales', 'octave_base_scale', 'ratios')


def read_objects(plan: Plan, checked: Sequence[Checked]) -> dict[str, list[dict[str, Any]]]:
    """Returns images and objects in COCO's layout, without crowds, with the `name` of the class."""
    if not _is_coco(plan):
        return dict(annotations=[], categories=[], images=[
            dict(id=index, width=one.size[1], height=one.size[0]) for index, one in enumerate(checked) if one.size])
    dataset: Any = plan.dataset
    coco = read_coco(dataset.ann_file, dataset.backend_args)
    names = {category['id']: category['name'] for category in coco['categories']}
    classes, known = classes_of(dataset) or list(names.values()), {image['id'] for image in coco['images']}
    return dict(coco, annotations=[
        dict(one, name=names[one['category_id']]) for one in coco['annotations']
        if names.get(one['category_id']) in classes and one['image_id'] in known and not one.get('iscrowd')])


def _is_coco(plan: Plan) -> bool:
    return bool(plan.samples) and layout_of(type(plan.dataset)) == 'coco'


def measure(plan: Plan, coco: dict[str, list[dict[str, Any]]], checked: Sequence[Checked]) -> Measures:
    """Measures a dataset from `read_objects` and the checks of its samples.

    Returns:
        The splits, the number of images, their widths and heights, the `sizes` of the smallest, the middle and the
        largest, and classes: each with the number of its images, and of its objects and the sides of their boxes (the
        root of the area), or with its share of the pixels of label maps. Widths, heights and sides are the least, the
        quartiles and the largest, in pixels. Images of `LoadBandsFromFile` have `channels`: the least, the mean, the
        standard deviation and the largest value of each.
    """
    images = coco['images']
    measures = dict(splits=plan.splits, images=len(images), width=_quartiles([one['width'] for one in images]),
                    height=_quartiles([one['height'] for one in images]),
                    sizes=name_sizes(np.array([(one['width'], one['height']) for one in images])))
    if found := [one.moments for one in checked if one.moments]:
        moments = joined(found)
        measures['channels'] = [dict(zip(('least', 'mean', 'std', 'most'), map(float, values), strict=True))
                                for values in zip(moments.least, moments.mean, moments.std, moments.most, strict=True)]
    names = classes_of(plan.dataset) or [category['name'] for category in coco['categories']]
    total = sum(sum(one.pixels.values()) for one in checked)
    if _is_coco(plan):
        measures['classes'] = {name: _of_objects([one for one in coco['annotations'] if one['name'] == name])
                               for name in names}
        measures['all'] = _of_objects(coco['annotations'])
    elif total:
        measures['classes'] = {
            name: dict(images=sum(index in one.pixels for one in checked),
                       pixels=round(sum(one.pixels.get(index, 0) for one in checked) / total, 6))
            for index, name in enumerate(names)}
    return measures


def _of_objects(objects: Sequence[dict[str, Any]]) -> Measures:
    sides = [(w, h) for *_, w, h in [one['bbox'] for one in objects] if w > 0 and h > 0]
    width, height = np.array(sides).reshape(-1, 2).T
    return dict(images=len({one['image_id'] for one in objects}), objects=len(objects),
                side=_quartiles(np.sqrt(width * height)), height_by_width=_quartiles(height / width))


def _quartiles(values: Sequence[float] | np.ndarray) -> list[float]:
    return np.quantile(values, (0, .25, .5, .75, 1)).round(2).tolist() if len(values) else []


def sizes_of(measures: Measures) -> str:
    least, _, most = measures['sizes']
    return (f'{", ".join(measures["splits"])}: {measures["images"]} images, '
            f'{least if least == most else f"{least} to {most}"} pixels (width x height).')


def to_table(measures: Measures) -> Table:
    what = ['objects', 'side of boxes in pixels: least, quartiles, largest'] if 'all' in measures else ['pixels']
    table = Table(Column('class', overflow='fold'), *(Column(name, justify='right') for name in ('images', *what)))
    several = 'all' in measures and len(measures['classes']) > 1
    for name, part in [*measures['classes'].items(), *([('all', measures['all'])] if several else [])]:
        values = [f'{part["pixels"]:.2%}'] if 'pixels' in part else [
            str(part['objects']), ', '.join(f'{side:.0f}' for side in part['side'])]
        table.add_row(escape(printable(name)), str(part['images']), *values)
    return table


def to_table_of_channels(channels: Sequence[dict[str, float]]) -> Table:
    columns = ('channel', 'least value', 'mean', 'standard deviation', 'largest value')
    table = Table(*(Column(name, justify='right') for name in columns))
    for index, values in enumerate(channels, start=1):
        table.add_row(str(index), *(f'{value:.6g}' for value in values.values()))
    return table


def suggest(cfg: Config, parts: Sequence[dict[str, list[dict[str, Any]]]]) -> Measures:
    """Returns the suggested `scale` (width and height), or `crop_size` if images should keep their sizes, and anchors.
    """
    coco: dict[str, list[dict[str, Any]]] = dict(images=[], annotations=[], categories=[])
    for index, part in enumerate(parts):  # ids of several datasets may be the same
        coco['images'] += [dict(one, id=f'{index}/{one["id"]}') for one in part['images']]
        coco['annotations'] += [dict(one, image_id=f'{index}/{one["image_id"]}') for one in part['annotations']]
    is_segmentor = cfg.default_scope == 'mmseg'
    data = Data('', Path(), {'train': Split(coco, Path())}, is_semantic=is_segmentor)
    fit = fit_images(data, LIMITS['semantic' if is_segmentor else 'boxes'][is_for_cpu(cfg.model)])
    model = copy.deepcopy(cfg.model)
    fit_model(model, data, fit)
    suggested: Measures = dict(crop_size=(fit.crop, fit.crop)) if fit.crop else dict(scale=fit.scale)
    for path, part in walk(model):
        if part.get('type') == 'AnchorGenerator' and len(fit.boxes):
            suggested.update({'.'.join(['model', *map(str, path), key]): part[key] for key in SUGGESTED if key in part})
    return suggested
