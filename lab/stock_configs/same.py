"""Compares the backbones of stock configs that stay the same with what replaces them: outputs, and times in turns."""
import argparse
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_mm.swap import CannotSwap, read_config, swap_backbone
from cpvt_mm.swap.same import is_recognised, largest_difference
from cpvt_mm.swap.writing import shipped_configs
from lab.arguments import check_least, parse_sides
from lab.results import Results, Row
from lab.running import describe_machine, interleave
from lab.steps import allow_tf32
from lab.stock_configs.matrix import LIBRARIES, LIBRARIES_AND_TORCH, list_configs, versions
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import exit_on_error, first_line, say
from openmmlab_runs.files import write_text
from openmmlab_runs.registry import in_scope
from openmmlab_runs.texts import markdown_table
from tests.weights.pvt import randomized


def find_configs() -> Iterator[tuple[str, str]]:
    """Yields the library and path of each stock config with a backbone that may stay the same."""
    for library in LIBRARIES:
        for config in list_configs(library):
            source = (shipped_configs(library) / config).read_text()
            if any(word in source for word in ('pvt', 'mit', 'twins_pcpvt', 'PyramidVision', 'MixVision')):
                yield library, config


def part_of(cfg: Config) -> ConfigDict:
    """Returns the backbone of a config without weights and stochastic depth."""
    part = {**cfg.model.get('backbone', {}), 'drop_path_rate': 0.}
    return ConfigDict({key: value for key, value in part.items() if key not in ('init_cfg', 'pretrained')})


def pair(old: Config) -> tuple[nn.Module, nn.Module]:
    """Builds the backbone of a config and what replaces it, in eval mode with the same random weights."""
    with in_scope(old.default_scope):
        theirs, ours = (MODELS.build(part_of(cfg)) for cfg in (old, swap_backbone(old, backbone='same')))
    ours.load_state_dict(randomized(theirs).state_dict())
    return theirs, ours.eval()


def measure(cfg: Config, size: tuple[int, int], device: str, rounds: int, half: bool) -> Row:
    """Compares the two backbones of a config on one image of `size`: maps in float32, times also in bfloat16."""
    torch.manual_seed(0)
    theirs, ours = (model.to(device) for model in pair(cfg))
    image = torch.randn(1, 3, *size, device=device)
    with torch.no_grad(), allow_tf32(False):
        difference = largest_difference(ours(image), theirs(image))
    calls = {f'{mode} of {name}': partial(call, model, image, half) for mode, call in (('forward', forward),
                                                                                       ('step', step))
             for name, model in (('theirs', theirs), ('ours', ours))}
    times = {name: statistics.median(found) for name, found in interleave(calls, rounds, warmup=2).items()}
    return dict(difference=difference, **{mode: times[f'{mode} of ours'] for mode in ('forward', 'step')},
                **{f'{mode}, theirs': times[f'{mode} of theirs'] for mode in ('forward', 'step')})


@torch.inference_mode()
def forward(model: nn.Module, image: Tensor, half: bool) -> None:
    """Runs a backbone without gradients."""
    with torch.autocast(image.device.type, torch.bfloat16, enabled=half):
        model(image)


def step(model: nn.Module, image: Tensor, half: bool) -> None:
    """Runs a backbone forward and backward."""
    model.zero_grad(set_to_none=True)
    with torch.autocast(image.device.type, torch.bfloat16, enabled=half):
        outs = model(image)
    sum(out.float().mean() for out in outs).backward()


def to_markdown(rows: list[Row], failed: dict[str, str]) -> str:
    """Makes a table with a line for each config and size; ratios are ours over theirs."""
    lines = [[row['library'], Path(row['config']).stem, row['size'], f'{row["difference"]:.0e}',
              *(f'{row[mode]:.4f} ({row[mode] / row[f"{mode}, theirs"]:.2f})' for mode in ('forward', 'step'))]
             for row in rows]
    lines += [[*name.split('::'), '', reason, '', ''] for name, reason in failed.items()]
    return markdown_table(['library', 'config', 'size', 'difference', 'forward, s (ratio)', 'step, s (ratio)'], lines)


@exit_on_error
@resumable
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--configs', nargs='+', default=[''], help='parts of the paths of configs to use')
    parser.add_argument('--sizes', nargs='+', type=parse_sides, default=[(512, 512), (800, 1216)],
                        help='image sizes, such as 512 or 800x1216')
    parser.add_argument('--rounds', type=int, default=5, help='timed calls of each')
    parser.add_argument('--bf16', action='store_true', help='time in bfloat16, not in float32')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/same'), help='folder for the results')
    args = parser.parse_args()
    check_least(args, 1, 'rounds')
    machine = describe_machine(args.device)
    results = Results(args.work_dir, dict(machine, versions=versions(LIBRARIES_AND_TORCH), rounds=args.rounds,
                                          bf16=args.bf16, threads=torch.get_num_threads()))
    failed: dict[str, str] = {}
    measured: dict[str, Row] = {}  # several configs have the same backbone
    for library, config in find_configs():
        cfg = read_config(str(shipped_configs(library) / config))
        if not (any(part in config for part in args.configs) and is_recognised(cfg.model.get('backbone') or {})):
            continue
        for size in args.sizes:
            key, backbone = f'{library}::{config} {size}', f'{part_of(cfg)} {size}'
            try:
                if key not in results:
                    row = measured.get(backbone) or measure(cfg, size, args.device, args.rounds, args.bf16)
                    measured[backbone] = row
                    results.put(key, dict(library=library, config=config, size='x'.join(map(str, size)), **row))
                    say(f'{key}: {row["difference"]:.0e}, forward {row["forward"] / row["forward, theirs"]:.2f}, step '
                        f'{row["step"] / row["step, theirs"]:.2f}')
            except (CannotSwap, RuntimeError) as error:
                failed[f'{library}::{config}'] = first_line(error)
    text = to_markdown(list(results.values()), failed)
    write_text(args.work_dir / 'same.md', text)
    say(f'{machine["machine"]}, torch {machine["torch"]}', text)


if __name__ == '__main__':
    main()
