"""Translates parameter names of other libraries, in both directions, by tables of names."""
import functools
import math
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openmmlab_runs.errors import UserError

PLACEHOLDERS = {'i': r'\d+', 'j': r'\d+', 'i1': r'[1-9]\d*', 'j1': r'[1-9]\d*', 'k': '[12]', 'q': 'proj|norm',
                'p': 'weight|bias'}
# The table of a `LearnablePE` that is the first encoding of a backbone, or of a stage of a pyramid.
POSITION_TABLE = re.compile(r'(stages\.\d+\.)?position_encoding\.0\.table')
ONE_BASED = {'i1': 'i', 'j1': 'j'}  # these count what the others count, from 1

# A name as a template with these placeholders. Several tensors of a side are joined, and the whole is split into those
# of the other side. Theirs have equal sizes; None stands for zeros, for which the library has no tensor. If there are
# two names here, these are of the queries, and of the keys and values.
Names = str | tuple[str | None, ...]
Table = Mapping[Names, Names]  # their names -> ours


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for name, expression in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(f'{{{name}}}'), f'(?P<{name}>{expression})')
    return re.compile(pattern)


def _parts(names: Names) -> tuple[str | None, ...]:
    return (names,) if isinstance(names, str) else names


def _match(templates: Names, name: str) -> dict[str, str] | None:
    """Returns the values of the placeholders in the first template that a name has; None if it has none of them."""
    matches = (_pattern(template).fullmatch(name) for template in _parts(templates) if template)
    values = next((match.groupdict() for match in matches if match), None)
    if values is None:
        return None
    return {**values, **{zero: str(int(values[one]) - 1) for one, zero in ONE_BASED.items() if one in values},
            **{one: str(int(values[zero]) + 1) for one, zero in ONE_BASED.items() if zero in values}}


def _fill(templates: Names, values: dict[str, str]) -> tuple[str, ...]:
    """Returns the names of templates; '' for None."""
    return tuple(template.format(**values) if template else '' for template in _parts(templates))


def below(prefix: str, table: Table) -> dict[Names, Names]:
    """Returns a table with a prefix before their names."""
    return {prefix + theirs if isinstance(theirs, str) else tuple(name and prefix + name for name in theirs): ours
            for theirs, ours in table.items()}


def split_table(table: Tensor, extra: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Splits a position table `(1, E + side * side, C)` into rows of E extra tokens, and `(side, side, C)` of cells.

    E is the first of `extra` that fits: no two squares differ by 1 or 2, so the number of rows shows which does.
    """
    if table.dim() != 3 or len(table) != 1:
        raise UserError(f"the checkpoint's position table has shape {tuple(table.shape)}, but must have three "
                        'dimensions, (1, rows, channels), as in a ViT.')
    rows = table[0]
    for count in extra:
        side = math.isqrt(max(len(rows) - count, 0))
        if side and side**2 == len(rows) - count:
            return rows[:count], rows[count:].unflatten(0, (side, side))
    raise UserError(f"the checkpoint's position table has {len(rows)} rows, {max(extra)} for class tokens, and the "
                    'others do not form a square: use a checkpoint that was trained on square images.')


@dataclass(frozen=True)
class Format:
    """The parameter names of one backbone in a library's checkpoints; names in no table are the same here."""
    names: tuple[str, ...]  # for `convert_checkpoint.py --to`
    backbone: str  # 'PyramidCPVT' or 'CPVT'
    signature: tuple[str, ...]  # names in every file, '|' between alternatives; the last match in `FORMATS` wins
    table: Table = field(default_factory=dict)  # their names, ours; of several for one name here, the first is written
    gated: Table = field(default_factory=dict)  # for MLPs of `mlp_mode='swiglu'`, before the others
    norm_eps: float | None = None  # `norm_eps` of the format's models; None: unknown

    def __str__(self) -> str:
        return ' or '.join(self.names)

    def is_in(self, names: Collection[str], prefix: str = '') -> bool:
        """Returns whether names below a prefix are of this format."""
        return all(any(prefix + name in names for name in names_.split('|')) for names_ in self.signature)

    def knows(self, name: str) -> bool:
        """Returns whether the table has one of our names."""
        return any(_match(ours, name) is not None for ours in self.table.values())

    def our_names(self, name: str) -> tuple[str, ...]:
        """Translates one of their names; returns two names if their tensor contains queries, keys and values."""
        return next((_fill(ours, values) for theirs, ours in (*self.gated.items(), *self.table.items())
                     if (values := _match(theirs, name)) is not None), (name,))

    def _sources(self, name: str, weights: Container[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names that are joined with one of theirs, '' for zeros, and our names of the result."""
        for theirs, ours in (*self.gated.items(), *self.table.items()):
            if (values := _match(theirs, name)) is not None:
                parts = _fill(theirs, values)
                if all(part in weights for part in parts if part):
                    return parts, _fill(ours, values)
        return (name,), (name,)

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames weights to the names here, where a table has them; raises a UserError if the model does not fit."""
        renamed: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            sources, names = self._sources(name, weights)
            if name == sources[0]:
                if sources[1:]:
                    tensor = torch.cat([weights[part] if part else torch.zeros_like(tensor) for part in sources])
                parts = (tensor,) if len(names) == 1 else tensor.tensor_split([len(tensor) // 3])
                renamed.update(zip(names, parts, strict=True))
        return renamed

    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames weights to the format's names, where a table has them; raises a UserError if they do not fit."""
        tables = (*(self.gated.items() if _is_gated(weights) else ()), *self.table.items())
        renamed: dict[str, Tensor] = {}
        for name in weights:
            names, parts = next(((_fill(theirs, values), _fill(ours, values)) for theirs, ours in tables
                                 if (values := _match(ours, name)) is not None), ((name,), (name,)))
            absent = [part for part in parts if part not in weights]
            if absent:
                raise UserError(f'the weights have {name} but not {absent[0]}, so they cannot be converted to the '
                                f'format {self}: use a complete checkpoint.')
            joined = torch.cat([weights[part] for part in parts]) if parts[1:] else weights[name]
            for their_name, tensor in zip(names, joined.chunk(len(names)) if names[1:] else (joined,), strict=True):
                if their_name:
                    renamed[their_name] = tensor
                elif tensor.any():
                    raise UserError(f'a part of {parts[-1]} is not 0, so the weights cannot be converted: the format '
                                    f'{self} has no keys with a bias.')
        return renamed


def _is_gated(weights: dict[str, Tensor]) -> bool:
    """Returns whether the MLPs of a plain backbone are those of `mlp_mode='swiglu'`."""
    first, second = weights.get('blocks.0.mlp.fc1.weight'), weights.get('blocks.0.mlp.fc2.weight')
    return first is not None and second is not None and len(first) == 2 * second.shape[1]
