"""Formats of PyramidCPVT: Twins-PCPVT of its authors, timm, mmseg and mmpretrain; and how they are detected."""
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from openmmlab_runs.errors import UserError

from .plain_formats import PLAIN_FORMATS
from .pvt_formats import PVT_FORMATS
from .renaming import Format, Names
from .rope_formats import ROPE_FORMATS

BLOCK = 'stages.{i}.blocks.{j}.'
PEG = 'stages.{i}.position_encoding.0.convs.0.0.{p}'


@dataclass(frozen=True)
class PyramidFormat(Format):
    """A Twins-PCPVT with a plain PEG after the first block of each stage, and at most one final norm.

    The norms between others' stages (`extra_norm`, `norm_after_stage`) are not those of `out_norm`.
    """

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        between = [name for name in weights if re.match(r'norm_list\.\d|norm_after_stage[012]\.', name)]
        if between:
            raise UserError(f'the checkpoint is of a Twins-PCPVT with norms between its stages ({between[0]}), which '
                            'PyramidCPVT does not have: use weights without extra_norm and norm_after_stage.')
        return super().to_ours(weights)

    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        converted = super().to_theirs(weights)
        stages = {match[1] for name in weights if (match := re.match(r'stages\.(\d+)\.', name))}
        absent = [name for stage in sorted(stages) for p in ('weight', 'bias')
                  if (name := PEG.format(i=stage, p=p)) not in weights]
        other = [name for name, weight in weights.items() if name.startswith(('stages.', 'out_norms.')) and (
            name in converted or (name.endswith('.attn.sr.proj.weight') and weight.dim() == 2)  # sr_mode='pool'
            or ('position_encoding' in name and weight.dim() > 1 and weight.shape[1:] != (1, 3, 3)))]
        if odd := [*absent, *other]:
            raise UserError(f'{odd[0]} {"is missing" if absent else "differs"}, so the weights cannot be converted: '
                            f'the format {self} has one plain PEG after the first block of each stage, convolutions '
                            'for spatial reduction, linear MLPs, and at most one final norm.')
        return converted


PYRAMID_CPVT = Format(('cpvt_mm',), 'PyramidCPVT',
                      ('stages.0.patch_embed.proj.weight', 'stages.0.blocks.0.attn.kv.weight'))

