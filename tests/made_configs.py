"""Configs that new-config writes for small data."""
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_mm.data_config import new_config
from openmmlab_tools.engine import load_config
from tests.openmmlab_tools.readers.layouts import NO_WORKERS, Write


def made(write: Write | None, root: Path, *args: Any, out: str = 'my.py', **options: Any) -> tuple[Config, list[str]]:
    """Writes data to `root/data`, unless they are there, and a config for them; returns the config and what is told.

    The backbone is nano, which has no weights to fetch, unless another one is given; the work dir is `root/work`.
    """
    if write:
        write(root / 'data')
    arch = {} if {'arch', 'base'} & options.keys() or len(args) > 1 else dict(arch='nano')
    lines = new_config(root / 'data', root / out, *args, **arch, **options)
    return load_config(root / out, NO_WORKERS, str(root / 'work')), lines
