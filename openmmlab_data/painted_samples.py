"""Paints samples of a dataset with their annotations, on one sheet."""
import warnings
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.registry import DATASETS, TRANSFORMS, VISUALIZERS
from mmengine.visualization import Visualizer

from openmmlab_runs.checkpoints.loading import bands_loader
from openmmlab_runs.data.datasets import unwrap
from openmmlab_runs.pictures.bands import to_view
from openmmlab_runs.pictures.painting import are_legible, labelled, size_to_image, write_any_script
from openmmlab_runs.registry import in_scope
from openmmlab_runs.texts import label

VISUALIZER = dict(mmdet='mmdet.DetLocalVisualizer', mmseg='mmseg.SegLocalVisualizer')
COLUMNS, ROWS = 4, 3
SIDE = 4.  # of a sample, in inches
MOST = 100  # objects of a sample: more take minutes, and hide each other
LARGEST, MEMORY = 1000, 5e8  # pixels of a side to paint, and of the masks of a sample


def draw_sheet(cfg: Config, split: str) -> Figure | None:
    """Paints annotations of at most 12 samples, not augmented, of a split's dataset, or of the first of several, for
    mmdet or mmseg. Of many objects, every so many are painted, and the title tells how many. Large images are scaled.
    Returns None if no sample can be loaded, or none has boxes or a label map.
    """
    _, part = next(unwrap(cfg[f'{split}_dataloader'].dataset.to_dict(), split))
    pipeline = [one for one in part.get('pipeline') or ()
                if one['type'].rpartition('.')[2].startswith(('Load', 'Pack'))]
    tiles: list[tuple[str, np.ndarray]] = []
    # pycocotools prints.
    with in_scope(cfg.default_scope), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.filterwarnings('ignore', '.* out of bounds')  # of boxes at the border
        try:
            dataset = DATASETS.build({**part, 'pipeline': pipeline})
        except Exception:  # the checks have named the fault
            return None
        visualizer = VISUALIZERS.get(VISUALIZER[cfg.default_scope])()
        write_any_script(visualizer)
        visualizer.dataset_meta = labelled(dataset.metainfo) if cfg.default_scope == 'mmdet' else dataset.metainfo
        for index in np.linspace(0, len(dataset) - 1, min(len(dataset), COLUMNS * ROWS), dtype=int).tolist():
            with suppress(Exception):  # the checks have named the file and its fault
                info = dataset.get_data_info(index)
                height, width = info.get('height', 1), info.get('width', 1)
                objects, most = info.get('instances', []), max(10, min(MOST, int(MEMORY / (height * width))))
                info['instances'] = objects[::max(1, -(-len(objects) // most))]
                cut = f' ({len(info["instances"])} of {len(objects)} objects)' * (len(objects) > most)
                *load, pack = dataset.pipeline.transforms
                if max(height, width) > LARGEST:
                    load.append(TRANSFORMS.build(dict(type='Resize', scale=(LARGEST, LARGEST), keep_ratio=True)))
                for step in (*load, pack):
                    info = step(info)
                tiles += [(name + cut, image) for name, image in _paint(
                    info, visualizer, bool(bands_loader(pipeline)))]
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


def _paint(packed: dict[str, Any], visualizer: Visualizer, has_bands: bool) -> list[tuple[str, np.ndarray]]:
    sample, bgr = packed['data_samples'], packed['inputs'].numpy().transpose(1, 2, 0)
    instances: Any = getattr(sample, 'gt_instances', {})
    # Bands are in the order of the file.
    image = to_view(bgr) if has_bands else np.ascontiguousarray(bgr[..., ::-1].clip(0, 255), np.uint8)
    if hasattr(sample, 'gt_sem_seg'):
        visualizer.alpha = 0.5
        visualizer.add_datasample('', image, sample, draw_pred=False, with_labels=are_legible(image))
    elif 'bboxes' in instances:
        instances.bboxes = getattr(instances.bboxes, 'tensor', instances.bboxes)
        size_to_image(visualizer, image)
        visualizer.add_datasample('', image, sample, draw_pred=False)
    else:
        return []
    return [(Path(sample.img_path).name, visualizer.get_image())]
