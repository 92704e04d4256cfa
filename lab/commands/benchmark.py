"""Times forward passes and training steps of PyramidCPVT and of other backbones, and measures their peak memory.

All candidates are timed in turns in one process. The memory of each is measured in a separate process. Writes
results.csv and table.md to the output folder. Run it again to continue after an interruption, or to add sizes.

With --count, nothing is timed: it prints the floating-point operations and the bytes of each operator, and the calls of
Python, which do not depend on the machine.
"""
import argparse
import dataclasses
from pathlib import Path

from lab.arguments import COCO, DTYPE_NAMES, MODES, PEER_NAMES, parse_batch, positive
from openmmlab_tools.cli import resumable
from openmmlab_tools.errors import UserError


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('candidates', nargs='*', metavar='NAME[:KEY=VALUE,...]',
                        help=f'what to measure, with arguments of its class: {", ".join(PEER_NAMES)}; all but '
                        'grouped if none is given')
    parser.add_argument('--arch', default='small', help='size of all candidates')
    parser.add_argument('--drop-path-rate', type=float, default=0.2, help='stochastic depth rate of the last block')
    parser.add_argument('--modes', nargs='+', choices=MODES, default=MODES,
                        help='measure forward passes or training steps')
    parser.add_argument('--sizes', type=parse_batch, nargs='+', default=list(map(parse_batch, ('224', '512'))),
                        metavar='SIZE', help='image sizes in pixels: one side, or HEIGHTxWIDTH; or those of each image '
                        f'of a batch, as in 800x1216+480x640; coco is {COCO}')
    parser.add_argument('--batch-sizes', type=positive, nargs='+', default=[],
                        help='images in a batch of one size; 2 if not given')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPE_NAMES, default=['fp32'],
                        help='bf16 and fp16 by autocast, with weights in fp32; tf32 on a GPU only')
    parser.add_argument('--threads', type=positive, nargs='+', help='CPU threads (default: those of torch)')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu', help='device to run on')
    parser.add_argument('--compile', nargs='+', choices=['static', 'dynamic'], default=[], metavar='SHAPES',
                        help='also measure each candidate compiled with torch.compile, for static or dynamic shapes, '
                        'or both')
    parser.add_argument('--rounds', type=positive, default=5, help='number of timed calls of each candidate')
    parser.add_argument('--warmup', type=positive, default=1, help='number of untimed calls before them')
    parser.add_argument('--count', action='store_true',
                        help='count instead: operations and bytes on the meta device, with weights and images in the '
                        'dtype')
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/benchmark'), help='folder of the results')
    return parser.parse_args()


@resumable
def main() -> None:
    args = parse_args()
    check(args)
    import torch
    from rich.progress import track

    from cpvt_mm.archs import PYRAMID_ARCHS
    from cpvt_mm.tokens.validation import check_names
    from lab.backbones import Backbones
    from lab.benchmarking import counted, make_settings, report
    from lab.candidates import PEERS, parse_candidate
    from lab.results import Results
    from lab.running import describe_machine, measure_group
    from openmmlab_tools.files import held
    check_names('an arch', [args.arch], PYRAMID_ARCHS, UserError)
    args.threads = args.threads or [torch.get_num_threads()]
    subject = Backbones(args.arch, args.drop_path_rate, args.device)
    chosen = map(parse_candidate, dict.fromkeys(args.candidates or [name for name in PEERS if name != 'grouped']))
    candidates = [dataclasses.replace(candidate, shapes=shapes) for candidate in chosen
                  for shapes in dict.fromkeys((None, *args.compile))]
    settings = make_settings(args)
    if args.count:
        for setting in settings:
            conditions, _, _ = str(setting).rpartition(', ')  # without the threads
            print(f'### {args.arch}, {conditions}\n\n{counted(subject, candidates, setting)}')
        return
    with held(args.out_dir):
        results = Results(args.out_dir, dict(dataclasses.asdict(subject), candidates=list(map(str, candidates)),
                                             rounds=args.rounds, warmup=args.warmup, **describe_machine(args.device)))
        for setting in track([setting for setting in settings if str(setting) not in results], 'Measuring'):
            results.put(str(setting), measure_group(subject, candidates, setting, args.rounds, args.warmup))
            report(results, args.out_dir)
        print(report(results, args.out_dir))
    print(f'Also in {args.out_dir}: results.csv, table.md')


def check(args: argparse.Namespace) -> None:
    number = max(map(len, args.sizes))
    if number > 1 and args.batch_sizes not in ([], [1]):
        raise UserError(f'--batch-sizes is {" ".join(map(str, args.batch_sizes))}, but --sizes gives the sizes of all '
                        f'{number} images of a batch: leave out --batch-sizes.')
    if args.count and args.compile:
        raise UserError('--count counts operator by operator: leave out --compile.')
    if args.device == 'cpu' and 'tf32' in args.dtypes:
        raise UserError('--dtypes has tf32, which needs a GPU: use fp32, or --device cuda.')
