"""Swaps the backbones into existing configs of mmdet and mmseg."""
from .errors import CannotSwap
from .swapping import TARGETS, swap_backbone
from .writing import read_config, to_delta, write_config

__all__ = ['TARGETS', 'CannotSwap', 'read_config', 'swap_backbone', 'to_delta', 'write_config']
