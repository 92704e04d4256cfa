"""Swaps the backbone of all configs of mmdet and mmseg, and builds the models.

For each family of configs, it runs a training step and a prediction with the first config that builds, on the CPU.
Writes a markdown table. Run it again to continue from the results in the work dir.
"""
import argparse
import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config
from rich.progress import track
from torch.distributed import HashStore  # type: ignore[attr-defined]

from cpvt_mm.swap import CannotSwap, read_config, swap_backbone, write_config
from cpvt_mm.swap.probing import CannotBuild, CannotRun, Maps, probe_backbone
from cpvt_mm.swap.writing import shipped_configs
from lab.from_config import build_model, try_out
from lab.processes import run_tasks, silence
from lab.results import Results
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import UserError, explain, first_line
from openmmlab_runs.files import write_text
from openmmlab_runs.libraries import require
from openmmlab_runs.texts import markdown_table

LIBRARIES = ('mmdet', 'mmseg')
# Results are of their versions; the last line has what some models need.
MODULES = ('torch', 'mmengine', 'mmcv', *LIBRARIES,
           'mmpretrain', 'lap', 'motmetrics', 'skimage', 'sklearn', 'transformers', 'fairscale', 'timm')
# Outcomes of configs that build -> their new backbone.
BACKBONES = {'built': 'PyramidCPVT', 'plain': 'CPVT'}
ARCHS = {'PyramidCPVT': 'nano', 'CPVT': 'tiny'}  # all widths are handled alike, and narrow backbones run faster
OUTCOMES = {
    'built': 'PyramidCPVT swapped in',
    'plain': 'CPVT swapped in',
    'refused': 'refused',
    'failed': 'failed',
    'unavailable': 'fails with its own backbone, too',
    'fragment': 'no model',
}


@dataclass(frozen=True)
class Swap:
    """The outcome of one config.

    Attributes:
        config: Its path below the library's configs; the first folder is the algorithm's family.
        outcome: One of `OUTCOMES`. 'built' and 'plain': the new config was written, read again and built. 'refused': it
            can take neither backbone; `reason` is that against the pyramid. 'unavailable': it cannot be read or built
            here before anything is swapped, for the same reason. 'fragment': a file for others to inherit from.
        trial: 'ran', 'failed' or 'unavailable': the outcome of a training step, in which every stage or block of the
            backbone learns, and a prediction, on a few small images; '': not tried.
    """
    library: str
    config: str
    outcome: str
    reason: str = ''
    trial: str = ''
    trial_reason: str = ''

    @property
    def family(self) -> str:
        return f'{self.library} {self.config.split("/")[0]}'


def versions() -> str:
    """Returns the distributions of those of `MODULES` that are installed, with their versions."""
    distributions = packages_distributions()
    found = [distributions[module][0] for module in MODULES if module in distributions]
    return ', '.join(f'{name} {version(name)}' for name in found)


def list_configs(library: str) -> list[str]:
    """Lists the configs of the installed `library`, as paths below its folder of configs, without `_base_` files."""
    folder = shipped_configs(library)
    paths = [path.relative_to(folder) for path in sorted(folder.rglob('*.py'))]
    return [path.as_posix() for path in paths if '_base_' not in path.parts]


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
        for key, swap in track(run_tasks(tasks, jobs, start=start_worker), title, len(tasks)):
            swaps[key] = swap
            results.put(key, asdict(swap))

    complete('Swapping', {key: partial(check, *configs[key]) for key in configs
                          if key not in swaps or swaps[key].outcome in ('failed', 'unavailable')})
    first: dict[str, str] = {}
    for key in configs:
        if swaps[key].outcome in BACKBONES:
            first.setdefault(swaps[key].family, key)
    complete('Running', {key: partial(run, swaps[key]) for key in first.values()
                         if swaps[key].trial != 'ran'})
    return [swaps[key] for key in configs]


def check(library: str, config: str) -> Swap:
    """Swaps the backbone of a config, writes the new config, reads it and builds the model."""
    path = shipped_configs(library) / config
    try:
        old = read_config(str(path))
    except (UserError, ImportError) as error:
        return Swap(library, config, 'unavailable', say(error))
    if not old.get('model'):
        return Swap(library, config, 'fragment', 'no model')
    try:
        built, new = _swap_in_first(old)
        with TemporaryDirectory() as folder:
            write_config(old, new, str(path), Path(folder) / 'swapped.py')
            new = Config.fromfile(Path(folder) / 'swapped.py')
    except CannotBuild as error:
        return Swap(library, config, 'unavailable', say(error))
    except CannotSwap as error:
        return Swap(library, config, 'failed' if isinstance(error, CannotRun) else 'refused', say(error))
    except Exception as error:  # the outcome to record
        return Swap(library, config, 'failed', say(error))
    reason = _raises(build_model, new)
    if reason:
        return Swap(library, config, *_blame(reason, _raises(build_model, old)))
    return Swap(library, config, built)


