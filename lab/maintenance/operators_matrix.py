"""Runs a training step and a prediction with stock configs, and the operators of mmcv that this environment has.

It takes the first config of each family, and others that have layers of mmcv which that one lacks. Writes a markdown
table. Run it again to continue from the results in the work dir.
"""
import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path

from mmengine.config import Config

from cpvt_mm.swap import read_config
from cpvt_mm.swap.writing import shipped_configs
from lab.results import Results
from lab.stock_configs import matrix
from lab.stock_configs.trial import try_out
from lab.work import run_in_processes
from openmmlab_runs.cli import resumable
from openmmlab_runs.config_walk import walk
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.files import write_text
from openmmlab_runs.texts import markdown_table

# Layers and losses of mmcv that call its operators.
LAYERS = ('CARAFEPack', 'carafe', 'DCN', 'DCNv2', 'DeformRoIPoolPack', 'DyHead', 'MaskedConv2d',
          'ModulatedDeformRoIPoolPack', 'MSDeformAttnPixelDecoder', 'PSAHead', 'RoIAlign', 'RoIPool', 'SAC', 'soft_nms')


@dataclass(frozen=True)
class Outcome:
    """A config, why a step and a prediction failed ('' if they ran), and the functions of `mmcv._ext` they called."""
    config: str
    reason: str
    functions: tuple[str, ...]


def choose(library: str) -> Iterator[tuple[str, Config]]:
    """Yields names and configs: the first of each family, and others that have layers of `LAYERS` which these lack."""
    seen: dict[str, set[str]] = {}
    for name in matrix.list_configs(library):
        family = name.split('/')[0]
        try:
            cfg = read_config(str(shipped_configs(library) / name))
        except (UserError, ImportError):  # configs of other libraries
            continue
        if cfg.get('model'):
            layers = {str(value) for _, node in walk(cfg.model) for value in node.values() if str(value) in LAYERS}
            if family not in seen or layers - seen[family]:
                seen.setdefault(family, set()).update(layers)
                yield f'{library}::{name}', cfg


def run_configs(libraries: Sequence[str], families: Sequence[str] | None, jobs: int, folder: Path) -> list[Outcome]:
    """Runs a training step and a prediction with each chosen config, and keeps the outcomes in a folder."""
    results = Results(folder, dict(versions=matrix.versions(matrix.LIBRARIES_AND_TORCH)))
    chosen = {name: cfg for library in libraries for name, cfg in choose(library)
              if families is None or name.split('::')[1].split('/')[0] in families}
    tasks = {name: partial(matrix.in_silence, run_config, (name, cfg)) for name, cfg in chosen.items()
             if name not in results}
    for name, outcome in run_in_processes('Running', tasks, jobs, matrix.start_worker):
        results.put(name, asdict(outcome))
    return [Outcome(**results[name]) for name in chosen]


def run_config(name: str, cfg: Config) -> Outcome:
    """Runs one config, and records the functions that it calls."""
    import mmcv._ext
    called: set[str] = set()
    functions = {key: value for key, value in vars(mmcv._ext).items() if callable(value) and not key.startswith('_')}
    vars(mmcv._ext).update({key: _recording(value, called) for key, value in functions.items()})
    try:
        try_out(cfg)
        reason = ''
    except Exception as error:  # the outcome to record
        reason = matrix.say(error)
    finally:
        vars(mmcv._ext).update(functions)
    return Outcome(name, reason, tuple(sorted(called)))


def _recording(function: Callable[..., object], called: set[str]) -> Callable[..., object]:

    @wraps(function)
    def record(*args: object, **kwargs: object) -> object:
        called.add(function.__name__)
        return function(*args, **kwargs)

    return record


def to_markdown(outcomes: Sequence[Outcome]) -> str:
    """Writes a table of the operators that configs call, and the reasons of those that do not run."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        operators = dict.fromkeys(re.sub('_(forward|backward).*', '', name) for name in outcome.functions)
        groups.setdefault(', '.join(operators) or 'none', []).append(outcome)
    rows = []
    for operators, found in sorted(groups.items()):
        ran, failed = ([_short(o.config) for o in found if bool(o.reason) == fails] for fails in (False, True))
        rows.append((operators, ', '.join(ran), ', '.join(failed)))
    reasons = (f'- `{o.config}`: {o.reason}' for o in outcomes if o.reason)
    return '\n'.join([markdown_table(('operators', 'run', 'do not run'), rows), *reasons, ''])


def _short(config: str) -> str:
    """Returns the library, the family, and what the name of the config says of mmcv's layers."""
    library, _, path = config.partition('::')
    family, _, name = path.partition('/')
    layers = re.findall(r'mdpool|dpool|dconv|mdconv|carafe|sac|softnms|soft-nms|point', name)
    return f'{library} {family}' + (f' ({", ".join(layers)})' if layers else '')


@exit_on_error
@resumable
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--libraries', nargs='+', choices=matrix.LIBRARIES, default=matrix.LIBRARIES,
                        help='libraries of configs')
    parser.add_argument('--families', nargs='+', metavar='NAME', help='folders of configs to use; all if not given')
    parser.add_argument('--jobs', type=int, default=2, help='configs at a time; each uses a core')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/operators'), help='folder for the results')
    args = parser.parse_args()
    text = to_markdown(run_configs(args.libraries, args.families, args.jobs, args.work_dir))
    write_text(args.work_dir / 'operators.md', text)
    print(text)


if __name__ == '__main__':
    main()
