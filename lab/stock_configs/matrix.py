"""Tries the swap on all configs of mmdet and mmseg."""
import contextlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.config import Config

from cpvt_mm.swap import CannotSwap, read_config, swap_backbone, write_config
from cpvt_mm.swap.probing import CannotBuild, CannotRun, Maps, probe_backbone
from cpvt_mm.swap.writing import shipped_configs
from lab.from_config import build_model
from lab.results import Results
from lab.stock_configs.trial import try_out
from lab.stock_configs.versions import LIBRARIES_AND_TORCH, OPTIONAL, versions
from lab.work import Report, run_in_processes
from openmmlab_runs.errors import UserError, first_line
from openmmlab_runs.nested import walk
from openmmlab_runs.stack import require

LIBRARIES = ('mmdet', 'mmseg')
# Outcomes of configs that build -> their new backbone.
BACKBONES = {'built': 'PyramidCPVT', 'plain': 'CPVT'}
# All widths are handled alike, and narrow backbones run faster.
ARCHS_TO_BUILD = {'PyramidCPVT': 'small', 'CPVT': 'small'}
ARCHS_TO_RUN = {'PyramidCPVT': 'nano', 'CPVT': 'tiny'}
# The swap must accept configs with these backbones, or refuse them for a reason that applies to any strided pyramid.
PYRAMIDS = re.compile(
    r'(mm\w+\.)?(ResNet|ResNetV1c|ResNetV1d|ResNeXt|RegNet|Res2Net|ResNeSt|HRNet|SwinTransformer|'
    r'PyramidVisionTransformer(V2)?|ConvNeXt|MixVisionTransformer|PCPVT|SVT)')


