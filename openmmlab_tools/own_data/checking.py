"""Checks the datasets of a config, and measures them: what the command check prints."""
import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.runner import Runner
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Column, Table

from openmmlab_tools.checkpoints.loading import build_checked
from openmmlab_tools.data.checked_pipeline import load_first
from openmmlab_tools.data.config_datasets import Plan
from openmmlab_tools.data.datasets import SPLITS
from openmmlab_tools.data.findings import Finding, Kind
from openmmlab_tools.errors import UserError, explain, for_readers
from openmmlab_tools.files import check_free, held, named, write_figure, write_text
from openmmlab_tools.readers.form.account import Account
from openmmlab_tools.readers.form.account_text import summary_of
from openmmlab_tools.registry import in_scope
from openmmlab_tools.texts import printable, shell

from .file_checks import Checked, check_files, find_copies
from .measuring import is_coco, measure, read_pictures, sizes_of, suggest, to_table, to_table_of_channels
from .painted_samples import SCOPES, draw_sheet
from .written_labels import ACCOUNT

# Number of findings of one kind in the table.
EXAMPLES = 3
FINDINGS = 'findings.csv'


def try_sample(name: str, dataloader: dict[str, Any], scope: str | None, build: Callable[[], Any] | None = None
               ) -> Iterator[Finding]:
    """Yields a finding if a pipeline fails on the first sample of a dataloader, which has a name; if a function that
    builds the model is given, also if the preprocessor or the losses fail on it.
    """
    name, model = f'{name}.dataset', None
    try:
        with in_scope(scope):
            loader = Runner.build_dataloader({**dataloader, 'num_workers': 0, 'persistent_workers': False})
            sample = load_first(loader.dataset, name)
            if build:
                model = build()
                # BatchNorm needs at least two samples.
                batch = loader.collate_fn([sample] * min(getattr(loader.batch_sampler, 'batch_size', 1), 2))
                with torch.no_grad():
                    model.train()(**model.data_preprocessor(batch, True), mode='loss')
    except UserError as error:
        yield Finding(Kind.SAMPLE, name, f'fails: {str(error).removeprefix(f"{name}: ")}')
    except Exception as error:  # models can raise any error
        yield Finding(Kind.SAMPLE, name, f'has a first sample that the model fails on ({explain(error)})'
                      if model else f'fails ({explain(error)})')


def to_table_of_findings(findings: Sequence[Finding]) -> Table:
    table = Table('what', 'how many', Column('the first', overflow='fold'), show_lines=True)
    for kind in Kind:
        of_kind = [finding for finding in findings if finding.kind is kind]
        if of_kind:
            examples = [printable(finding.sentence) for finding in of_kind[:EXAMPLES]]
            more = [f'and {len(of_kind) - EXAMPLES} more'] if len(of_kind) > EXAMPLES else []
            text = kind.text if of_kind[0].is_error else f'{kind.text} (a note)'
            table.add_row(text, str(len(of_kind)), escape(for_readers('\n'.join([*examples, *more]))))
    return table


@contextmanager
def report(out: Path | None) -> Iterator[Callable[[Sequence[str]], object]]:
    """Holds a folder, if any, and yields a function that writes a row of findings.csv (until the end, .unfinished)."""
    if out is None:
        yield lambda row: None
        return
    with held(out):
        check_free(out / FINDINGS)
        unfinished = out / f'{FINDINGS}.unfinished'
        with named(unfinished), unfinished.open('w', buffering=1, encoding='utf-8', errors='backslashreplace',
                                                newline='') as file:
            writer = csv.writer(file)
            writer.writerow(('split', 'severity', 'what', 'file', 'detail'))
            yield writer.writerow
        unfinished.replace(out / FINDINGS)


def check(plans: Sequence[Plan], console: Console, add: Callable[[str, Finding], None]
          ) -> list[tuple[Plan, list[Checked]]]:
    """Checks the files of all plans. Passes each finding, also the plans' own findings, with its splits to `add`."""
    results = []
    for plan in plans:
        splits, checks = ', '.join(plan.splits), []
        for finding in plan.findings:
            add(splits, finding)
        missing = {(finding.kind, finding.file) for finding in plan.findings}
        for checked in track(check_files(plan), splits, len(plan.samples), console=console,
                             disable=not console.is_terminal):
            checks.append(checked)
            for finding in checked.findings:
                if (finding.kind, finding.file) not in missing:
                    add(splits, finding)
        results.append((plan, checks))
    for plan, finding in find_copies(results):
        add(', '.join(plan.splits), finding)
    return results


