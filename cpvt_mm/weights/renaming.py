"""Translates parameter names of other libraries, in both directions, by rules."""
import functools
import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openmmlab_runs.errors import UserError

PLACEHOLDERS = {'i': r'\d+', 'j': r'\d+', 'p': 'weight|bias'}

# Names in the other library and here, as templates with the placeholders {i}, {j} and {p}. Several tensors of a side
# are joined, and the whole is split into those of the other side. Theirs have equal sizes; None stands for zeros, for
# which the library has no tensor. If there are two names here, these are of the queries, and of the keys and values.
Names = str | tuple[str | None, ...]
Rule = tuple[tuple[str | None, ...], tuple[str, ...]]


def rules(names: Mapping[Names, str | tuple[str, str]]) -> tuple[Rule, ...]:
    """Makes rules from a dict of their names to ours."""
    return tuple(((theirs,) if isinstance(theirs, str) else theirs, (ours,) if isinstance(ours, str) else ours)
                 for theirs, ours in names.items())


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for name, expression in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(f'{{{name}}}'), f'(?P<{name}>{expression})')
    return re.compile(pattern)


def _match(templates: Sequence[str | None], name: str) -> dict[str, str] | None:
    """Returns the values of the placeholders in the first template that a name has; None if it has none of them."""
    matches = (_pattern(template).fullmatch(name) for template in templates if template)
    return next((match.groupdict() for match in matches if match), None)


def _fill(templates: Sequence[str | None], values: dict[str, str]) -> tuple[str, ...]:
    """Returns the names of templates; '' for None."""
    return tuple(template.format(**values) if template else '' for template in templates)


@dataclass(frozen=True)
class Format:
    """The parameter names of one backbone in the checkpoints of a library.

    A format without rules has the names of this package.

    Attributes:
        names: Names of the format itself, as accepted by `convert_checkpoint.py --to`.
        backbone: The class it is for, 'PyramidCPVT' or 'CPVT'.
        signature: Tensor names that every file of the format has; '|' separates alternatives. If a file has those of
            several formats, it is of the last one in `FORMATS`.
        rules: The first matching rule applies. Names without a matching rule are the same in both. Defaults to none.
        norm_eps: The `norm_eps` that corresponds to the format's models. Defaults to None: unknown.
    """
    names: tuple[str, ...]
    backbone: str
    signature: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    norm_eps: float | None = None

    def __str__(self) -> str:
        return ' or '.join(self.names)

    def is_in(self, names: Collection[str], prefix: str = '') -> bool:
        """Returns whether names below a prefix are of this format."""
        return all(any(prefix + name in names for name in names_.split('|')) for names_ in self.signature)

    def our_names(self, name: str) -> tuple[str, ...]:
        """Translates one of their names; returns two names if their tensor contains queries, keys and values."""
        for theirs, ours in self.rules:
            if (values := _match(theirs, name)) is not None:
                return _fill(ours, values)
        return (name,)

    def _sources(self, name: str, weights: Container[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names that are joined with one of theirs, '' for zeros, and our names of the result."""
        for theirs, ours in self.rules:
            if (values := _match(theirs, name)) is not None:
                parts = _fill(theirs, values)
                if all(part in weights for part in parts if part):
                    return parts, _fill(ours, values)
        return (name,), (name,)

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames the weights of a file to the names of the backbone here; keeps all other names.

        Raises:
            UserError: If the file is of a model that the backbone cannot represent.
        """
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
        """Renames the weights of a backbone here to the names of the format; keeps all other names.

        Raises:
            UserError: If the other library's model cannot represent the backbone.
        """
        renamed: dict[str, Tensor] = {}
        for name in weights:
            matches = ((theirs, ours, _match(ours, name)) for theirs, ours in self.rules)
            names, parts = next(((_fill(theirs, values), _fill(ours, values))
                                 for theirs, ours, values in matches if values is not None), ((name,), (name,)))
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
