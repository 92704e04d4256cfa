"""The matrix of swaps as markdown."""
from collections import Counter
from collections.abc import Iterator, Sequence

from lab.stock_configs.batches import SIDE
from lab.stock_configs.matrix import ARCHS_TO_BUILD, ARCHS_TO_RUN, LIBRARIES, Record
from lab.stock_configs.versions import LIBRARIES_AND_TORCH, OPTIONAL, versions

OUTCOMES = {
    'built': 'PyramidCPVT swapped in',
    'plain': 'CPVT swapped in',
    'refused': 'refused',
    'failed': 'failed',
    'unavailable': 'fails with its own backbone, too',
    'fragment': 'no model',
}
MEANINGS = f"""\
- *PyramidCPVT swapped in*: the tool swaps in arch {ARCHS_TO_BUILD['PyramidCPVT']}, writes the config, reads it again
  and builds the model.
- *CPVT swapped in*: the same with the plain backbone of arch {ARCHS_TO_BUILD['CPVT']}, where all maps have stride 16.
- *Refused*: the config can take neither. The reasons against PyramidCPVT are below.
- *Failed*: any other error, or the model does not fit the way in which backbones and necks are probed.
- *Fails with its own backbone, too*: the config cannot be read, built or trained on random images here, and the error
  is the same before anything is swapped. The reasons are below.
- *No model*: a file for others to inherit from.
- *Step and prediction*: a training step and a prediction on the CPU, with a few images of {SIDE} x {SIDE} pixels or
  as the model needs. In the step, every stage or block of the backbone learns. The config is the first of its family
  that builds, with PyramidCPVT of arch {ARCHS_TO_RUN['PyramidCPVT']} or CPVT of arch {ARCHS_TO_RUN['CPVT']}. A
  tracker that trains nothing only predicts.
- *Of a strided pyramid*: the backbone of the config is a ResNet or one of its kin, HRNet, Swin, PVT, ConvNeXt, MiT or
  Twins.
"""


def to_markdown(records: Sequence[Record]) -> str:
    """Writes the whole page: a summary, a table of families, and the reasons."""
    return '\n'.join([
        '# The backbones in the configs that mmdet and mmseg ship', '',
        f'Written by `python -m lab.maintenance.swap_matrix` on the CPU, with {versions(LIBRARIES_AND_TORCH)}. Some '
        f'models need further packages: {versions(OPTIONAL) or "none was installed"}.', '',
        MEANINGS,
        *_summary(records), '',
        *(line for library in LIBRARIES for line in _families(library, records)),
        *_reasons('Refused', 'refused', records),
        *_reasons('Failed', 'failed', records),
        *_reasons('Fails with its own backbone, too', 'unavailable', records),
    ])


def _summary(records: Sequence[Record]) -> Iterator[str]:
    yield '| configs | number | ' + ' | '.join(OUTCOMES.values()) + ' | families that build | step and prediction |'
    yield '|---' * (len(OUTCOMES) + 4) + '|'
    for library in LIBRARIES:
        of_library = [record for record in records if record.library == library]
        tried = Counter(record.trial for record in of_library if record.trial)
        if of_library:
            yield _counts(library, of_library) + f' {tried.total()} | {tried["ran"]} |'
            yield _counts(f'{library}, of a strided pyramid', [r for r in of_library if r.has_pyramid]) + ' | |'


def _counts(name: str, records: Sequence[Record]) -> str:
    found = Counter(record.outcome for record in records)
    return f'| {name} | {len(records)} | ' + ' | '.join(str(found[outcome] or '') for outcome in OUTCOMES) + ' |'


def _families(library: str, records: Sequence[Record]) -> Iterator[str]:
    families: dict[str, list[Record]] = {}
    for record in records:
        if record.library == library:
            families.setdefault(record.family, []).append(record)
    if not families:
        return
    yield f'## {library}\n'
    yield '| family | configs | ' + ' | '.join(OUTCOMES.values()) + ' | step and prediction |'
    yield '|---' * (len(OUTCOMES) + 3) + '|'
    for family, found in families.items():
        trial = next((record.trial for record in found if record.trial), '')
        yield _counts(family, found) + f' {OUTCOMES.get(trial, trial)} |'
    yield ''


def _reasons(title: str, outcome: str, records: Sequence[Record]) -> Iterator[str]:
    """Writes one item for each reason, with the configs that have it."""
    found = [*((record.reason, record) for record in records if record.outcome == outcome),
             *((record.trial_reason, record) for record in records if record.trial == outcome)]
    by_reason: dict[str, list[str]] = {}
    for reason, record in found:
        by_reason.setdefault(reason, []).append(f'{record.library}::{record.config}')
    if found:
        yield f'## {title}\n'
    for reason, configs in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f'- {len(configs)}: {reason} ' + ', '.join(f'`{config}`' for config in configs[:3]) + (
            f' and {len(configs) - 3} more' if configs[3:] else '')
    if found:
        yield ''
