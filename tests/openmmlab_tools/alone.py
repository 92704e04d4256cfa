"""A plugin for pytest, `-p tests.openmmlab_tools.alone`: the other packages of this repository cannot be imported."""
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

REFUSED = ('cpvt_mm', 'lab', 'projects')


class Refusal(MetaPathFinder):
    """Refuses to find the packages, as if they were not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name.partition('.')[0] in REFUSED:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)


sys.meta_path.insert(0, Refusal())
