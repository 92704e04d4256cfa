"""Damages the data sets of tests/openmmlab_tools/readers/layouts.py, and does with each what new_config.py and
check_dataset.py do.

Each case runs in a process of its own, and must end in a result, or in one sentence. In kinds that begin with
'records', one record is doubled, moved beyond the border, or of an image that is called otherwise, and a sentence must
say so. Prints a table by kind of data, and each other error. Exits with 1 if there is one, or a process crashed or took
too long.
"""
import gc
import io
import random
import tempfile
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from mmengine.registry import DATASETS, DefaultScope
from rich.console import Console

from cpvt_mm.data_config import BASES, CONFIGS, new_config
from cpvt_mm.swap import read_config
from lab.fuzzing import Case, fuzz, parser
from openmmlab_tools.data.config_datasets import plan_checks
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import as_sentence, exit_on_error
from openmmlab_tools.own_data.checking import measure_all, to_table_of_findings
from openmmlab_tools.own_data.file_checks import check_files, find_copies
from tests.openmmlab_tools.readers import layouts
from tests.openmmlab_tools.readers.box_layouts import WRITERS, change_records

CONFIG = 'config'  # the kind whose config is damaged, not the data
# Writers of each kind of data, and the tasks that its labels are for.
DATA: dict[str, tuple[list[layouts.Write], tuple[str, ...]]] = {
    **{f'{name}, {tasks[-1]}': (writers, tasks) for table, tasks in zip(layouts.TABLES, (
        ('boxes',), ('boxes', 'instances'), ('semantic',), ('instances',)), strict=True)
       for name, writers in table.items()}, CONFIG: ([layouts.coco], ('boxes',))}
RECORDS = {f'records, {layout}': layout for layout in WRITERS}


def write_bases(folder: Path) -> None:
    """Writes the configs that new_config starts from, without `_base_`, because reading `_base_` takes a second."""
    for task, names in BASES.items():
        read_config(str(CONFIGS / names[True])).dump(folder / f'{task}.py')


def run_case(kind: str, root: Path, base: Path) -> None:
    """Writes a config for a folder, checks its annotations and files, and builds the datasets that have no fault."""
    config = root / 'my.py'
    if kind != CONFIG:
        new_config(root, config, base=str(base))
    cfg = load_config(config)
    plans = plan_checks(cfg)
    results = [(plan, list(check_files(plan))) for plan in plans]
    findings = [*(finding for plan in plans for finding in plan.findings),
                *(finding for _, checks in results for checked in checks for finding in checked.findings),
                *(finding for _, finding in find_copies(results))]
    console = Console(file=io.StringIO())
    console.print(to_table_of_findings(findings))
    measure_all(results, console)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        for plan in plans:
            if not any(finding.kind in plan.fatal for finding in plan.findings):
                with as_sentence(f'{plan.name} cannot be built', 'correct it', OSError):
                    DATASETS.build(cfg[f'{plan.splits[0]}_dataloader'].dataset)


def prepare(bases: Path, rng: random.Random, kind: str, root: Path, is_whole: bool = False) -> Case:
    """Writes data of a kind, perhaps with a config, and damages a file of it; returns the call that uses it."""
    if kind in RECORDS:
        return partial(change_records, rng, RECORDS[kind], root)
    writers, tasks = DATA[kind]
    rng.choice(writers)(root)
    base = bases / f'{rng.choice(tasks)}.py'
    if kind == CONFIG:
        new_config(root, root / 'my.py', base=str(base))
    if not is_whole:
        layouts.damage(rng, root, 'my.py' if kind == CONFIG else '*')
    return exit_on_error(partial(run_case, kind, root, base))


def main() -> None:
    arguments = parser(__doc__, 5000)
    kinds = [*DATA, *RECORDS]
    arguments.add_argument('--kinds', nargs='+', choices=kinds, default=kinds, help='kinds of data')
    args = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_bases(scratch)
        with redirect_stdout(io.StringIO()):  # what is imported and cached here need not be in each process
            prepare(scratch, random.Random(0), next(iter(DATA)), scratch / 'first', is_whole=True)()
        gc.collect()
        gc.freeze()
        fuzz(args, args.kinds, partial(prepare, scratch), scratch, memory=2 << 30, seconds=30)
