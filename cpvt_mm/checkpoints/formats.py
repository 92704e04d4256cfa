"""Other libraries' names of a backbone's parameters, as rules that are written once and read in both directions."""
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cpvt_mm.errors import UserError

PLACEHOLDERS = {'i': r'\d+', 'j': r'\d+', 'p': 'weight|bias'}


@dataclass(frozen=True)
class Rule:
    """One name of the other library and its name here. Both are templates with the placeholders {i}, {j} and {p}.

    Attributes:
        theirs: The name in the other library.
        ours: The name here; two where theirs holds queries, keys and values: that of the queries, then that of the
            keys and values.
    """
    theirs: str
    ours: tuple[str, ...]

    def our_names(self, name: str) -> tuple[str, ...]:
        """Translates one of their names; an empty tuple where the rule is not about it."""
        match = _pattern(self.theirs).fullmatch(name)
        return tuple(template.format(**match.groupdict()) for template in self.ours) if match else ()

    def their_name(self, name: str) -> str | None:
        """Translates one of our names; None where the rule is not about it."""
        matches = (_pattern(template).fullmatch(name) for template in self.ours)
        return next((self.theirs.format(**match.groupdict()) for match in matches if match), None)


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.escape(template)
    for name, expression in PLACEHOLDERS.items():
        pattern = pattern.replace(re.escape(f'{{{name}}}'), f'(?P<{name}>{expression})')
    return re.compile(pattern)


def rules(names: Mapping[str, str | tuple[str, str]]) -> tuple[Rule, ...]:
    """Makes rules of a dict from their names to ours."""
    return tuple(Rule(theirs, (ours,) if isinstance(ours, str) else ours) for theirs, ours in names.items())


@dataclass(frozen=True)
class Format:
    """The names under which checkpoints hold the weights of one backbone. Without rules: this project's names.

    Attributes:
        names: Names of the format itself, as `convert_checkpoint.py --to` takes them.
        backbone: The class it is for, 'PyramidCPVT' or 'CPVT'.
        signature: Names that a file of the format has; no other format has all of them.
        rules: The first that is about a name counts; a name that no rule is about is the same in both.
        norm_eps: The eps that its models have where PyramidCPVT has its `norm_eps`. Defaults to None: unknown.
    """
    names: tuple[str, ...]
    backbone: str
    signature: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    norm_eps: float | None = None

    def __str__(self) -> str:
        return ' or '.join(self.names)

    def our_names(self, name: str) -> tuple[str, ...]:
        """Translates one of their names: to two where their tensor holds queries, keys and values."""
        return next(filter(None, (rule.our_names(name) for rule in self.rules)), (name,))

    def to_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames the weights of a file to the names of the backbone here, and keeps all others as they are.

        Raises:
            UserError: If the file is of a model that the backbone cannot be.
        """
        renamed: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            names = self.our_names(name)
            parts = (tensor,) if len(names) == 1 else tensor.tensor_split([len(tensor) // 3])
            renamed.update(zip(names, parts, strict=True))
        return renamed
    def to_theirs(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames the weights of a backbone here to the names of the format, and keeps all others as they are.

        Raises:
            UserError: If the other library's model cannot be the backbone.
        """
        renamed: dict[str, Tensor] = {}
        for name in weights:
            rule, theirs = next(
                ((rule, theirs) for rule in self.rules if (theirs := rule.their_name(name))), (None, name))
            if theirs not in renamed:
                parts = rule.our_names(theirs) if rule else (name,)
                absent = [part for part in parts if part not in weights]
                if absent:
                    raise UserError(f'{absent[0]} is missing beside {name}, so the weights cannot be converted to the '
                                    f'format {self}: take a whole checkpoint.')
                renamed[theirs] = torch.cat([weights[part] for part in parts]) if len(parts) > 1 else weights[name]
        return renamed
