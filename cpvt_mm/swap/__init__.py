"""Swaps the backbones into existing configs of mmdet and mmseg."""
from .probing import CannotSwap
from .swapping import swap_backbone
from .targets import TARGETS
from .writing import read_config, to_delta, write_config

__all__ = ['TARGETS', 'CannotSwap', 'read_config', 'swap_backbone', 'to_delta', 'write_config']
