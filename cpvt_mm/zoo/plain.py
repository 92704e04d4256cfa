"""The names of a plain transformer here, and what the formats of all ViTs share."""
from dataclasses import dataclass

import torch
from torch import Tensor

from .renaming import Format, split_table

TOKENS = ('cls_token', 'dist_token')
TABLE = 'position_encoding.0.table'
REGISTERS = 'register_tokens'
MASK = '_mask'  # after the name of a bias: where it is 0, the bias counts as 0
BLOCK = 'blocks.{i}.'  # here
STEM = 'patch_embed.proj.weight'
# ViTs with these parameters differ from CPVT: norms before the blocks, of queries and keys, or of class tokens alone.
# The layer scales of mmpretrain have no rules.
FOREIGN = r'(^|\.)(norm_pre|pre_norm|q_norm|k_norm|cls_norm|gamma[12])(\.|$)'


@dataclass(frozen=True)
class PlainFormat(Format):
    """The format of a ViT, with or without a position table.

    The table is `(1, E + side * side, C)`: E rows for class tokens, then the grid. The row of a class token is added to
    the token.
    """
    encoding: dict[str, str] | None = None  # a rotary one; with it, files may leave out biases of attention that are 0
    foreign: str = FOREIGN + r'|(^|\.)freqs(\.|$)'

    def translate(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        masks = {name.removesuffix(MASK): weights[name] for name in weights if name.endswith(MASK)}
        weights = super().translate({name: torch.where(masks[name] == 0, 0, tensor) if name in masks else tensor
                                   for name, tensor in weights.items() if not name.endswith(MASK)})
        if self.encoding and not any(name.endswith('.attn.q.bias') for name in weights):  # zeros are left out
            weights |= {name.replace('weight', 'bias'): weight.new_zeros(len(weight))
                        for name, weight in weights.items() if name.endswith(('.attn.q.weight', '.attn.kv.weight'))}
        if TABLE not in weights:
            return weights
        tokens = [name for name in TOKENS if name in weights]
        rows, cells = split_table(weights[TABLE], (len(tokens), 0))  # some tables of timm have no rows for class tokens
        added = {name: weights[name] + row for name, row in zip(tokens[:len(rows)], rows, strict=False)}
        return {**weights, **added, TABLE: cells}


# The names here.
PLAIN = Format('cpvt_mm', 'CPVT', (STEM, 'blocks.0.attn.kv.weight'))
