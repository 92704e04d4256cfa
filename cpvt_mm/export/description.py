"""Describes an exported model: where it is from, how its images are prepared, and its classes."""
import json
from pathlib import Path

from mmengine.config import Config

from cpvt_mm.version import __version__
from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.data.datasets import build_unread
from openmmlab_runs.loading import normalization
from openmmlab_runs.registry import in_scope


def describe(cfg: Config) -> dict[str, str]:
    """Describes the origin of an exported model and the normalization of its images.

    The input is `(pixels - mean) / std` per channel, with pixels from 0 to 255. `mean` and `std` are JSON lists in the
    order of `channels`, 'RGB' or 'BGR'.
    """
    mean, std, is_rgb = normalization(cfg)
    return dict(config=Path(cfg.filename).stem, version=f'cpvt_mm {__version__}',
                layout='float32, (batch, channel, height, width)', channels='RGB' if is_rgb else 'BGR',
                mean=json.dumps(mean), std=json.dumps(std))


def describe_classes(cfg: Config, checkpoint: str | Path | None = None) -> dict[str, str]:
    """Describes the channels of a segmentor's logits, or the labels of a detector.

    `classes` and `palette` are JSON lists of names and RGB values. They come from the checkpoint, if training wrote
    them, or else from the `metainfo` of the config's test dataset, without reading its files. Unknown entries are
    omitted.
    """
    meta = (read_checkpoint(checkpoint).get('meta') or {}).get('dataset_meta') if checkpoint else None
    if not meta and cfg.get('test_dataloader'):
        with in_scope(cfg.default_scope):
            meta = build_unread(cfg.test_dataloader.dataset).metainfo
    return {key: json.dumps(meta[key]) for key in ('classes', 'palette') if meta and meta.get(key)}
