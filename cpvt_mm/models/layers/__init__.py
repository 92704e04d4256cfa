from .attention import Attention
from .block import Block
from .checkpointing import WithCp
from .drop_path import DropPath
from .init import init_parameters
from .mlp import MLP, MLPS, ConvMLP
from .patch_embed import PatchEmbed

__all__ = ['MLP', 'MLPS', 'Attention', 'Block', 'ConvMLP', 'DropPath', 'PatchEmbed', 'WithCp', 'init_parameters']
