"""Checks the datasets of a config: annotations, all images and label maps, and one sample with pipeline and model.

Exits with 1 if there are errors.
"""
import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track

from cpvt_mm.cli import add_cfg_options
from cpvt_mm.data.findings import Finding, Kind, to_csv, to_table
from cpvt_mm.data.plans import SPLITS, plan_checks, run
from cpvt_mm.engine import load_config
from cpvt_mm.engine.loops import try_split
from cpvt_mm.errors import exit_on_error
from cpvt_mm.files import check_free, write_text


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--out', type=Path, help='CSV file for all findings; the table has the first of each kind')
    add_cfg_options(parser)
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    if args.out:
        check_free(args.out)
    console, files = Console(), 0
    found: list[tuple[str, Finding]] = []
    cfg = load_config(args.config, args.cfg_options)
    for plan in plan_checks(cfg):
        found += [(plan.splits, finding) for finding in plan.findings]
        for findings in track(run(plan.jobs), plan.splits, len(plan.jobs), console=console):
            found += [(plan.splits, finding) for finding in findings]
        files += len(plan.jobs)
    for split in SPLITS:
        # Datasets that cannot be read are reported already.
        if cfg.get(f'{split}_dataloader') and not any(split in splits and finding.kind in (Kind.DATASET, Kind.NOT_BUILT)
                                                      for splits, finding in found):
            found += [(split, finding) for finding in try_split(cfg, split)]
    errors = sum(finding.is_error for _, finding in found)
    if found:
        console.print(to_table([finding for _, finding in found]))
    console.print(f'Images checked: {files}, errors: {errors}, notes: {len(found) - errors}')
    if args.out:
        write_text(args.out, to_csv(found))
    if errors:
        sys.exit(1)


if __name__ == '__main__':
    main()