def can_be_built(plans: Sequence[Plan], split: str) -> bool:
    return not any(finding.kind in (Kind.DATASET, Kind.NOT_BUILT) for plan in plans if split in plan.splits
                   for finding in plan.findings)


def account_of(plan: Plan, account: Account) -> list[str]:
    """Returns the account written with the labels; for other COCO files, counts the images and objects that mmdet uses.
    """
    dataset: Any = plan.dataset
    file = Path(getattr(dataset, 'ann_file', None) or 'none')
    if (written := file.with_name(ACCOUNT)).is_file():
        return summary_of(written.read_text(encoding='utf-8'))
    if not is_coco(plan):
        return []
    used = [dataset.get_data_info(index) for index in range(len(dataset))]
    ignored = sum(bool(other['ignore_flag']) for image in used for other in image['instances'])
    account.used = Counter(images=len(used), objects=sum(len(image['instances']) for image in used) - ignored)
    account.leave('objects', f'objects have iscrowd=1 ({file.name}): losses and metrics ignore them', '', ignored)
    for noun in ('images', 'objects'):
        account.leave(noun, f'{noun} are skipped by mmdet ({file.name})', '', account.lost(noun))
    return [*account.lines()]


def measure_all(results: Sequence[tuple[Plan, list[Checked]]], console: Console) -> dict[str, Any]:
    """Prints and returns measures of the datasets, and sizes that are suggested for the model that they train."""
    parts = [(plan, data, checks) for plan, checks in results if (data := read_pictures(plan, checks)).splits['train']]
    measures = [measure(plan, data, checks) for plan, data, checks in parts]
    for line in dict.fromkeys(line for plan, data, _ in parts for line in account_of(plan, data.account)):
        console.print(for_readers(line), markup=False, highlight=False)
    for measured in measures:
        console.print(sizes_of(measured), markup=False, highlight=False)
        if 'classes' in measured:
            console.print(to_table(measured))
        if 'channels' in measured:
            console.print(to_table_of_channels(measured['channels']))
    trained = [(plan.use, data) for plan, data, _ in parts if plan.use.is_trained and plan.use.scope in SCOPES]
    suggested = suggest(trained[0][0], [data for _, data in trained]) if trained else {}
    for key, value in suggested.items():
        console.print(f'Suggested: {shell(key + "=" + str(value).replace(" ", ""))}', markup=False, highlight=False)
    return dict(datasets=measures, suggested=suggested)


def check_datasets(plans: Sequence[Plan], out: Path | None, console: Console) -> int:
    """Prints findings and measures, writes them to `out`, if it is not None, and returns the number of errors."""
    findings: list[Finding] = []
    with report(out) as write:

        def add(split: str, finding: Finding) -> None:
            findings.append(finding)
            write((split, 'error' if finding.is_error else 'note', finding.kind.text, finding.file, finding.detail))

        results = check(plans, console, add)
        for split in SPLITS:
            use, name = next((plan.use for plan in plans if split in plan.splits), None), f'{split}_dataloader'
            if use and can_be_built(plans, split):
                build = partial(build_checked, use.model, use.scope, use.file) if split == 'train' else None
                for finding in try_sample(name, use.loaders[name], use.scope, build):
                    add(split, finding)
        measures = measure_all(results, console)
        if out:
            write_text(out / 'statistics.json', json.dumps(measures, indent=1))
            painted = [plan.use for plan in plans if plan.samples and plan.use.scope in SCOPES]
            if painted and (sheet := draw_sheet(painted[0].dataset, painted[0].scope)):
                write_figure(out / 'samples.png', sheet)
    errors = sum(finding.is_error for finding in findings)
    if findings:
        console.print(to_table_of_findings(findings))
    files = sum(len(plan.samples) for plan in plans)
    console.print(f'Images checked: {files}, errors: {errors}, notes: {len(findings) - errors}')
    return errors
