"""Tries the swap on all configs of mmdet and mmseg, and writes a page of what became of them."""
import contextlib
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config

from cpvt_mm.swap import CannotSwap, read_config, swap_backbone, write_config
from cpvt_mm.swap.probing import CannotBuild, CannotRun, Maps, probe_backbone
from cpvt_mm.swap.writing import shipped_configs
from lab.from_config import build_model
from lab.results import Results
from lab.stock_configs.trial import SIDE, try_out
from lab.work import run_in_processes
from openmmlab_runs.config_walk import walk
from openmmlab_runs.errors import UserError, first_line
from openmmlab_runs.libraries import require
from openmmlab_runs.texts import markdown_table

LIBRARIES = ('mmdet', 'mmseg')
LIBRARIES_AND_TORCH = ('torch', 'mmengine', 'mmcv', *LIBRARIES)
# Some models of mmdet and mmseg need them.
OPTIONAL = ('mmpretrain', 'lap', 'motmetrics', 'skimage', 'sklearn', 'transformers', 'fairscale', 'timm')
# Outcomes of configs that build -> their new backbone.
BACKBONES = {'built': 'PyramidCPVT', 'plain': 'CPVT'}
# All widths are handled alike, and narrow backbones run faster.
ARCHS_TO_BUILD = {'PyramidCPVT': 'small', 'CPVT': 'small'}
ARCHS_TO_RUN = {'PyramidCPVT': 'nano', 'CPVT': 'tiny'}
# The swap must accept configs with these backbones, or refuse them for a reason that applies to any strided pyramid.
PYRAMIDS = re.compile(
    r'(mm\w+\.)?(ResNet|ResNetV1c|ResNetV1d|ResNeXt|RegNet|Res2Net|ResNeSt|HRNet|SwinTransformer|'
    r'PyramidVisionTransformer(V2)?|ConvNeXt|MixVisionTransformer|PCPVT|SVT)')
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


@dataclass(frozen=True)
class Swap:
    """The outcome of one config.

    Attributes:
        config: Its path below the library's configs; the first folder is the algorithm's family.
        backbone: The types of its backbones, joined by commas.
        outcome: One of `OUTCOMES`, which `MEANINGS` explains; `reason` is '' for those of `BACKBONES`.
        trial: 'ran', 'failed' or 'unavailable': the outcome of a step of training and a prediction; '': not tried.
    """
    library: str
    config: str
    backbone: str
    outcome: str
    reason: str = ''
    trial: str = ''
    trial_reason: str = ''

    @property
    def family(self) -> str:
        return self.config.split('/')[0]

    @property
    def has_pyramid(self) -> bool:
        return any(PYRAMIDS.fullmatch(name) for name in self.backbone.split(', '))


def versions(modules: Sequence[str]) -> str:
    """Returns the distributions of the installed modules among `modules`, with their versions."""
    distributions = packages_distributions()
    found = [distributions[module][0] for module in modules if module in distributions]
    return ', '.join(f'{name} {version(name)}' for name in found)


def list_configs(library: str) -> list[str]:
    """Lists the configs of the installed `library`, as paths below its folder of configs, without `_base_` files."""
    folder = shipped_configs(library)
    paths = [path.relative_to(folder) for path in sorted(folder.rglob('*.py'))]
    return [path.as_posix() for path in paths if '_base_' not in path.parts]


def open_results(folder: Path) -> Results:
    """Opens the results in a folder; raises a UserError if they are from other versions of packages."""
    return Results(folder, dict(versions=versions((*LIBRARIES_AND_TORCH, *OPTIONAL))))


