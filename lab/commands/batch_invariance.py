"""Times predictions of a detector or segmentor for images of several sizes: one by one, in a batch, and with the hook.

The weights are random. The table in docs/guides/variable_size.md is made with this command.
"""
import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from cpvt_mm import make_batch_invariant
from cpvt_mm.tokens.grid import Size
from lab.arguments import parse_batch, positive
from lab.from_config import build_model, random_batch
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.texts import markdown_table

SIZES = '256x320+360x360+520x696+256x256'
PREPROCESSORS = dict(mmdet='DetDataPreprocessor', mmseg='SegDataPreProcessor')


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Returns the median time of calls, after one that does not count."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def time_model(cfg: Config, sizes: Sequence[Size], rounds: int) -> list[float]:
    """Returns the seconds for images of some sizes, one by one, in a batch without the hook, and with the hook."""
    cfg.model.backbone.padding = 'exact'
    cfg.model.data_preprocessor.type = f'cpvt_mm.{PREPROCESSORS[cfg.default_scope]}'
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.test_cfg = dict(size_divisor=32)
    model = build_model(cfg).eval()
    pairs = [random_batch(cfg, size) for size in sizes]
    alone = [{key: values[:1] for key, values in pair.items() if key in ('inputs', 'data_samples')} for pair in pairs]
    whole = {key: [values[0] for values in (pair[key] for pair in alone)] for key in alone[0]}

    def predict(*batches: dict[str, Any]) -> None:
        for batch in batches:
            model.test_step(copy.deepcopy(batch))

    times = [seconds(lambda: predict(*alone), rounds), seconds(lambda: predict(whole), rounds)]
    make_batch_invariant(model)
    return [*times, seconds(lambda: predict(whole), rounds)]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('configs', nargs='+', type=Path, help='configs of detectors or segmentors with our backbones')
    parser.add_argument('--sizes', type=parse_batch, default=parse_batch(SIZES), metavar='SIZES',
                        help=f'height and width of each image, as in {SIZES}')
    parser.add_argument('--rounds', type=positive, default=3, help='timed calls; their median counts')
    return parser.parse_args()


@exit_on_error
@torch.no_grad()
def main() -> None:
    args = parse_args()
    rows = [[path.stem, *(f'{value:.3g}' for value in time_model(load_config(path), args.sizes, args.rounds))]
            for path in args.configs]
    print(markdown_table(['model', 'one by one, s', 'one batch, no hook, s', 'one batch, with the hook, s'], rows))
