"""The names of a pyramid here."""
from .renaming import Format

BLOCK = 'stages.{i}.blocks.{j}.'
SR = ('attn.sr', 'attn.norm')  # spatial reduction of other libraries
OURS = Format('cpvt_mm', 'PyramidCPVT', ('stages.0.patch_embed.proj.weight', 'stages.0.blocks.0.attn.kv.weight'))
