"""Formats of CPVT with the rotary encodings of RoPE-ViT (arXiv 2403.13298): of its authors and timm."""
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openmmlab_runs.config_text import to_source
from openmmlab_runs.errors import UserError

from .plain_formats import QKV, REGISTERS, TABLE, PlainFormat
from .renaming import Format, Names

FREQUENCIES = ('rope.freqs', 'freqs')  # of timm, (2, blocks, heads, C / 2); of the authors, (2, blocks, heads * C / 2)
HEAD_DIMS = 64  # C, in all sizes


@dataclass(frozen=True)
class RopeVitFormat(PlainFormat):
    """A ViT with a `RotaryPE` or a `MixedRotaryPE`, and before it a `LearnablePE` in some models.

    There, the two channels of a pair are neighbours, and columns come before rows. The same permutation of the
    channels of queries and keys does not change their products.

    Attributes:
        axes: Parts of a head whose pairs have frequencies of their own: 2 for `RotaryPE`, columns and rows; 1 for
            `MixedRotaryPE`, whose files have frequencies.
    """
    axes: int = 2

    def our_names(self, name: str) -> tuple[str, ...]:
        if name in FREQUENCIES:
            return tuple(f'position_encoding.{place}.frequencies.0' for place in (0, 1))
        return super().our_names(name)

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        found = [tensor for name, tensor in weights.items() if name in FREQUENCIES]
        if found and found[0].dim() == 4 and found[0].shape[-1] != HEAD_DIMS // 2:
            raise UserError(f"the checkpoint's heads have {2 * found[0].shape[-1]} channels, but must have "
                            f'{HEAD_DIMS}, as in RoPE-ViT of all sizes.')
        renamed = super().to_ours({name: tensor for name, tensor in weights.items() if name not in FREQUENCIES})
        renamed = {name: self._permuted(name, tensor, _from_pairs) for name, tensor in renamed.items()}
        for frequencies in found:
            blocks = frequencies.reshape(2, frequencies.shape[1], -1, HEAD_DIMS // 2).flip(0).unbind(dim=1)
            renamed |= dict(zip(_names(TABLE in renamed, len(blocks)), blocks, strict=True))
        return renamed

    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        table = weights.get(TABLE)
        has_table = table is not None and table.dim() == 3 and table.shape[0] == table.shape[1]
        depth = sum(name.endswith('.norm1.weight') for name in weights)
        frequencies = _names(has_table, depth) if self.axes == 1 else []
        encodings = {name for name in weights if name.startswith('position_encoding.')}
        if encodings != {*frequencies, *([TABLE] if has_table else [])}:
            raise UserError(f'the format {self} supports only a {to_source(self.encoding)}, alone or behind a '
                            'LearnablePE on a square grid, so the weights cannot be converted: they have '
                            f'{", ".join(sorted(encodings)[:3]) or "none"}.')
        theirs = {name: self._permuted(name, tensor, _to_pairs) for name, tensor in weights.items()
                  if name not in encodings}
        if has_table:
            theirs['pos_embed'] = weights[TABLE].flatten(0, 1)[None]
        if frequencies:
            theirs[FREQUENCIES[0]] = torch.stack([weights[name] for name in frequencies], dim=1).flip(0)
        return super().to_theirs(theirs)

    def _permuted(self, name: str, tensor: Tensor, permute: Callable[[Tensor, int], Tensor]
                  ) -> Tensor:
        """Permutes the channels of queries and keys in a tensor of an attention; others stay unchanged."""
        if '.attn.q.' in name:
            return permute(tensor, self.axes)
        if '.attn.kv.' in name:
            keys, values = tensor.chunk(2)
            return torch.cat([permute(keys, self.axes), values])
        return tensor


def _names(has_table: bool, depth: int) -> list[str]:
    """Returns the names of the frequencies of blocks, in a `MixedRotaryPE` that follows a table if there is one."""
    return [f'position_encoding.{int(has_table)}.frequencies.{index}' for index in range(depth)]


def _from_pairs(tensor: Tensor, axes: int) -> Tensor:
    """Separates the first channels of pairs from the second, and puts rows before columns."""
    return tensor.unflatten(0, (-1, axes, HEAD_DIMS // axes // 2, 2)).flip(1).transpose(2, 3).flatten(0, 3)


def _to_pairs(tensor: Tensor, axes: int) -> Tensor:
    """Does the inverse of `_from_pairs`."""
    return tensor.unflatten(0, (-1, axes, 2, HEAD_DIMS // axes // 2)).transpose(2, 3).flip(1).flatten(0, 3)


NAMES: dict[Names, Names] = {
    'pos_embed': TABLE,
    'reg_token': REGISTERS,
    'blocks.{i}.gamma_{j}': 'blocks.{i}.ls{j}.gamma',
    'blocks.{i}.attn.qkv.{p}': QKV,
}
SIGNATURE = ('patch_embed.proj.weight', 'blocks.0.attn.qkv.bias', 'blocks.0.gamma_1')
AXIAL = RopeVitFormat(('timm-rope-axial',), 'CPVT', SIGNATURE, NAMES, norm_eps=1e-6,
                      encoding=dict(type='RotaryPE', form='axial'))
MIXED = RopeVitFormat(('timm-rope-mixed',), 'CPVT', (*SIGNATURE, '|'.join(FREQUENCIES)), NAMES, norm_eps=1e-6,
                      encoding=dict(type='MixedRotaryPE'), axes=1)
ROPE_FORMATS: tuple[Format, ...] = (AXIAL, MIXED)
