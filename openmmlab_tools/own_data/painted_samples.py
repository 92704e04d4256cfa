"""Paints samples of a dataset with their annotations, on one sheet."""
import warnings
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from mmengine.registry import DATASETS, TRANSFORMS

from openmmlab_tools.checkpoints.loading import bands_loader
from openmmlab_tools.config_walk import dicts
from openmmlab_tools.data.datasets import unwrap
from openmmlab_tools.pictures.bands import to_view
from openmmlab_tools.pictures.prediction import of_sample
from openmmlab_tools.registry import in_scope
from openmmlab_tools.texts import label

SCOPES = ('mmdet', 'mmseg')  # whose samples are painted
COLUMNS, ROWS = 4, 3
SIDE = 4.  # side of a drawn sample, in inches
MOST = 100  # drawn objects in a sample: more objects take minutes to draw, and hide each other
LARGEST, MEMORY = 1000, 5e8  # the most pixels along a side of a drawn sample, and in all masks of a sample


def draw_sheet(dataset: dict[str, Any], scope: str | None) -> Figure | None:
    """Draws the annotations of at most 12 samples, not augmented, from a dataset config of mmdet or mmseg.

    If the config contains several datasets, it draws the first dataset. If a sample has more than `MOST` objects, it
    draws every n-th object, and the title gives the number of drawn objects. Large images are scaled down. Returns None
    if no sample can be loaded, or if no sample has boxes or a label map.
    """
    _, part = next(unwrap(dataset, ''))
    pipeline = [step for step in dicts(part.get('pipeline'))
                if str(step.get('type')).rpartition('.')[2].startswith(('Load', 'Pack'))]
    tiles: list[tuple[str, np.ndarray]] = []
    # pycocotools prints.
    with in_scope(scope), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.filterwarnings('ignore', '.* out of bounds')  # of boxes at the border
        try:
            built = DATASETS.build({**part, 'pipeline': pipeline})
        except Exception:  # the checks have named the fault
            return None
        for index in np.linspace(0, len(built) - 1, min(len(built), COLUMNS * ROWS), dtype=int).tolist():
            with suppress(Exception):  # the checks have named the file and its fault
                info = built.get_data_info(index)
                height, width = info.get('height', 1), info.get('width', 1)
                # Training skips ignored objects.
                objects = [instance for instance in info.get('instances', []) if not instance.get('ignore_flag')]
                most = max(10, min(MOST, int(MEMORY / (height * width))))
                info['instances'] = objects[::max(1, -(-len(objects) // most))]
                cut = f' ({len(info["instances"])} of {len(objects)} objects)' * (len(objects) > most)
                *load, pack = built.pipeline.transforms
                if max(height, width) > LARGEST:
                    load.append(TRANSFORMS.build(dict(type='Resize', scale=(LARGEST, LARGEST), keep_ratio=True)))
                for step in (*load, pack):
                    info = step(info)
                painted = _paint(info, built.metainfo, bool(bands_loader(pipeline)))
                tiles += [] if painted is None else [(Path(info['data_samples'].img_path).name + cut, painted)]
    if not tiles:
        return None
    rows = -(-len(tiles) // COLUMNS)
    figure = Figure((SIDE * COLUMNS, SIDE * rows), layout='constrained')
    for index, axes in enumerate(figure.subplots(rows, COLUMNS, squeeze=False).flatten()):
        axes.axis('off')
        if index < len(tiles):
            name, image = tiles[index]
            axes.imshow(image)
            axes.set_title(label(name), fontsize=9)
    return figure


def _paint(packed: dict[str, Any], metainfo: dict[str, Any], has_bands: bool) -> np.ndarray | None:
    bgr = packed['inputs'].numpy().transpose(1, 2, 0)
    # Bands are in the order of the file.
    image = to_view(bgr) if has_bands else np.ascontiguousarray(bgr[..., ::-1].clip(0, 255), np.uint8)
    annotated = of_sample(packed['data_samples'], image.shape[:2], metainfo, 'gt', image=image)
    return annotated.plot(alpha=0.5) if annotated else None