TWINS = PyramidFormat(
    ('twins', 'timm'), 'PyramidCPVT', ('patch_embeds.0.proj.weight', 'blocks.0.0.attn.kv.weight'),
    {
        'patch_embeds.{i}.proj.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'patch_embeds.{i}.norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        'blocks.{i}.{j}.norm1.{p}': BLOCK + 'norm1.{p}',
        'blocks.{i}.{j}.attn.q.{p}': BLOCK + 'attn.q.{p}',
        'blocks.{i}.{j}.attn.kv.{p}': BLOCK + 'attn.kv.{p}',
        'blocks.{i}.{j}.attn.sr.{p}': BLOCK + 'attn.sr.proj.{p}',
        'blocks.{i}.{j}.attn.norm.{p}': BLOCK + 'attn.sr.norm.{p}',
        'blocks.{i}.{j}.attn.proj.{p}': BLOCK + 'attn.proj.{p}',
        'blocks.{i}.{j}.norm2.{p}': BLOCK + 'norm2.{p}',
        'blocks.{i}.{j}.mlp.fc1.{p}': BLOCK + 'mlp.fc1.{p}',
        'blocks.{i}.{j}.mlp.fc2.{p}': BLOCK + 'mlp.fc2.{p}',
        'pos_block.{i}.proj.0.{p}': PEG,
        'norm.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6)


def _openmmlab(blocks: str) -> dict[Names, Names]:
    """Returns the names that mmseg and mmpretrain share, apart from that of the blocks."""
    return {
        'patch_embeds.{i}.projection.{p}': 'stages.{i}.patch_embed.proj.{p}',
        'patch_embeds.{i}.norm.{p}': 'stages.{i}.patch_embed.norm.{p}',
        f'{blocks}.{{i}}.{{j}}.norm1.{{p}}': BLOCK + 'norm1.{p}',
        f'{blocks}.{{i}}.{{j}}.attn.sr.{{p}}': BLOCK + 'attn.sr.proj.{p}',
        f'{blocks}.{{i}}.{{j}}.attn.norm.{{p}}': BLOCK + 'attn.sr.norm.{p}',
        f'{blocks}.{{i}}.{{j}}.norm2.{{p}}': BLOCK + 'norm2.{p}',
        f'{blocks}.{{i}}.{{j}}.ffn.layers.0.0.{{p}}': BLOCK + 'mlp.fc1.{p}',
        f'{blocks}.{{i}}.{{j}}.ffn.layers.1.{{p}}': BLOCK + 'mlp.fc2.{p}',
        'position_encodings.{i}.proj.{p}': PEG,
    }


MMSEG_PCPVT = PyramidFormat(
    ('mmseg',), 'PyramidCPVT', ('patch_embeds.0.projection.weight', 'layers.0.0.attn.attn.in_proj_weight'),
    {
        **_openmmlab('layers'),
        'layers.{i}.{j}.attn.attn.in_proj_{p}': (BLOCK + 'attn.q.{p}', BLOCK + 'attn.kv.{p}'),
        'layers.{i}.{j}.attn.attn.out_proj.{p}': BLOCK + 'attn.proj.{p}',
        'norm.{p}': 'out_norms.3.{p}',  # mmseg's models have no such norm, but its files of Twins' weights do
    }, norm_eps=1e-5)

MMPRETRAIN_PCPVT = PyramidFormat(
    ('mmpretrain',), 'PyramidCPVT', ('patch_embeds.0.projection.weight', 'stages.0.0.attn.kv.weight'),
    {
        **_openmmlab('stages'),
        'stages.{i}.{j}.attn.q.{p}': BLOCK + 'attn.q.{p}',
        'stages.{i}.{j}.attn.kv.{p}': BLOCK + 'attn.kv.{p}',
        'stages.{i}.{j}.attn.proj.{p}': BLOCK + 'attn.proj.{p}',
        'norm_after_stage3.{p}': 'out_norms.3.{p}',
    }, norm_eps=1e-6)  # 1e-5 is the default of mmpretrain's class, but the configs of its weights set 1e-6

FORMATS = (PYRAMID_CPVT, TWINS, MMSEG_PCPVT, MMPRETRAIN_PCPVT, *PVT_FORMATS, *PLAIN_FORMATS, *ROPE_FORMATS)


class Detected(NamedTuple):
    """The backbone in a checkpoint: its format, its prefix ('' or with a dot at the end), and prefixes of others."""
    format: Format
    prefix: str
    others: tuple[str, ...]


def detect_format(names: Collection[str], path: object, prefix: str | None = None,
              wanted: str = '') -> Detected:
    """Finds the backbone in a checkpoint: the first one with the shortest prefix; raises a UserError if there is none.

    Args:
        names: The names of the checkpoint's tensors.
        path: The path of the checkpoint, for the message.
        prefix: The prefix to search below, with or without the dot. Defaults to None: any prefix.
        wanted: 'PyramidCPVT' or 'CPVT', preferred whatever its prefix. Defaults to '': no preference.
    """
    if prefix is not None:
        prefix = f'{prefix.removesuffix(".")}.' if prefix else ''
    starts = [(name.removesuffix(fmt.signature[0]), fmt) for name in names for fmt in FORMATS
              if name.endswith(fmt.signature[0])]
    # Of several formats below one prefix, the last one is the most specific.
    found = list({start: fmt for start, fmt in starts
                  if (not start or start.endswith('.')) and prefix in (None, start)
                  and fmt.is_in(names, start)}.items())
    # A stage of a pyramid looks like a small plain transformer, so backbones inside another one do not count.
    found = [(start, fmt) for start, fmt in found
             if not any(start != other and start.startswith(other) for other, _ in found)]
    if not found:
        where = f' below {prefix!r}' if prefix else ''
        first = ', '.join(list(names)[:3])
        raise UserError(f'checkpoint {path} has no backbone of a known format{where}: it has {first}'
                        f'{", ..." if len(names) > 3 else ""}; use a checkpoint of a known format ({_known()}).')
    (start, fmt), *others = sorted(found, key=lambda pair: (pair[1].backbone != wanted, len(pair[0])))
    return Detected(fmt, start, tuple(other for other, _ in others))


def _known() -> str:
    backbones = dict.fromkeys(fmt.backbone for fmt in FORMATS)
    return '; '.join(f'for {backbone} {", ".join(str(fmt) for fmt in FORMATS if fmt.backbone == backbone)}'
                     for backbone in backbones)