def run_matrix(libraries: Sequence[str], families: Sequence[str] | None, jobs: int, results: Results) -> list[Swap]:
    """Checks each config of the libraries, and tries the first of each family that builds, in `jobs` processes.

    Existing results are kept, except failed and unavailable ones, which are tried again. `families` are the first
    folders of the configs to use; None for all.
    """
    configs = {f'{library}::{config}': (library, config) for library in libraries for config in list_configs(library)
               if families is None or config.split('/')[0] in families}
    if not configs:
        raise UserError(f'no config is in {", ".join(families or libraries)}: pass folders of the libraries\' configs.')
    swaps = {key: Swap(**results[key]) for key in configs if key in results}

    def complete(title: str, tasks: Mapping[str, partial[Swap]]) -> None:
        for key, swap in run_in_processes(title, tasks, jobs, start_worker):
            swaps[key] = swap
            results.put(key, asdict(swap))

    complete('Swapping', {key: partial(in_silence, check, (*configs[key], ARCHS_TO_BUILD)) for key in configs
                          if key not in swaps or swaps[key].outcome in ('failed', 'unavailable')})
    first: dict[tuple[str, str], str] = {}
    for key in configs:
        if swaps[key].outcome in BACKBONES:
            first.setdefault((swaps[key].library, swaps[key].family), key)
    complete('Running', {key: partial(in_silence, run, (swaps[key], ARCHS_TO_RUN)) for key in first.values()
                         if swaps[key].trial != 'ran'})
    return [swaps[key] for key in configs]


def check(library: str, config: str, archs: Mapping[str, str]) -> Swap:
    """Swaps the backbone of a config, writes the new config, reads it and builds the model; `archs` are by backbone."""
    path = shipped_configs(library) / config
    try:
        old = read_config(str(path))
    except (UserError, ImportError) as error:
        return Swap(library, config, _backbones_of_source(path), 'unavailable', say(error))
    backbone = ', '.join(str(node['backbone'].get('type')) for _, node in walk(old.get('model') or {})
                         if isinstance(node.get('backbone'), dict))
    if not old.get('model'):
        return Swap(library, config, backbone, 'fragment', 'no model')
    try:
        built, new = _swap_in_first(old, archs)
        new = _written_and_read(old, new, path)
    except CannotBuild as error:
        return Swap(library, config, backbone, 'unavailable', say(error))
    except CannotSwap as error:
        outcome = 'failed' if isinstance(error, CannotRun) else 'refused'  # the probing may be the cause
        return Swap(library, config, backbone, outcome, say(error))
    except Exception as error:  # the outcome to record
        return Swap(library, config, backbone, 'failed', say(error))
    reason = _raises(build_model, new)
    if reason:
        return Swap(library, config, backbone,
                      *_blame(reason, _raises(build_model, old), 'swapped and written, but '))
    return Swap(library, config, backbone, built)


def _swap_in_first(old: Config, archs: Mapping[str, str]) -> tuple[str, Config]:
    """Swaps PyramidCPVT in, or CPVT if the config cannot take a pyramid; returns the outcome and the new config."""
    try:
        return 'built', swap_backbone(old, archs['PyramidCPVT'], probe=probe_once)
    except (CannotBuild, CannotRun):
        raise
    except CannotSwap:
        with contextlib.suppress(CannotSwap):
            return 'plain', swap_backbone(old, archs['CPVT'], backbone='CPVT', probe=probe_once)
        raise  # the reason is about the pyramid


PROBED: dict[str, Maps] = {}


def probe_once(backbone: dict[str, object], scope: str | None) -> Maps:
    """Probes a backbone, unless the same one was probed before: hundreds of configs share one."""
    key = f'{scope} {backbone}'
    if key not in PROBED:
        PROBED[key] = probe_backbone(backbone, scope)
    return PROBED[key]


def _written_and_read(old: Config, new: Config, path: Path) -> Config:
    with TemporaryDirectory() as folder:
        swapped = Path(folder) / 'swapped.py'
        write_config(old, new, str(path), swapped)
        return Config.fromfile(swapped)


def run(swap: Swap, archs: Mapping[str, str]) -> Swap:
    """Swaps the backbone of a config, runs a training step and predicts."""
    old = read_config(str(shipped_configs(swap.library) / swap.config))
    backbone = BACKBONES[swap.outcome]
    reason = _raises(try_out, swap_backbone(old, archs[backbone], backbone=backbone))
    trial, reason = _blame(reason, _raises(try_out, old), '') if reason else ('ran', '')
    return replace(swap, trial=trial, trial_reason=reason)


def _blame(reason: str, reason_before: str, then: str) -> tuple[str, str]:
    """Returns 'unavailable' if the old backbone gives the same error, except for numbers; else 'failed'."""
    is_same = re.sub(r'\d+', '', reason) == re.sub(r'\d+', '', reason_before)
    return ('unavailable', f'{then}{reason_before}') if is_same else ('failed', reason)


