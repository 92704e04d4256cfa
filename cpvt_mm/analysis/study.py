"""Studies: variants to train, and tests of all variants."""
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_mm.errors import UserError, first_line

# Dotted keys of a config, and their new values.
Options = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One variant of a study.

    Attributes:
        config: Config file of mmdet, mmseg or mmpretrain.
        options: Config values to replace.
    """
    config: Path
    options: Options


@dataclass(frozen=True)
class Study:
    """Variants to compare, and the tests and metrics for all of them.

    Attributes:
        variants: Variants by name.
        tests: Config values to replace in each test, by name of the test.
        metrics: Names of the metrics in the table and the figure.
    """
    variants: dict[str, Variant]
    tests: dict[str, Options]
    metrics: list[str]


def read_study(path: str | Path) -> Study:
    """Reads a study from a config file with these variables:

    - `variants`: a dict from names to dicts with `config`, `options` or both.
    - `config`: the config file of variants without one. Paths of configs are relative to the study's folder.
    - `tests`: a dict from names to options. Defaults to one test of the unchanged config.
    - `metrics`: a list of names.

    Options are dicts with dotted keys. A value replaces the old value and is not merged with it.

    Raises:
        UserError: If the file cannot be read, or a variable is missing, unknown or ambiguous.
    """
    try:
        content = Config.fromfile(path).to_dict()
    except Exception as error:  # a config is a program and can raise any error
        raise UserError(f'study {path} cannot be read ({type(error).__name__}: {first_line(error)}): pass a config '
                        'file that sets variants and metrics.') from error
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
    """Replaces values of a config, in place.

    Raises:
        UserError: If the parent of a key does not exist.
    """
    for key, value in options.items():
        *path, last = key.split('.')
        node = cfg
        try:
            for part in path:
                node = node[int(part) if isinstance(node, list) else part]
            node[int(last) if isinstance(node, list) else last] = value
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(f'option {key} of the study does not fit config {cfg.filename} ({type(error).__name__}: '
                            f'{first_line(error)}): correct the key.') from error
