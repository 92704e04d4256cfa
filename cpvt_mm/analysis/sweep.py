"""Testing one checkpoint at several image sizes.

Every result is a file that is written when it is whole: a sweep that was interrupted, or is asked for more, goes on
from what is there.
"""
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_mm.checkpoints.reading import sha256
from cpvt_mm.engine import load_config, test
from cpvt_mm.files import write_text

from .progress import ReportIterations
from .recipe import check_recipe, write_recipe
from .report import Row
from .sizes import Size, set_test_size
from .windows import Mode, set_mode


@dataclass(frozen=True)
class Sweep:
    """A config and a checkpoint, and the folder of their results.

    Attributes:
        config: Config file of mmdet or mmseg.
        checkpoint: Path or URL.
        folder: Made with the first result.
        options: Values of the config to override. Defaults to none.
    """
    config: str | Path
    checkpoint: str
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Config:
        """The config, complete."""
        cfg = load_config(self.config, self.options, work_dir=str(self.folder))
        cfg.log_level = 'WARNING'
        # Workers that outlast their only pass end in a destructor, which takes seconds and swallows Ctrl-C.
        cfg.test_dataloader.persistent_workers = False
        return cfg

    def recipe(self) -> dict[str, Any]:
        """What all results are of.

        Raises:
            UserError: If the config or checkpoint cannot be read.
        """
        config = {key: value for key, value in self.load().to_dict().items() if key != 'work_dir'}
        return dict(checkpoint=sha256(self.checkpoint), config=config)

    def check_folder(self) -> None:
        """Raises a UserError if the folder holds results of another config or checkpoint."""
        check_recipe(self.folder, self.recipe(), 'config or checkpoint')

    def test(self, size: Size, mode: Mode, on_iteration: Callable[[int, int], None]) -> None:
        """Tests at a size, and writes the result.

        Args:
            size: Of `set_test_size`.
            mode: Of `resolve_mode`.
            on_iteration: Called with the iterations that are done and those there are.

        Raises:
            UserError: If the config has no such size, or the checkpoint does not fit.
        """
        cfg, recipe = self.load(), self.recipe()
        set_test_size(cfg, size)
        set_mode(cfg, mode)
        metrics = test(cfg, self.checkpoint, hooks=[ReportIterations(on_iteration)])
        # Only now: a test that fails leaves the folder to a corrected one.
        write_recipe(self.folder, recipe)
        write_text(self._file(size, mode), json.dumps({name: float(value) for name, value in metrics.items()}))

    def has(self, size: Size, mode: Mode) -> bool:
        """Whether that test is done."""
        return self._file(size, mode).exists()

    def row(self, size: Size, mode: Mode) -> Row:
        """Mode, where there is one, size and metrics of a test that is done."""
        return {**({'mode': str(mode)} if mode else {}), 'size': str(size),
                **json.loads(self._file(size, mode).read_text())}

    def _file(self, size: Size, mode: Mode) -> Path:
        parts = ['test', *str(mode or '').split(), str(size)]
        return self.folder / f'{"_".join(parts)}.json'


def curves(rows: Sequence[Row], metrics: Sequence[str], value: str) -> list[Row]:
    """Rows of `Sweep`, each as one row a metric: `metric` with the mode, if there is one, `size` and `value`."""
    return [{'metric': f'{metric}, {row["mode"]}' if 'mode' in row else metric, 'size': row['size'], value: row[metric]}
            for metric in metrics for row in rows]
