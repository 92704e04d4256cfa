"""Training one config with one position encoding after another, and testing each at several image sizes."""
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from cpvt_mm.engine import load_config, test, train
from cpvt_mm.errors import UserError, first_line
from cpvt_mm.loading import load_backbone
from cpvt_mm.results import Results
from cpvt_mm.tables import Row
from cpvt_mm.work import Report

from .progress import ReportIterations
from .sizes import Size, set_test_size

Encoding = dict[str, Any] | list[dict[str, Any]] | None


def read_encodings(path: str | Path) -> dict[str, Encoding]:
    """Reads names and values of `position_encoding` from a config file that sets `encodings`.

    Raises:
        UserError: If there is no such file, or it sets no such dict.
    """
    try:
        encodings = Config.fromfile(path).to_dict().get('encodings')
    except Exception as error:  # a config is a program, it can raise anything
        raise UserError(f'{path} cannot be read ({type(error).__name__}: {first_line(error)}): name a config file that '
                        'sets encodings.') from error
    if not isinstance(encodings, dict) or not encodings:
        raise UserError(f'encodings of {path} is {encodings!r}, but must be a dict of names and values of '
                        "position_encoding, such as {'none': None, 'PEG': dict(type='PEG')}.")
    names = {slug(name): name for name in encodings}
    for name in encodings:
        if names[slug(name)] != name:
            raise UserError(f'{name!r} and {names[slug(name)]!r} of {path} would share the folder {slug(name)}: rename '
                            'one.')
    return encodings


def slug(name: str) -> str:
    """A folder's name for an encoding's: small letters, digits and dashes."""
    return re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')


@dataclass(frozen=True)
class Run:
    """One training, and its tests.

    Attributes:
        config: Config file of mmdet or mmseg.
        encoding: Name of the encoding.
        position_encoding: Its config.
        seed: Seed of the training.
        work_dir: The study's folder; this run has a folder of its own inside.
        options: Values of the config to override. Defaults to none.
    """
    config: str | Path
    encoding: str
    position_encoding: Encoding
    seed: int
    work_dir: Path
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.encoding}, seed {self.seed}'

    @property
    def folder(self) -> Path:
        return self.work_dir / slug(self.encoding) / f'seed_{self.seed}'

    def load(self) -> Config:
        """Loads the run's complete config."""
        cfg = load_config(self.config, self.options, work_dir=str(self.folder))
        cfg.model.backbone.position_encoding = self.position_encoding
        cfg.randomness = dict(cfg.get('randomness', {}), seed=self.seed)
        cfg.log_level = 'WARNING'
        return cfg

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The config, without the folder."""
        return {key: value for key, value in self.load().to_dict().items() if key != 'work_dir'}

    def results(self) -> Results:
        """Opens the results in the folder: 'checkpoint' once the training has ended, and metrics by test size.

        Raises:
            UserError: If the folder holds results of another config.
        """
        return Results(self.folder, self.recipe)

    def claim_folder(self) -> None:
        """Checks that the run is possible, and makes the folder one of this config.

        Raises:
            UserError: If the backbone cannot be built, no test size can be set, or the folder holds results of another
                config.
        """
        results = self.results()
        if not results.path.exists():
            cfg = self.load()
            set_test_size(cfg, Size(1, 1))
            load_backbone(cfg)
            results.write()

    def complete(self, sizes: Sequence[int], report: Report) -> None:
        """Trains, or goes on from the last checkpoint, and tests; what is done is not done again.

        Args:
            sizes: Sides of the squares in pixels that test images are resized to fit.
            report: Told of each iteration.
        """
        results = self.results()
        if 'checkpoint' not in results:
            train(self.load(), resume='auto', hooks=[ReportIterations(report, 'training')])
            results.put('checkpoint', dict(name=Path(find_latest_checkpoint(self.folder)).name))
        for size in sizes:
            if str(size) not in results:
                cfg = self.load()
                set_test_size(cfg, Size(size, size))
                metrics = test(cfg, self.folder / results['checkpoint']['name'],
                               hooks=[ReportIterations(report, f'testing at {size} px')])
                results.put(str(size), {name: float(value) for name, value in metrics.items()})

    def rows(self, sizes: Sequence[int]) -> list[Row]:
        """Metrics at each size; none where a test is missing."""
        results = self.results()
        if any(str(size) not in results for size in sizes):
            return []
        return [dict(encoding=self.encoding, seed=self.seed, size=size, **results[str(size)]) for size in sizes]
