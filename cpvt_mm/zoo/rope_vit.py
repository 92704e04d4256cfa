"""Formats of CPVT with the rotary encodings of RoPE-ViT (arXiv 2403.13298)."""
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openmmlab_tools.errors import UserError

from .plain import BLOCK, FOREIGN, REGISTERS, STEM, TABLE, PlainFormat
from .renaming import Names, block

FREQUENCIES = ('rope.freqs', 'freqs')  # of timm, (2, blocks, heads, C / 2); of the authors, (2, blocks, heads * C / 2)
OUR_FREQUENCIES = re.compile(r'position_encoding\.[01]\.frequencies\.(\d+)')
HEAD_DIMS = 64  # C, in all sizes


@dataclass(frozen=True)
class RopeVitFormat(PlainFormat):
    """A ViT with a `RotaryPE` or a `MixedRotaryPE`, and before it a `LearnablePE` in some models.

    There, the two channels of a pair are neighbours, and columns come before rows. The same permutation of the
    channels of queries and keys does not change their products.
    """
    axes: int = 2  # parts of a head with frequencies of their own: columns and rows; 1 of `MixedRotaryPE`, in the file
    bare_with: str | None = 'blocks.0.ls1.gamma'
    foreign: str = FOREIGN

    def our_names(self, name: str) -> tuple[str, ...]:
        if name in FREQUENCIES:
            return tuple(f'position_encoding.{place}.frequencies.0' for place in (0, 1))
        return super().our_names(name)

    def knows(self, name: str) -> bool:
        return super().knows(name) or (self.axes == 1 and bool(OUR_FREQUENCIES.fullmatch(name)))

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        tables = [tensor for name, tensor in weights.items() if name in FREQUENCIES]
        if tables and tables[0].dim() == 4 and tables[0].shape[-1] != HEAD_DIMS // 2:
            raise UserError(f"the checkpoint's heads have {2 * tables[0].shape[-1]} channels, but must have "
                            f'{HEAD_DIMS}, as in RoPE-ViT of all sizes.')
        renamed = super().to_ours({name: tensor for name, tensor in weights.items() if name not in FREQUENCIES})
        renamed = {name: self._permuted(name, tensor, _from_pairs) for name, tensor in renamed.items()}
        place = int(TABLE in renamed)
        for frequencies in tables:
            blocks = frequencies.reshape(2, frequencies.shape[1], -1, HEAD_DIMS // 2).flip(0).unbind(dim=1)
            renamed |= {f'position_encoding.{place}.frequencies.{i}': block for i, block in enumerate(blocks)}
        return renamed

    def renamed(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        blocks = {int(match[1]): tensor for name, tensor in weights.items()
                  if (match := OUR_FREQUENCIES.fullmatch(name))}
        theirs = super().renamed({name: self._permuted(name, tensor, _to_pairs) for name, tensor in weights.items()
                                  if not OUR_FREQUENCIES.fullmatch(name)})
        if blocks:
            theirs[FREQUENCIES[0]] = torch.stack([blocks[i] for i in sorted(blocks)], dim=1).flip(0)
        return theirs

    def _permuted(self, name: str, tensor: Tensor, permute: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Permutes the channels of queries and keys in a tensor of an attention; others stay unchanged."""
        if '.attn.q.' in name:
            return permute(tensor, self.axes)
        if '.attn.kv.' in name:
            keys, values = tensor.chunk(2)
            return torch.cat([permute(keys, self.axes), values])
        return tensor


def _from_pairs(tensor: Tensor, axes: int) -> Tensor:
    """Separates the first channels of pairs from the second, and puts rows before columns."""
    return tensor.unflatten(0, (-1, axes, HEAD_DIMS // axes // 2, 2)).flip(1).transpose(2, 3).flatten(0, 3)


def _to_pairs(tensor: Tensor, axes: int) -> Tensor:
    """Does the inverse of `_from_pairs`."""
    return tensor.unflatten(0, (-1, axes, 2, HEAD_DIMS // axes // 2)).transpose(2, 3).flip(1).flatten(0, 3)


NAMES: dict[Names, Names] = {
    **block(BLOCK, BLOCK, 'attn.qkv.{p}', scale='gamma_{k}'),
    'pos_embed': TABLE,
    'reg_token': REGISTERS,
}
SIGNATURE = (STEM, 'blocks.0.attn.qkv.bias', 'blocks.0.gamma_1')
AXIAL = RopeVitFormat(('timm-rope-axial',), 'CPVT', SIGNATURE, NAMES, norm_eps=1e-6,
                      encoding=dict(type='RotaryPE', form='axial'))
MIXED = RopeVitFormat(('timm-rope-mixed',), 'CPVT', (*SIGNATURE, '|'.join(FREQUENCIES)), NAMES, norm_eps=1e-6,
                      encoding=dict(type='MixedRotaryPE'), axes=1)
FORMATS = (AXIAL, MIXED)
