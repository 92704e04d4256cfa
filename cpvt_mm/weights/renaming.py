"""Translates parameter names of other libraries, in both directions, by rules."""
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cpvt_mm.errors import UserError

PLACEHOLDERS = {'i': r'\d+', 'j': r'\d+', 'p': 'weight|bias'}

# A name in the other library and its names here, as templates with the placeholders {i}, {j} and {p}. If their tensor
# contains queries, keys and values, there are two names here: of the queries, and of the keys and values.
Rule = tuple[str, tuple[str, ...]]


def rules(names: Mapping[str, str | tuple[str, str]]) -> tuple[Rule, ...]:
    """Makes rules from a dict of their names to ours."""
    return tuple((theirs, (ours,) if isinstance(ours, str) else ours) for theirs, ours in names.items())


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for name, expression in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(f'{{{name}}}'), f'(?P<{name}>{expression})')
    return re.compile(pattern)


@dataclass(frozen=True)
class Format:
    """The parameter names of one backbone in the checkpoints of a library.

    A format without rules has the names of this package.

    Attributes:
        names: Names of the format itself, as accepted by `convert_checkpoint.py --to`.
        backbone: The class it is for, 'PyramidCPVT' or 'CPVT'.
        signature: Tensor names that every file of the format has; no other format has all of them.
        rules: The first matching rule applies. Names without a matching rule are the same in both. Defaults to none.
        norm_eps: The `norm_eps` of PyramidCPVT that corresponds to the format's models. Defaults to None: unknown.
    """
    names: tuple[str, ...]
    backbone: str
    signature: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    norm_eps: float | None = None

    def __str__(self) -> str:
        return ' or '.join(self.names)

    def our_names(self, name: str) -> tuple[str, ...]:
        """Translates one of their names; returns two names if their tensor contains queries, keys and values."""
        for theirs, ours in self.rules:
            if match := _pattern(theirs).fullmatch(name):
                return tuple(template.format(**match.groupdict()) for template in ours)
        return (name,)

    def their_name(self, name: str) -> str | None:
        """Translates one of our names; returns None if no rule matches."""
        for theirs, ours in self.rules:
            for template in ours:
                if match := _pattern(template).fullmatch(name):
                    return theirs.format(**match.groupdict())
        return None

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames the weights of a file to the names of the backbone here; keeps all other names.

        Raises:
            UserError: If the file is of a model that the backbone cannot represent.
        """
        renamed: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            names = self.our_names(name)
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
            theirs = self.their_name(name)
            parts = self.our_names(theirs) if theirs else (name,)
            absent = [part for part in parts if part not in weights]
            if absent:
                raise UserError(f'the weights have {name} but not {absent[0]}, so they cannot be converted to the '
                                f'format {self}: use a complete checkpoint.')
            renamed[theirs or name] = torch.cat([weights[part] for part in parts]) if parts[1:] else weights[name]
        return renamed
