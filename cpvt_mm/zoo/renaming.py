"""Translates parameter names of other libraries, in both directions, by tables of names."""
import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openmmlab_tools.errors import UserError

PLACEHOLDERS = {'i': r'\d+', 'j': r'\d+', 'i1': r'[1-9]\d*', 'j1': r'[1-9]\d*', 'k': '[12]', 'q': 'proj|norm',
                'p': 'weight|bias'}
ONE_BASED = {'i1': 'i', 'j1': 'j'}  # these count what the others count, from 1
# The table of a `LearnablePE` that is the first encoding of a backbone, or of a stage of a pyramid.
POSITION_TABLE = re.compile(r'(stages\.\d+\.)?position_encoding\.0\.table')
# Names here that no other library has, unless its table tells so.
OURS = ('stages.', 'blocks.', 'out_norms.', 'position_encoding.', 'register_tokens')

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


def block(theirs: str, ours: str, qkv: Names | None = None, proj: str = 'attn.proj', norm: str = 'norm{k}',
          fc: tuple[str, str] = ('mlp.fc1', 'mlp.fc2'), sr: tuple[str, str] | None = None, conv: str | None = None,
          scale: str | None = None) -> dict[Names, Names]:
    """Returns the table of a block below the prefixes `theirs` and `ours`, from what is called otherwise than here.

    `qkv` are the names of queries, keys and values if they are not in two layers as here, `sr` those of the spatial
    reduction and its norm, `conv` of the convolution in the MLP, `scale` of the layer scale.
    """
    queries = ('attn.q.{p}', 'attn.kv.{p}')
    table: dict[Names, Names] = {qkv: queries} if qkv else {name: name for name in queries}
    layers = {'norm{k}': norm, 'attn.proj': proj, 'mlp.fc1': fc[0], 'mlp.fc2': fc[1], 'mlp.conv': conv}
    if sr:
        layers |= {'attn.sr.proj': sr[0], 'attn.sr.norm': sr[1]}
    table |= {f'{name}.{{p}}': f'{here}.{{p}}' for here, name in layers.items() if name}
    if scale:
        table[scale] = 'ls{k}.gamma'
    return {name: ours + here if isinstance(here, str) else tuple(ours + str(part) for part in here)
            for name, here in below(theirs, table).items()}


