"""Checks the datasets of a config: annotations, all images and label maps, and one sample with pipeline and model.

Exits with 1 if there are errors.
"""
import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Column, Table

from cpvt_mm.cli import add_cfg_options
from cpvt_mm.data.checked_pipeline import load_first
from cpvt_mm.data.findings import Finding, Kind
from cpvt_mm.data.plans import SPLITS, Plan, plan_checks
from cpvt_mm.engine import load_config
from cpvt_mm.engine.checks import check_model
from cpvt_mm.errors import UserError, exit_on_error, explain
from cpvt_mm.files import check_free
from file_checks import check_files

# Number of findings of one kind in the table.
EXAMPLES = 3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--out', type=Path,
                        help='CSV file for all findings, OUT.unfinished until the end; the table has the first of each')
    add_cfg_options(parser)
    return parser.parse_args()


def try_split(cfg: Config, split: str) -> Iterator[Finding]:
    """Runs the pipeline on a sample of a config's dataset; for 'train', also the data preprocessor and the losses.

    Args:
        cfg: See `cpvt_mm.engine.load_config`.
        split: 'train', 'val' or 'test'; the config must have its dataloader.

    Yields:
        A finding, if the sample fails.
    """
    name = f'{split}_dataloader.dataset'
    model = None
    try:
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            loader = Runner.build_dataloader(
                {**cfg[f'{split}_dataloader'], 'num_workers': 0, 'persistent_workers': False})
            sample = load_first(loader.dataset, name)
            if split == 'train':
                model_cfg = dict(cfg.model)
                if cfg.get('data_preprocessor'):  # mmengine's runner merges it in the same way
                    model_cfg.setdefault('data_preprocessor', cfg.data_preprocessor)
                model = revert_sync_batchnorm(MODELS.build(model_cfg))
                check_model(model)
                # BatchNorm needs at least two samples.
                batch = loader.collate_fn([sample] * min(getattr(loader.batch_sampler, 'batch_size', 1), 2))
                with torch.no_grad():
                    model.train()(**model.data_preprocessor(batch, True), mode='loss')
    except UserError as error:
        yield Finding(Kind.SAMPLE, name, f'fails: {str(error).removeprefix(f"{name}: ")}')
    except Exception as error:  # models can raise any error
        yield Finding(Kind.SAMPLE, name, f'has a first sample that the model fails on ({explain(error, model)})'
                      if model else f'fails ({explain(error)})')


def to_table(findings: Sequence[Finding]) -> Table:
    """Makes a table with a row for each kind of finding: its name, the number of findings, and the first of them."""
    table = Table('what', 'how many', Column('the first', overflow='fold'), show_lines=True)
    for kind in Kind:
        found = [finding for finding in findings if finding.kind is kind]
        if found:
            examples = [f'{finding.file} {finding.detail}' for finding in found[:EXAMPLES]]
            more = [f'and {len(found) - EXAMPLES} more'] if len(found) > EXAMPLES else []
            what = kind.value if found[0].is_error else f'{kind.value} (a note)'
            table.add_row(what, str(len(found)), escape('\n'.join([*examples, *more])))
    return table


@contextmanager
def report(out: Path | None) -> Iterator[Callable[[Sequence[str]], object]]:
    """Yields a function that writes a row of CSV at once, to `<out>.unfinished`; renames the file at the end.

    Characters that are not UTF-8, as names of files may have, are escaped.

    Args:
        out: The file to write. None: rows are not written.
    """
    if out is None:
        yield lambda row: None
        return
    unfinished = out.with_name(f'{out.name}.unfinished')
    with unfinished.open('w', buffering=1, encoding='utf-8', errors='backslashreplace', newline='') as file:
        writer = csv.writer(file)
        writer.writerow(('split', 'severity', 'what', 'file', 'detail'))
        yield writer.writerow
    unfinished.replace(out)


def find(cfg: Config, plans: Sequence[Plan], console: Console) -> Iterator[tuple[str, Finding]]:
    """Checks files and samples, and yields all findings, also those of the plans, each with the splits of its dataset.
    """
    for plan in plans:
        splits = ', '.join(plan.splits)
        checked = track(check_files(cfg, plan), splits, len(plan.samples), console=console)
        for finding in chain(plan.findings, chain.from_iterable(checked)):
            yield splits, finding
    reported = {split for plan in plans for split in plan.splits
                if any(finding.kind in (Kind.DATASET, Kind.NOT_BUILT) for finding in plan.findings)}
    for split in SPLITS:
        if cfg.get(f'{split}_dataloader') and split not in reported:
            for finding in try_split(cfg, split):
                yield split, finding


@exit_on_error
def main() -> None:
    args = parse_args()
    if args.out:
        check_free(args.out)
    console, found = Console(), []
    cfg = load_config(args.config, args.cfg_options)
    plans = plan_checks(cfg)
    with report(args.out) as write:
        for split, finding in find(cfg, plans, console):
            found.append(finding)
            write((split, 'error' if finding.is_error else 'note', finding.kind.value, finding.file, finding.detail))
    errors = sum(finding.is_error for finding in found)
    if found:
        console.print(to_table(found))
    files = sum(len(plan.samples) for plan in plans)
    console.print(f'Images checked: {files}, errors: {errors}, notes: {len(found) - errors}')
    if errors:
        sys.exit(1)


if __name__ == '__main__':
    main()
