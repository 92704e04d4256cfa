"""Paints samples of a dataset with their annotations, on one sheet."""
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.registry import DATASETS, VISUALIZERS
from mmengine.visualization import Visualizer

from openmmlab_runs.data.datasets import unwrap
from openmmlab_runs.engine.painting import are_legible, labelled, size_to_image
from openmmlab_runs.registry import in_scope
from openmmlab_runs.texts import label

VISUALIZER = dict(mmdet='mmdet.DetLocalVisualizer', mmseg='mmseg.SegLocalVisualizer')
COLUMNS, ROWS = 4, 3
SIDE = 4.  # of a sample, in inches


def draw_sheet(cfg: Config, split: str) -> Figure | None:
    """Paints the annotations of samples from all of a dataset, or of the first dataset of several, not augmented.

    Samples that cannot be loaded are left out.

    Args:
        cfg: A config for mmdet or mmseg.
        split: 'train', 'val' or 'test'; the config must have its dataloader.

    Returns:
        A sheet of at most 12 samples, or None if there is none, or its annotations are neither boxes nor label maps.
    """
    _, part = next(unwrap(cfg[f'{split}_dataloader'].dataset.to_dict(), split))
    pipeline = [one for one in part.get('pipeline') or ()
                if one['type'].rpartition('.')[2].startswith(('Load', 'Pack'))]
    # pycocotools prints.
    with in_scope(cfg.default_scope), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.filterwarnings('ignore', '.* out of bounds')  # of boxes at the border
        try:
            dataset = DATASETS.build({**part, 'pipeline': pipeline})
        except Exception:  # the checks have named the fault
            return None
        visualizer = VISUALIZERS.get(VISUALIZER[cfg.default_scope])()
        visualizer.dataset_meta = labelled(dataset.metainfo) if cfg.default_scope == 'mmdet' else dataset.metainfo
        indices = np.linspace(0, len(dataset) - 1, min(len(dataset), COLUMNS * ROWS), dtype=int)
        tiles = [tile for index in indices.tolist() if (tile := _try_to_paint(dataset, index, visualizer))]
    if not tiles:
        return None
    rows = -(-len(tiles) // COLUMNS)
    figure = Figure((SIDE * COLUMNS, SIDE * rows), layout='constrained')
    all_axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes in all_axes:
        axes.axis('off')
    for axes, (name, image) in zip(all_axes, tiles, strict=False):
        axes.imshow(image)
        axes.set_title(label(name), fontsize=9)
    return figure


def _try_to_paint(dataset: Any, index: int, visualizer: Visualizer) -> tuple[str, np.ndarray] | None:
    """Returns the name and the painted image of a sample; None if it cannot be loaded, or has no known annotations."""
    try:
        return _paint(dataset, index, visualizer)
    except Exception:  # the checks have named the file and its fault
        return None


def _paint(dataset: Any, index: int, visualizer: Visualizer) -> tuple[str, np.ndarray] | None:
    packed = dataset[index]
    sample, bgr = packed['data_samples'], packed['inputs'].numpy().transpose(1, 2, 0)
    instances: Any = getattr(sample, 'gt_instances', {})
    is_label_map = hasattr(sample, 'gt_sem_seg')
    if 'bboxes' not in instances and not is_label_map:
        return None
    image = np.ascontiguousarray(bgr[..., ::-1].clip(0, 255), np.uint8)
    if is_label_map:
        visualizer.alpha = 0.5
        visualizer.add_datasample('', image, sample, draw_pred=False, with_labels=are_legible(image))
    else:
        instances.bboxes = getattr(instances.bboxes, 'tensor', instances.bboxes)
        size_to_image(visualizer, image)
        visualizer.add_datasample('', image, sample, draw_pred=False)
    return Path(sample.img_path).name, visualizer.get_image()
