"""Studies: variants to train, tests of all variants, and one training run with its tests."""
import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.runner import find_latest_checkpoint

from openmmlab_tools.checkpoints.loading import backbone_config, build
from openmmlab_tools.engine import load_config, test, train
from openmmlab_tools.errors import UserError, as_sentence

from .results import Results, Row

# Dotted keys of a config, and their new values.
Options = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One variant of a study: a config file of mmdet, mmseg or mmpretrain, and config values to replace."""
    config: Path
    options: Options


@dataclass(frozen=True)
class Study:
    """Variants to compare, by name; the options of each test, by name; and the metrics for the table and the figure."""
    variants: dict[str, Variant]
    tests: dict[str, Options]
    metrics: list[str]


def read_study(path: str | Path) -> Study:
    """Reads a study from a config file with these variables:

    - `variants`: a dict from names to dicts with `config`, `options` or both.
    - `config`: the config file of variants without a config. Paths of configs are relative to the study's folder.
    - `tests`: a dict from names to options. Defaults to one test of the unchanged config.
    - `metrics`: a list of names.

    Options are dicts with dotted keys. A value replaces the old value and is not merged with it.

    Raises:
        UserError: If the file cannot be read, or a variable is missing, unknown or ambiguous.
    """
    with as_sentence(f'study {path} cannot be read', 'pass a config file that sets variants and metrics'):
        content = Config.fromfile(path).to_dict()
    for key, kind in (('variants', dict), ('metrics', list)):
        if not isinstance(content.get(key), kind) or not content[key]:
            raise UserError(f'{key} of study {path} is {content.get(key)!r}, but must be a non-empty {kind.__name__}.')
    variants = {name: _variant(name, value, content.get('config'), Path(path))
                for name, value in content['variants'].items()}
    folders = {slug(name): name for name in variants}
    for name in variants:
        if folders[slug(name)] != name:
            raise UserError(f'variants {name!r} and {folders[slug(name)]!r} of study {path} would share the folder '
                            f'{slug(name)}: rename one.')
    return Study(variants, content.get('tests') or {'test': {}}, content['metrics'])


def _variant(name: str, value: object, config: str | None, path: Path) -> Variant:
    if not isinstance(value, Mapping) or not value.keys() <= {'config', 'options'}:
        raise UserError(f'variant {name!r} of study {path} is {value!r}, but must be a dict with the keys config, '
                        'options or both.')
    config = value.get('config', config)
    if config is None:
        raise UserError(f'variant {name!r} of study {path} has no config: set its own, or one for the study.')
    return Variant(path.parent / config, value.get('options', {}))


def slug(name: str) -> str:
    """Converts the name of a variant to a folder name of lowercase letters, digits and dashes."""
    return re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')


def set_options(cfg: Config, options: Options) -> None:
    """Replaces values of a config, in place; the parent of each key must exist."""
    for key, value in options.items():
        *path, last = key.split('.')
        node = cfg
        with as_sentence(f'option {key} of the study does not fit config {cfg.filename}', 'correct the key'):
            for part in path:
                node = node[int(part) if isinstance(node, list) else part]
            node[int(last) if isinstance(node, list) else last] = value


@dataclass(frozen=True)
class Run:
    """One training run of a variant, and its tests; `overrides` are config values to replace in all variants."""
    name: str
    variant: Variant
    seed: int
    work_dir: Path
    overrides: Options = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.name}, seed {self.seed}'

    @property
    def folder(self) -> Path:
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
        """Opens the results: 'backbone', 'checkpoint' (after the end of training), and metrics of tests."""
        return Results(self.folder, self.recipe)

    def claim_folder(self, tests: Mapping[str, Options]) -> None:
        """Checks that the backbone can be built and the tests' options fit, and reserves the folder for this config."""
        results, cfg = self.results(), self.load()
        backbone = build(cfg, backbone_config(cfg))
        for options in tests.values():
            set_options(cfg, options)
        if 'backbone' not in results:
            results.put('backbone', dict(parameters=sum(parameter.numel() for parameter in backbone.parameters())))

    def complete(self, tests: Mapping[str, Options]) -> None:
        """Trains, or resumes from the last checkpoint, and tests. Completed steps are skipped."""
        results = self.results()
        if 'checkpoint' not in results:
            train(self.load(), resume='auto')
            # With data loading; the median is robust to validation and checkpoints.
            times = MessageHub.get_current_instance().get_scalar('train/time').data[0]
            results.put('checkpoint', dict(name=Path(find_latest_checkpoint(self.folder)).name,
                                           seconds_per_iteration=float(statistics.median(times))))
        for options in tests.values():
            if _key(options) not in results:
                metrics = test(self.load(options), self.folder / results['checkpoint']['name'])
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