def split_table(table: Tensor, extra: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Splits a position table `(1, E + side * side, C)` into rows of E extra tokens, and `(side, side, C)` of cells.

    E is the first of `extra` that fits: no two squares differ by 1 or 2, so the number of rows shows which does.
    """
    rows = table[0] if table.dim() == 3 and len(table) == 1 else table[:0]
    for count in extra:
        side = math.isqrt(max(len(rows) - count, 0))
        if side and side**2 == len(rows) - count:
            return rows[:count], rows[count:].unflatten(0, (side, side))
    raise UserError(f"the checkpoint's position table has shape {tuple(table.shape)}, but must be (1, rows, channels) "
                    f'with {max(extra)} rows for class tokens and a square of others: use a checkpoint that was '
                    'trained on square images.')


def join_table(cells: Tensor, extra: int) -> Tensor:
    """Does the inverse of `split_table`, with zeros for extra tokens; a table of no grid stays unchanged."""
    if cells.dim() != 3:
        return cells
    return torch.cat([cells.new_zeros(extra, cells.shape[-1]), cells.flatten(0, 1)])[None]


@dataclass(frozen=True)
class Format:
    """The parameter names of one backbone in a library's checkpoints; names in no table are the same here."""
    names: tuple[str, ...]  # for `convert_checkpoint.py --to`
    backbone: str  # 'PyramidCPVT' or 'CPVT'
    signature: tuple[str, ...]  # names in every file, '|' between alternatives; the last match in `FORMATS` wins
    table: Table = field(default_factory=dict)  # their names, ours; of several for one name here, the first is written
    gated: Table = field(default_factory=dict)  # for MLPs of `mlp_mode='swiglu'`, before the others
    norm_eps: float | None = None  # `norm_eps` of the format's models; None: unknown
    needed: tuple[str, ...] = ()  # names beside the signature in every file that is written
    foreign: str = ''  # an expression for names of parts that the backbone here does not have

    def __str__(self) -> str:
        return ' or '.join(self.names)

    def lacking(self, names: Collection[str], prefix: str = '') -> list[str]:
        """Returns which names of the signature are not among names below a prefix."""
        return [part for part in self.signature if not any(prefix + name in names for name in part.split('|'))]

    def knows(self, name: str) -> bool:
        """Returns whether the table has one of our names."""
        return any(_match(ours, name) is not None for ours in self.table.values())

    def our_names(self, name: str) -> tuple[str, ...]:
        """Translates one of their names; returns two names if their tensor contains queries, keys and values."""
        return next((names for _, names in self._rules(name)), (name,))

    def _rules(self, name: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Yields what is joined with one of their names, '' for zeros, and our names of the result."""
        for theirs, ours in (*self.gated.items(), *self.table.items()):
            if (values := _match(theirs, name)) is not None:
                yield _fill(theirs, values), _fill(ours, values)

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames weights to the names here, where a table has them; raises a UserError if the model does not fit."""
        if self.foreign and (strange := [name for name in weights if re.search(self.foreign, name)]):
            raise UserError(f'the checkpoint is of a model with {strange[0]}, which {self.backbone} does not have: use '
                            'weights of a model without it.')
        renamed: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            sources, names = next((rule for rule in self._rules(name)
                                   if all(part in weights for part in rule[0] if part)), ((name,), (name,)))
            if name == sources[0]:
                if sources[1:]:
                    tensor = torch.cat([weights[part] if part else torch.zeros_like(tensor) for part in sources])
                parts = (tensor,) if len(names) == 1 else tensor.tensor_split([len(tensor) // 3])
                renamed.update(zip(names, parts, strict=True))
        return renamed

    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames weights to the format's names.

        Raises a UserError if it has no place for some of them, so that reading the result would give other weights, or
        if they lack what its models have.
        """
        unknown = [name for name in weights if self.table and name.startswith(OURS) and not self.knows(name)]
        theirs = {} if unknown else self.renamed(weights)
        try:
            back = self.to_ours(theirs)
        except UserError as error:  # a table of no square
            raise UserError(f'the weights cannot be converted to the format {self}: {error}') from error
        lost = unknown or [name for name, tensor in weights.items() if name not in back
                           or not _is_same(back[name], tensor)]
        if lost:
            raise UserError(f'the format {self} has no place for {lost[0]} {tuple(weights[lost[0]].shape)}, so the '
                            'weights cannot be converted.')
        if absent := [*self.lacking(theirs), *(name for name in self.needed if name not in theirs)]:
            raise UserError(f'the weights lack {absent[0]}, which the format {self} has, so they cannot be converted.')
        return theirs

    def renamed(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights under their names, where a table has them all."""
        tables = (*(self.gated.items() if _is_gated(weights) else ()), *self.table.items())
        renamed: dict[str, Tensor] = {}
        for name in weights:
            names, parts = next(((_fill(theirs, values), _fill(ours, values)) for theirs, ours in tables
                                 if (values := _match(ours, name)) is not None), ((name,), (name,)))
            if all(part in weights for part in parts):
                joined = torch.cat([weights[part] for part in parts]) if parts[1:] else weights[name]
                renamed |= dict(zip(names, joined.chunk(len(names)) if names[1:] else (joined,), strict=True))
        renamed.pop('', None)  # zeros
        return renamed


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same bits, also of float8, or are equal, as 0 and -0 are."""
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        return False
    return torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (tensor, other))) or torch.equal(tensor, other)


def _is_gated(weights: Mapping[str, Tensor]) -> bool:
    """Returns whether the MLPs of a plain backbone are those of `mlp_mode='swiglu'`."""
    first, second = weights.get('blocks.0.mlp.fc1.weight'), weights.get('blocks.0.mlp.fc2.weight')
    return first is not None and second is not None and len(first) == 2 * second.shape[1]
