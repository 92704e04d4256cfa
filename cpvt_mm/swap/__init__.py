"""Swaps the backbones into existing configs of mmdet and mmseg."""
from openmmlab_tools.config_files import read_config, to_delta, write_config

from .probing import CannotSwap
from .swapping import swap_backbone
from .targets import TARGETS

__all__ = ['TARGETS', 'CannotSwap', 'read_config', 'swap_backbone', 'to_delta', 'write_config']
