"""One training run of a study, and its tests."""
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from cpvt_mm.engine import load_config, test, train
from cpvt_mm.loading import backbone_config, build
from cpvt_mm.results import Results
from cpvt_mm.tables import Row
from cpvt_mm.work import Report

from .progress import ReportIterations, TimeIterations
from .study import Options, Variant, set_options, slug


@dataclass(frozen=True)
class Run:
    """One training run, and its tests.

    Attributes:
        name: Name of the variant.
        variant: The config and options to train.
        seed: Seed of the training.
        work_dir: The study's folder, which contains a folder for this run.
        overrides: Config values to override in all variants, with dotted keys. Defaults to none.
    """
    name: str
    variant: Variant
    seed: int
    work_dir: Path
    overrides: Options = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.name}, seed {self.seed}'

    @property
    def folder(self) -> Path:
        """The folder of this run."""
        return self.work_dir / slug(self.name) / f'seed_{self.seed}'

    def load(self, options: Options = {}) -> Config:
        """Loads the run's complete config, with further options."""
        cfg = load_config(self.variant.config, self.overrides, work_dir=str(self.folder))
        set_options(cfg, {**self.variant.options, **options})
        cfg.randomness = dict(cfg.get('randomness', {}), seed=self.seed)
        cfg.log_level = 'WARNING'
        return cfg

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The complete config without the folder; it determines the results."""
        return {key: value for key, value in self.load().to_dict().items() if key != 'work_dir'}

    def results(self) -> Results:
        """Opens the results in the folder: 'backbone', 'checkpoint' (after the end of training), and metrics of tests.

        Raises:
            UserError: If the folder has results of another config.
        """
        return Results(self.folder, self.recipe)

    def claim_folder(self, tests: Mapping[str, Options]) -> None:
        """Checks that the run is possible, and reserves the folder for this config.

        Raises:
            UserError: If the backbone cannot be built, a test's options do not fit, or the folder has results of
                another config.
        """
        results, cfg = self.results(), self.load()
        backbone = build(cfg, backbone_config(cfg))
        for options in tests.values():
            set_options(cfg, options)
        if 'backbone' not in results:
            results.put('backbone', dict(parameters=sum(parameter.numel() for parameter in backbone.parameters())))

    def complete(self, tests: Mapping[str, Options], report: Report) -> None:
        """Trains, or resumes from the last checkpoint, and tests. Completed steps are skipped.

        Args:
            tests: Options of each test, by name.
            report: Called after each iteration.
        """
        results = self.results()
        if 'checkpoint' not in results:
            timer = TimeIterations()
            train(self.load(), resume='auto', hooks=[timer, ReportIterations(report, 'training')])
            results.put('checkpoint', dict(name=Path(find_latest_checkpoint(self.folder)).name,
                                           seconds_per_iteration=timer.median()))
        for name, options in tests.items():
            if _key(options) not in results:
                metrics = test(self.load(options), self.folder / results['checkpoint']['name'],
                               hooks=[ReportIterations(report, f'testing, {name}')])
                results.put(_key(options), {metric: float(value) for metric, value in metrics.items()})

    def rows(self, tests: Mapping[str, Options]) -> list[Row]:
        """Returns a row with the metrics for each test; an empty list if a test is missing."""
        results = self.results()
        if any(_key(options) not in results for options in tests.values()):
            return []
        return [dict(variant=self.name, seed=self.seed, test=name, parameters=results['backbone']['parameters'],
                     seconds_per_iteration=results['checkpoint']['seconds_per_iteration'], **results[_key(options)])
                for name, options in tests.items()]


def _key(options: Options) -> str:
    """Returns the key of a test's results, which depends on its options, but not on its name."""
    return f'test {json.dumps(options, sort_keys=True, default=str)}'
