"""Tests one checkpoint at several image sizes."""
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_mm.engine import load_config, test
from cpvt_mm.results import Results
from cpvt_mm.tables import Row
from cpvt_mm.weights.reading import sha256
from cpvt_mm.work import Report

from .progress import ReportIterations
from .sizes import Size, set_test_size
from .windows import Mode, set_mode


@dataclass(frozen=True)
class Sweep:
    """A config and a checkpoint, and the folder of their results.

    Attributes:
        config: Config file of mmdet or mmseg.
        checkpoint: Path or URL.
        folder: The folder of the results; created with the first result.
        options: Config values to override. Defaults to none.
    """
    config: str | Path
    checkpoint: str
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Config:
        """Loads the complete config."""
        cfg = load_config(self.config, self.options, work_dir=str(self.folder))
        cfg.log_level = 'WARNING'
        # Persistent workers end in a destructor, which takes seconds and ignores Ctrl-C; a test needs one pass only.
        cfg.test_dataloader.persistent_workers = False
        return cfg

    def results(self) -> Results:
        """Opens the results in the folder.

        Raises:
            UserError: If the config or checkpoint cannot be read, or the folder has results of another one.
        """
        config = {key: value for key, value in self.load().to_dict().items() if key != 'work_dir'}
        return Results(self.folder, dict(checkpoint=sha256(self.checkpoint), config=config))

    def test(self, size: Size, mode: Mode, report: Report) -> Row:
        """Tests at one size.

        Args:
            size: See `set_test_size`.
            mode: See `resolve_mode`.
            report: Called after each iteration.

        Returns:
            The mode (if it is not None), the size, and the metrics.

        Raises:
            UserError: If the size cannot be set, or the checkpoint does not fit.
        """
        cfg = self.load()
        set_test_size(cfg, size)
        set_mode(cfg, mode)
        metrics = test(cfg, self.checkpoint, hooks=[ReportIterations(report, 'testing')])
        return {**({'mode': str(mode)} if mode else {}), 'size': str(size),
                **{name: float(value) for name, value in metrics.items()}}


def curves(rows: Sequence[Row], metrics: Sequence[str], value: str) -> list[Row]:
    """Converts each row of `Sweep` to one row per metric: `metric` (with the mode, if any), `size` and `value`."""
    return [{'metric': f'{metric}, {row["mode"]}' if 'mode' in row else metric, 'size': row['size'], value: row[metric]}
            for metric in metrics for row in rows]