def _swap_in_first(old: Config) -> tuple[str, Config]:
    """Swaps PyramidCPVT in, or CPVT if the config cannot take a pyramid; returns the outcome and the new config."""
    try:
        return 'built', swap_backbone(old, ARCHS['PyramidCPVT'], probe=probe_once)
    except (CannotBuild, CannotRun):  # the probing may be the cause
        raise
    except CannotSwap:
        with contextlib.suppress(CannotSwap):
            return 'plain', swap_backbone(old, ARCHS['CPVT'], backbone='CPVT', probe=probe_once)
        raise  # the reason is about the pyramid


PROBED: dict[str, Maps] = {}


def probe_once(backbone: dict[str, object], scope: str | None) -> Maps:
    """Probes a backbone, unless the same one was probed before: hundreds of configs share one."""
    key = f'{scope} {backbone}'
    if key not in PROBED:
        PROBED[key] = probe_backbone(backbone, scope)
    return PROBED[key]


def run(swap: Swap) -> Swap:
    old = read_config(str(shipped_configs(swap.library) / swap.config))
    backbone = BACKBONES[swap.outcome]
    reason = _raises(try_out, swap_backbone(old, ARCHS[backbone], backbone=backbone))
    trial, reason = _blame(reason, _raises(try_out, old)) if reason else ('ran', '')
    return replace(swap, trial=trial, trial_reason=reason)


def _blame(reason: str, reason_before: str) -> tuple[str, str]:
    """Returns 'unavailable' if the old backbone gives the same error, except for numbers; else 'failed'."""
    is_same = re.sub(r'\d+', '', reason) == re.sub(r'\d+', '', reason_before)
    return ('unavailable', reason_before) if is_same else ('failed', reason)


def _raises(function: Callable[[Config], object], cfg: Config) -> str:
    """Calls a function; returns its error as one line, or ''."""
    try:
        function(cfg)
    except Exception as error:  # the outcome to record
        return say(error)
    return ''


def say(error: Exception) -> str:
    """Returns an error as one line, without local folders."""
    text = first_line(error) if isinstance(error, UserError) else explain(error)
    return re.sub(r'\s+', ' ', re.sub(r'(?<![\w:/])/\S+/', '', text))


def start_worker() -> None:
    silence()  # models and constructors print
    os.chdir(shipped_configs('mmdet').parent)  # configs look for the configs of their teachers there
    os.environ['HF_HUB_OFFLINE'] = '1'  # nothing is downloaded
    # Some layers of mmcv can only be built in a process group.
    torch.distributed.init_process_group('gloo', store=HashStore(), rank=0, world_size=1)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with contextlib.suppress(ImportError):  # some configs use its backbones
        require('mmpretrain')


def to_markdown(swaps: Sequence[Swap]) -> str:
    """Writes a table with a line for each library and each family, and the reasons of what was not swapped."""
    groups: dict[str, list[Swap]] = {}
    for name in LIBRARIES:
        groups[f'{name}, all'] = [swap for swap in swaps if swap.library == name]
    for swap in swaps:
        groups.setdefault(swap.family, []).append(swap)
    rows = []
    for name, found in groups.items():
        counts, trials = Counter(swap.outcome for swap in found), Counter(swap.trial for swap in found if swap.trial)
        rows.append([name, len(found), *(counts[outcome] or '' for outcome in OUTCOMES),
                     ', '.join(f'{count} {trial}' for trial, count in trials.items())])
    table = markdown_table(['family', 'configs', *OUTCOMES.values(), 'step and prediction'], rows)
    return '\n'.join([table, *(line for outcome in ('refused', 'failed', 'unavailable')
                               for line in _reasons(outcome, swaps))])


def _reasons(outcome: str, swaps: Sequence[Swap]) -> Iterator[str]:
    """Writes one item for each reason, with the configs that have it."""
    by_reason: dict[str, list[str]] = {}
    for swap in swaps:
        for reached, reason in ((swap.outcome, swap.reason), (swap.trial, swap.trial_reason)):
            if reached == outcome:
                by_reason.setdefault(reason, []).append(f'{swap.library}::{swap.config}')
    for reason, configs in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        names = ', '.join(f'`{config}`' for config in configs[:3])
        yield f'- {OUTCOMES[outcome]}, {len(configs)}: {reason} {names}' + (', ...' if configs[3:] else '')


@resumable
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--libraries', nargs='+', choices=LIBRARIES, default=LIBRARIES, help='libraries of configs')
    parser.add_argument('--families', nargs='+', metavar='NAME', help='folders of configs to use; all if not given')
    parser.add_argument('--jobs', type=int, default=2, help='configs at a time; each uses a core')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/stock_configs'), help='folder for the results')
    args = parser.parse_args()
    results = Results(args.work_dir, dict(versions=versions()))
    text = to_markdown(run_matrix(args.libraries, args.families, args.jobs, results))
    write_text(args.work_dir / 'results.md', text)
    print(text)
