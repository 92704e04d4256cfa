"""Translates the parameter names of other libraries to the names here, by tables of names."""
import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openmmlab_tools.errors import UserError

# In templates of names. Numbers in {i1} and {j1} count from 1, and become {i} and {j} here.
PLACEHOLDERS = {'i': r'\d+', 'j': r'\d+', 'i1': r'[1-9]\d*', 'j1': r'[1-9]\d*', 'k': '[12]', 'q': 'proj|norm',
                'p': 'weight|bias'}
COUNT_FROM_1 = {'i1': 'i', 'j1': 'j'}
# The table of a `LearnablePE` that is the first encoding of a backbone, or of a stage of a pyramid.
POSITION_TABLE = re.compile(r'(stages\.\d+\.)?position_encoding\.0\.table')

# A template of a name, or several: tensors with several names in a library are joined, and None stands for zeros, for
# which the library has no tensor. The result is split if there are two names here: queries, and keys with values.
Names = str | tuple[str | None, ...]
Table = Mapping[Names, Names]  # names in a library -> names here


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for name, expression in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(f'{{{name}}}'), f'(?P<{name}>{expression})')
    return re.compile(pattern)


def _parts(names: Names) -> tuple[str | None, ...]:
    return (names,) if isinstance(names, str) else names


def _match(templates: Names, name: str) -> dict[str, str] | None:
    """Returns the values of the placeholders in the first template that a name matches; None if it matches none."""
    matches = (_pattern(template).fullmatch(name) for template in _parts(templates) if template)
    values = next((match.groupdict() for match in matches if match), None)
    if values is None:
        return None
    return {**values, **{here: str(int(values[key]) - 1) for key, here in COUNT_FROM_1.items() if key in values}}


def _fill(templates: Names, values: dict[str, str]) -> tuple[str, ...]:
    """Returns the names of templates; '' for None."""
    return tuple(template.format(**values) if template else '' for template in _parts(templates))


def below(prefix: str, table: Table) -> dict[Names, Names]:
    """Returns a table with a prefix before the library's names."""
    return {prefix + names if isinstance(names, str) else tuple(name and prefix + name for name in names): names_here
            for names, names_here in table.items()}


def block(prefix: str, prefix_here: str, qkv: Names | None = None, proj: str = 'attn.proj', norm: str = 'norm{k}',
          fc: tuple[str, str] = ('mlp.fc1', 'mlp.fc2'), sr: tuple[str, str] | None = None, conv: str | None = None,
          scale: str | None = None) -> dict[Names, Names]:
    """Returns the table of a transformer block, for the library's prefix and the prefix here.

    Each argument is the library's name of a layer, and defaults to the name here, or to None for a layer that its
    blocks do not have.

    Args:
        prefix: The library's prefix, such as 'layers.{i}.'.
        prefix_here: The prefix here, such as 'blocks.{i}.'.
        qkv: Queries, keys and values. Defaults to None: two layers 'attn.q' and 'attn.kv', as here.
        proj: The output projection of attention.
        norm: The two norms, where {k} is 1 or 2.
        fc: The two layers of the MLP.
        sr: The spatial reduction and its norm.
        conv: The convolution in the MLP.
        scale: The layer scales, with {k}, as the name of a parameter.
    """
    queries = ('attn.q.{p}', 'attn.kv.{p}')
    table: dict[Names, Names] = {qkv: queries} if qkv else {name: name for name in queries}
    layers = {'norm{k}': norm, 'attn.proj': proj, 'mlp.fc1': fc[0], 'mlp.fc2': fc[1], 'mlp.conv': conv}
    if sr:
        layers |= {'attn.sr.proj': sr[0], 'attn.sr.norm': sr[1]}
    table |= {f'{name}.{{p}}': f'{name_here}.{{p}}' for name_here, name in layers.items() if name}
    if scale:
        table[scale] = 'ls{k}.gamma'
    return {names: prefix_here + names_here if isinstance(names_here, str)
            else tuple(prefix_here + str(name) for name in names_here)
            for names, names_here in below(prefix, table).items()}


def split_table(table: Tensor, extra: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Splits a position table `(1, E + side * side, C)` into rows of E extra tokens, and `(side, side, C)` of cells.

    E is the first of `extra` that fits: no two squares differ by 1 or 2, so the number of rows determines E. Raises a
    UserError if none fits.
    """
    rows = table[0] if table.dim() == 3 and len(table) == 1 else table[:0]
    for count in extra:
        side = math.isqrt(max(len(rows) - count, 0))
        if side and side**2 == len(rows) - count:
            return rows[:count], rows[count:].unflatten(0, (side, side))
    raise UserError(f"the checkpoint's position table has shape {tuple(table.shape)}, but must be (1, rows, channels) "
                    f'with {max(extra)} rows for class tokens and a square of others: use a checkpoint that was '
                    'trained on square images.')


@dataclass(frozen=True)
class Format:
    """The parameter names of one backbone in a library's checkpoints; names in no table are the same here."""
    name: str  # in messages
    backbone: str  # 'PyramidCPVT' or 'CPVT'
    signature: tuple[str, ...]  # names in every file, '|' between alternatives; the last match in `FORMATS` wins
    table: Table = field(default_factory=dict)  # of several rules for a name, the first whose tensors are there applies
    norm_eps: float | None = None  # `norm_eps` of the format's models; None: unknown
    foreign: str = ''  # a regular expression for names of parts that the backbone here does not have

    def __str__(self) -> str:
        return self.name

    def matches(self, names: Collection[str], prefix: str) -> bool:
        """Returns whether all names of the signature are among names of tensors, below a prefix."""
        return all(any(prefix + name in names for name in part.split('|')) for part in self.signature)

    def translate_name(self, name: str) -> tuple[str, ...]:
        """Translates a name of the library; returns two names if the tensor contains queries, keys and values."""
        return next((names_here for _, names_here in self._rules(name)), (name,))

    def _rules(self, name: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Yields which names are joined with a name of the library, '' for zeros, and the names of the result here."""
        for names, names_here in self.table.items():
            if (values := _match(names, name)) is not None:
                yield _fill(names, values), _fill(names_here, values)

    def translate(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights of a library's backbone under the names here; other names stay.

        Raises a UserError if the library's model has parts that the backbone here does not have.
        """
        if self.foreign and (foreign := [name for name in weights if re.search(self.foreign, name)]):
            raise UserError(f'the checkpoint is of a model with {foreign[0]}, which {self.backbone} does not have: use '
                            'weights of a model without it.')
        translated: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            sources, names_here = next((rule for rule in self._rules(name)
                                        if all(part in weights for part in rule[0] if part)), ((name,), (name,)))
            if name == sources[0]:
                if sources[1:]:
                    tensor = torch.cat([weights[part] if part else torch.zeros_like(tensor) for part in sources])
                parts = (tensor,) if len(names_here) == 1 else tensor.tensor_split([len(tensor) // 3])
                translated.update(zip(names_here, parts, strict=True))
        return translated