@dataclass(frozen=True)
class Record:
    """The outcome for one config.

    Attributes:
        library: 'mmdet' or 'mmseg'.
        config: Its path below the library's configs; the first folder is the algorithm's family.
        backbone: The types of its backbones, joined by commas.
        outcome: 'built' and 'plain': one of `BACKBONES` swapped in, written, read again and built. 'refused': not
            swapped, with a reason. 'failed': any other error. 'unavailable': an error that the config has with its old
            backbone, too. 'fragment': a file without a model, for others to inherit from.
        reason: The reason for the outcome; '' for those of `BACKBONES`. Defaults to ''.
        trial: 'ran', 'failed' or 'unavailable': the outcome of a step of training and a prediction. Defaults to '':
            not tried.
        trial_reason: The reason for the outcome of the trial; '' if it ran. Defaults to ''.
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
        """Whether one of the backbones is among `PYRAMIDS`."""
        return any(PYRAMIDS.fullmatch(name) for name in self.backbone.split(', '))


def list_configs(library: str) -> list[str]:
    """Lists the configs of the installed `library`, as paths below its folder of configs, without `_base_` files."""
    folder = shipped_configs(library)
    paths = [path.relative_to(folder) for path in sorted(folder.rglob('*.py'))]
    return [path.as_posix() for path in paths if '_base_' not in path.parts]


def open_results(folder: Path) -> Results:
    """Opens the results in a folder; raises a UserError if they are from other versions of packages."""
    return Results(folder, dict(versions=versions((*LIBRARIES_AND_TORCH, *OPTIONAL))))


def run_matrix(libraries: Sequence[str], families: Sequence[str] | None, jobs: int, results: Results) -> list[Record]:
    """Checks each config of the libraries, and tries the first of each family that builds.

    Args:
        libraries: Some of LIBRARIES.
        families: The first folders of the configs to use; None for all.
        jobs: Number of processes, with one thread each.
        results: Existing results are kept, except failed and unavailable ones, which are tried again.

    Returns:
        The records in the order of the configs.

    Raises:
        UserError: If no config is in `families`, or a process dies.
    """
    configs = {f'{library}::{config}': (library, config) for library in libraries for config in list_configs(library)
               if families is None or config.split('/')[0] in families}
    if not configs:
        raise UserError(f'no config is in {", ".join(families or libraries)}: pass folders of the libraries\' configs.')
    records = {key: Record(**results[key]) for key in configs if key in results}
    todo = [key for key in configs if key not in records or records[key].outcome in ('failed', 'unavailable')]
    tasks = {key: partial(in_silence, check, (*configs[key], ARCHS_TO_BUILD)) for key in todo}
    for key, record in run_in_processes('Swapping', tasks, jobs, start_worker):
        records[key] = record
        results.put(key, asdict(record))
    first: dict[tuple[str, str], str] = {}
    for key in configs:
        if records[key].outcome in BACKBONES:
            first.setdefault((records[key].library, records[key].family), key)
    tasks = {key: partial(in_silence, run, (records[key], ARCHS_TO_RUN)) for key in first.values()
             if records[key].trial != 'ran'}
    for key, record in run_in_processes('Running', tasks, jobs, start_worker):
        records[key] = record
        results.put(key, asdict(record))
    return [records[key] for key in configs]


def check(library: str, config: str, archs: Mapping[str, str]) -> Record:
    """Swaps the backbone of a config, writes the new config, reads it and builds the model.

    Args:
        library: 'mmdet' or 'mmseg'.
        config: The path of the config below the library's.
        archs: The `arch` of each of `BACKBONES`.
    """
    path = shipped_configs(library) / config
    try:
        old = read_config(str(path))
    except (UserError, ImportError) as error:
        return Record(library, config, _backbones_of_source(path), 'unavailable', say(error))
    backbone = ', '.join(str(node['backbone'].get('type')) for _, node in walk(old.get('model') or {})
                         if isinstance(node.get('backbone'), dict))
    if not old.get('model'):
        return Record(library, config, backbone, 'fragment', 'no model')
    try:
        built, new = _swap_in_first(old, archs)
        new = _written_and_read(old, new, path)
    except CannotBuild as error:
        return Record(library, config, backbone, 'unavailable', say(error))
    except CannotSwap as error:
        outcome = 'failed' if isinstance(error, CannotRun) else 'refused'  # the probing may be the cause
        return Record(library, config, backbone, outcome, say(error))
    except Exception as error:  # the outcome to record
        return Record(library, config, backbone, 'failed', say(error))
    reason = _raises(build_model, new)
    if reason:
        return Record(library, config, backbone,
                      *_blame(reason, _raises(build_model, old), 'swapped and written, but '))
    return Record(library, config, backbone, built)


def _swap_in_first(old: Config, archs: Mapping[str, str]) -> tuple[str, Config]:
    """Swaps PyramidCPVT in, or CPVT if the config cannot take a pyramid; returns the outcome and the new config.

    Raises:
        CannotSwap: If the config can take neither; the reason is about the pyramid.
    """
    try:
        return 'built', swap_backbone(old, archs['PyramidCPVT'], probe=probe_once)
    except (CannotBuild, CannotRun):
        raise
    except CannotSwap:
        with contextlib.suppress(CannotSwap):
            return 'plain', swap_backbone(old, archs['CPVT'], backbone='CPVT', probe=probe_once)
        raise


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


def run(record: Record, archs: Mapping[str, str]) -> Record:
    """Swaps the backbone of a config, runs a training step and predicts."""
    old = read_config(str(shipped_configs(record.library) / record.config))
    backbone = BACKBONES[record.outcome]
    reason = _raises(try_out, swap_backbone(old, archs[backbone], backbone=backbone))
    trial, reason = _blame(reason, _raises(try_out, old), '') if reason else ('ran', '')
    return replace(record, trial=trial, trial_reason=reason)


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


def in_silence(function: Callable[..., Record], arguments: tuple[object, ...], _: Report) -> Record:
    """Calls a function without the text that models and constructors print."""
    with open(os.devnull, 'w') as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        return function(*arguments)
