"""Loads the backbones of configs with their weights."""
from pathlib import Path

from mmengine.config import Config

from openmmlab_runs.checkpoints.fitting import load_weights
from openmmlab_runs.errors import UserError
from openmmlab_runs.loading import backbone_config, build

from .models import CPVT, PyramidCPVT


def load_backbone(cfg: Config, checkpoint: str | Path | None = None) -> CPVT | PyramidCPVT:
    """Builds the backbone of a config, in eval mode, with the weights of a checkpoint of the whole `model`, or random.

    Raises:
        UserError: If the config has no such backbone, or the checkpoint does not fit.
    """
    config = backbone_config(cfg)
    model = build(cfg, cfg.model) if checkpoint else None
    backbone = model.backbone if model else build(cfg, config)
    if not isinstance(backbone, (CPVT, PyramidCPVT)):
        raise UserError(f'model.backbone of config {cfg.filename} is a {type(backbone).__name__}, but must be a CPVT '
                        'or a PyramidCPVT.')
    if model and checkpoint:
        load_weights(model, checkpoint)
    return backbone.eval()
