"""The matrix of swaps as markdown."""
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions, version

from .fake_data import SIDE
from .matrix import ARCH_TO_BUILD, ARCH_TO_RUN, LIBRARIES, Record, Trial

LIBRARIES_AND_TORCH = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg')
OPTIONAL = ('mmpretrain', 'lap', 'motmetrics', 'skimage', 'sklearn', 'transformers', 'fairscale', 'timm')
OUTCOMES = {
    'built': 'swapped and built',
    'refused': 'refused',
    'failed': 'failed',
    'unavailable': 'fails with its own backbone, too',
    'fragment': 'no model',
}
MEANINGS = f"""\
- *Swapped and built*: swapped for the {ARCH_TO_BUILD} backbone, written, read again, and the model built.
- *Refused*: it cannot take a pyramid of four stages; the reasons are below.
- *Failed*: any other error, or the model does not fit the way in which backbones and necks are probed.
- *Fails with its own backbone, too*: it cannot be read or built here, or not trained on random images, with the same
  error before anything is swapped; the reasons are below.
- *No model*: a file for others to inherit from.
- *Step and prediction*: with the first config of a family that builds, and the {ARCH_TO_RUN} backbone: a training step,
  in which every stage of the backbone learns, and a prediction, on the CPU, for a few images of {SIDE} x {SIDE} pixels
  (others where a model needs them). A tracker that trains nothing only predicts.
"""


def to_markdown(records: Sequence[Record], trials: Sequence[Trial]) -> str:
    """The whole page: a summary, a table of families, and the reasons."""
    return '\n'.join([
        '# The backbone in the configs that mmdet and mmseg ship', '',
        f'Written by `python tools/misc/swap_matrix.py` on the CPU, with {_versions(LIBRARIES_AND_TORCH)}; of the '
        f'packages that some models need, with {_versions(OPTIONAL) or "none"}.', '',
        MEANINGS,
        *_summary(records, trials), '',
        *(line for library in LIBRARIES for line in _families(library, records, trials)),
        *_reasons('Refused', [(r.reason, r) for r in records if r.outcome == 'refused']),
        *_reasons('Failed', [(r.reason, r) for r in [*records, *trials] if r.outcome == 'failed']),
        *_reasons('Fails with its own backbone, too',
                  [(r.reason, r) for r in [*records, *trials] if r.outcome == 'unavailable']),
    ])


def _versions(modules: Sequence[str]) -> str:
    """The distributions of those modules that are installed."""
    distributions = packages_distributions()
    found = [distributions[module][0] for module in modules if module in distributions]
    return ', '.join(f'{name} {version(name)}' for name in found)


def _summary(records: Sequence[Record], trials: Sequence[Trial]) -> Iterator[str]:
    yield '| configs | number | ' + ' | '.join(OUTCOMES.values()) + ' | families that build | step and prediction |'
    yield '|---' * (len(OUTCOMES) + 4) + '|'
    for library in LIBRARIES:
        of_library = [record for record in records if record.library == library]
        tried = Counter(trial.outcome for trial in trials if trial.library == library)
        if of_library:
            yield _counts(library, of_library) + f' {tried.total()} | {tried["ran"]} |'
            yield _counts(f'{library}, of a strided pyramid', [r for r in of_library if r.has_pyramid]) + ' | |'


def _counts(name: str, records: Sequence[Record]) -> str:
    found = Counter(record.outcome for record in records)
    return f'| {name} | {len(records)} | ' + ' | '.join(str(found[outcome] or '') for outcome in OUTCOMES) + ' |'


def _families(library: str, records: Sequence[Record], trials: Sequence[Trial]) -> Iterator[str]:
    families: dict[str, list[Record]] = {}
    for record in records:
        if record.library == library:
            families.setdefault(record.family, []).append(record)
    if not families:
        return
    tried = {trial.family: trial for trial in trials if trial.library == library}
    yield f'## {library}\n'
    yield '| family | configs | ' + ' | '.join(OUTCOMES.values()) + ' | step and prediction |'
    yield '|---' * (len(OUTCOMES) + 3) + '|'
    for family, found in families.items():
        yield _counts(family, found) + f' {_say(tried[family]) if family in tried else ""} |'
    yield ''


def _say(trial: Trial) -> str:
    return {'ran': 'ran', 'failed': 'failed', 'unavailable': OUTCOMES['unavailable']}[trial.outcome]


def _reasons(title: str, found: Sequence[tuple[str, Record | Trial]]) -> Iterator[str]:
    """One item a reason, with the configs that have it."""
    if not found:
        return
    by_reason: dict[str, list[str]] = {}
    for reason, record in found:
        by_reason.setdefault(reason, []).append(f'{record.library}::{record.config}')
    yield f'## {title}\n'
    for reason, configs in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f'- {len(configs)}: {reason} ' + ', '.join(f'`{config}`' for config in configs[:3]) + (
            f' and {len(configs) - 3} more' if configs[3:] else '')
    yield ''
