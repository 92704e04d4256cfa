from .attention import Attention
from .block import MLP, Block
from .drop_path import DropPath
from .init import init_parameters
from .patch_embed import PatchEmbed

__all__ = ['MLP', 'Attention', 'Block', 'DropPath', 'PatchEmbed', 'init_parameters']
