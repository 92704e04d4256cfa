from .attention import Attention
from .blocks import Block, WithCp, run_block
from .mlp import MLP, MLPS
from .patch_embed import PatchEmbed

__all__ = ['MLP', 'MLPS', 'Attention', 'Block', 'PatchEmbed', 'WithCp', 'run_block']
