"""The layer of a parameter, for layer-wise learning-rate decay."""
import re
from collections.abc import Sequence

# Where the name of a parameter of a position encoding tells its block.
OF_BLOCK = re.compile(r'(?:convs|blocks|frequencies)\.(-?\d+)\.?')


def layer_of(name: str, depths: Sequence[int]) -> int:
    """Returns the layer of a parameter by its name, for layer-wise learning-rate decay.

    - 0: the patch embedding of the image, class and other extra tokens, and encodings before the first block
      (`LearnablePE`, a `PEG` at -1).
    - i + 1: block i, counted over all stages. A `PEG` belongs to the block that it follows. The patch embedding of a
      later stage, and encodings before its first block, belong to that block. What all blocks of a stage share
      (`RelativePE`) belongs to its last block.
    - The last layer: norms of outputs.

    Args:
        name: The name of the parameter in the backbone.
        depths: Number of blocks of each stage; of a plain backbone, one number.
    """
    in_stage = re.match(r'stages\.(\d+)\.', name)
    stage = int(in_stage[1]) if in_stage else 0
    rest = name[in_stage.end():] if in_stage else name
    if rest.startswith(('norm.', 'out_norms.')):
        return sum(depths) + 1
    block = -1
    if rest.startswith('blocks.'):
        block = int(rest.split('.')[1])
    elif rest.startswith('position_encoding.') and not rest.endswith('.table'):
        found = OF_BLOCK.search(rest)
        block = int(found[1]) if found else depths[stage] - 1
    return sum(depths[:stage]) + max(block, 0 if stage else -1) + 1
