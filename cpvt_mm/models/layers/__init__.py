from .attention import Attention
from .blocks import Block, WithCp, run_block
from .mlp import MLP
from .patch_embed import PatchEmbed

__all__ = ['MLP', 'Attention', 'Block', 'PatchEmbed', 'WithCp', 'run_block']
