"""Describes an exported file: where it is from, how its images are normalized, and the classes."""
import json
from pathlib import Path

from mmengine.config import Config

from cpvt_mm.version import __version__
from openmmlab_tools.checkpoints.loading import normalization
from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.data.datasets import build_unread
from openmmlab_tools.registry import in_scope


def describe(cfg: Config) -> dict[str, str]:
    """Describes the origin of an exported model and the normalization of its images.

    The input is `(pixels - mean) / std` per channel, with pixels from 0 to 255; `mean` and `std` are JSON lists in the
    order of `channels`: 'RGB', 'BGR', or 'file' for `LoadBandsFromFile`, whose pixels have any range.
    """
    mean, std, channels = normalization(cfg)
    return dict(config=Path(cfg.filename).stem, version=f'cpvt_mm {__version__}',
                layout='float32, (batch, channel, height, width)', channels=channels,
                mean=json.dumps(mean), std=json.dumps(std))


def describe_classes(cfg: Config, checkpoint: str | Path | None = None) -> dict[str, str]:
    """Describes a segmentor's or detector's known `classes` and `palette` (RGB) as JSON lists.

    They are from the checkpoint, or else from the `metainfo` of the config's test dataset.
    """
    meta = (read_checkpoint(checkpoint).get('meta') or {}).get('dataset_meta') if checkpoint else None
    if not meta and cfg.get('test_dataloader'):
        with in_scope(cfg.default_scope):
            meta = build_unread(cfg.test_dataloader.dataset).metainfo
    return {key: json.dumps(meta[key]) for key in ('classes', 'palette') if meta and meta.get(key)}
