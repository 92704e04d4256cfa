"""Formats of CPVT with the rotary encodings of RoPE-ViT (arXiv 2403.13298)."""
from dataclasses import dataclass

import torch
from torch import Tensor

from openmmlab_tools.errors import UserError

from .plain import BLOCK, FOREIGN, REGISTERS, STEM, TABLE, PlainFormat
from .renaming import Names, block

FREQUENCIES = ('rope.freqs', 'freqs')  # timm: (2, blocks, heads, C / 2); authors: (2, blocks, heads * C / 2)
HEAD_DIMS = 64  # C, in all sizes


@dataclass(frozen=True)
class RopeVitFormat(PlainFormat):
    """The weight format of a ViT with `RotaryPE` or `MixedRotaryPE`; some models also have a `LearnablePE`.

    In these files, the two channels of a pair are neighbours, and columns come before rows. The translation permutes
    the channels of queries and keys in the same way, so their products stay the same.
    """
    axes: int = 2  # parts of a head that have different frequencies: 2 for columns and rows, 1 for `MixedRotaryPE`
    foreign: str = FOREIGN

    def translate_name(self, name: str) -> tuple[str, ...]:
        if name in FREQUENCIES:
            return tuple(f'position_encoding.{place}.frequencies.0' for place in (0, 1))
        return super().translate_name(name)

    def translate(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        frequencies = next((tensor for name, tensor in weights.items() if name in FREQUENCIES), None)
        translated = {name: self._with_halves(name, tensor) for name, tensor in super().translate(
            {name: tensor for name, tensor in weights.items() if name not in FREQUENCIES}).items()}
        if frequencies is None:
            return translated
        if frequencies.dim() == 4 and frequencies.shape[-1] != HEAD_DIMS // 2:
            raise UserError(f"the checkpoint's heads have {2 * frequencies.shape[-1]} channels, but must have "
                            f'{HEAD_DIMS}, as in RoPE-ViT of all sizes.')
        place = int(TABLE in translated)  # behind the table
        blocks = frequencies.reshape(2, frequencies.shape[1], -1, HEAD_DIMS // 2).flip(0).unbind(dim=1)
        return translated | {f'position_encoding.{place}.frequencies.{i}': block for i, block in enumerate(blocks)}

    def _with_halves(self, name: str, tensor: Tensor) -> Tensor:
        """Permutes the channels of queries and keys in a tensor of an attention; other tensors stay unchanged."""
        if '.attn.q.' in name:
            return _from_pairs(tensor, self.axes)
        if '.attn.kv.' in name:
            keys, values = tensor.chunk(2)
            return torch.cat([_from_pairs(keys, self.axes), values])
        return tensor


def _from_pairs(tensor: Tensor, axes: int) -> Tensor:
    """Separates the first channels of pairs from the second, and puts rows before columns: `(heads * C, ...)`."""
    return tensor.unflatten(0, (-1, axes, HEAD_DIMS // axes // 2, 2)).flip(1).transpose(2, 3).flatten(0, 3)


NAMES: dict[Names, Names] = {
    **block(BLOCK, BLOCK, 'attn.qkv.{p}', scale='gamma_{k}'),
    'pos_embed': TABLE,
    'reg_token': REGISTERS,
}
SIGNATURE = (STEM, 'blocks.0.attn.qkv.bias', 'blocks.0.gamma_1')
AXIAL = RopeVitFormat('timm-rope-axial', 'CPVT', SIGNATURE, NAMES, norm_eps=1e-6,
                      encoding=dict(type='RotaryPE', form='axial'))
MIXED = RopeVitFormat('timm-rope-mixed', 'CPVT', (*SIGNATURE, '|'.join(FREQUENCIES)), NAMES, norm_eps=1e-6,
                      encoding=dict(type='MixedRotaryPE'), axes=1)
FORMATS = (AXIAL, MIXED)