def _raises(function: Callable[[Config], object], cfg: Config) -> str:
    """Calls a function; returns its error as one line, or ''."""
    try:
        function(cfg)
    except Exception as error:  # the outcome to record
        return say(error)
    return ''


def say(error: Exception) -> str:
    text = first_line(error) if isinstance(error, UserError) else f'{type(error).__name__}: {first_line(error)}'
    # Local folders and line breaks are removed.
    return re.sub(r'\s+', ' ', re.sub(r'(?<![\w:/])/\S+/', '', text))


def _backbones_of_source(path: Path) -> str:
    """Returns the types of backbones in the text of a config file, without its bases."""
    return ', '.join(re.findall(r"backbone=dict\([^()]*?type='([\w.]+)'", path.read_text()))


def start_worker() -> None:
    os.chdir(shipped_configs('mmdet').parent)  # configs look for the configs of their teachers there
    os.environ['HF_HUB_OFFLINE'] = '1'  # nothing is downloaded
    # Some layers of mmcv can only be built in a process group.
    torch.distributed.init_process_group('gloo', store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter('ignore')
    with contextlib.suppress(ImportError):  # some configs use its backbones
        require('mmpretrain')


def in_silence(function: Callable[..., Swap], arguments: tuple[object, ...]) -> Swap:
    """Calls a function without the text that models and constructors print."""
    with open(os.devnull, 'w') as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        return function(*arguments)


def to_markdown(swaps: Sequence[Swap]) -> str:
    """Writes the whole page: a summary, a table of families, and the reasons."""
    return '\n'.join([
        '# The backbones in the configs that mmdet and mmseg ship', '',
        f'Written by `python -m lab.maintenance.swap_matrix` on the CPU, with {versions(LIBRARIES_AND_TORCH)}. Some '
        f'models need further packages: {versions(OPTIONAL) or "none was installed"}.', '',
        MEANINGS,
        _summary(swaps),
        *(line for library in LIBRARIES for line in _families(library, swaps)),
        *_reasons('Refused', 'refused', swaps),
        *_reasons('Failed', 'failed', swaps),
        *_reasons('Fails with its own backbone, too', 'unavailable', swaps),
    ])


def _summary(swaps: Sequence[Swap]) -> str:
    rows = []
    for library in LIBRARIES:
        of_library = [swap for swap in swaps if swap.library == library]
        tried = Counter(swap.trial for swap in of_library if swap.trial)
        if of_library:
            rows.append([*_counts(library, of_library), tried.total(), tried['ran']])
            pyramids = [swap for swap in of_library if swap.has_pyramid]
            rows.append([*_counts(f'{library}, of a strided pyramid', pyramids), '', ''])
    return markdown_table(['configs', 'number', *OUTCOMES.values(), 'families that build', 'step and prediction'], rows)


def _counts(name: str, swaps: Sequence[Swap]) -> list[object]:
    found = Counter(swap.outcome for swap in swaps)
    return [name, len(swaps), *(found[outcome] or '' for outcome in OUTCOMES)]


def _families(library: str, swaps: Sequence[Swap]) -> Iterator[str]:
    families: dict[str, list[Swap]] = {}
    for swap in swaps:
        if swap.library == library:
            families.setdefault(swap.family, []).append(swap)
    rows = []
    for family, found in families.items():
        trial = next((one.trial for one in found if one.trial), '')
        rows.append([*_counts(family, found), OUTCOMES.get(trial, trial)])
    if rows:
        yield f'## {library}\n'
        yield markdown_table(['family', 'configs', *OUTCOMES.values(), 'step and prediction'], rows)


def _reasons(title: str, outcome: str, swaps: Sequence[Swap]) -> Iterator[str]:
    """Writes one item for each reason, with the configs that have it."""
    found = [*((swap.reason, swap) for swap in swaps if swap.outcome == outcome),
             *((swap.trial_reason, swap) for swap in swaps if swap.trial == outcome)]
    by_reason: dict[str, list[str]] = {}
    for reason, swap in found:
        by_reason.setdefault(reason, []).append(f'{swap.library}::{swap.config}')
    if found:
        yield f'## {title}\n'
    for reason, configs in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f'- {len(configs)}: {reason} ' + ', '.join(f'`{config}`' for config in configs[:3]) + (
            f' and {len(configs) - 3} more' if configs[3:] else '')
    if found:
        yield ''
