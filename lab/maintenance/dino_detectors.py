"""Measures training steps of Mask R-CNN with DINOv3-S, frozen and trained, here and with timm's model under its neck.

It prints a table: the peak memory of a step (weights, gradients, optimizer and activations), and the time of the
fastest.
"""
import argparse
import copy
import warnings
from pathlib import Path

import torch
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from torch import Tensor, nn

from lab.candidates import Candidate
from lab.from_config import build_model, random_batch
from lab.running import describe_machine, measure_group
from lab.steps import Setting, Step
from openmmlab_runs.engine import load_config
from openmmlab_runs.texts import markdown_table

ROOT = Path(__file__).parents[2]

CONFIG = ROOT / 'configs/dino/mask-rcnn_dinov3-s_sfp_1x_coco.py'
BOXES = 7


class TimmDino(nn.Module):
    """timm's DINOv3-S, which returns the map of its last block."""

    def __init__(self) -> None:
        super().__init__()
        import timm
        self.model = timm.create_model('vit_small_patch16_dinov3_qkvb', num_classes=0, dynamic_img_size=True,
                                       drop_path_rate=0.1)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps: list[Tensor] = self.model.forward_intermediates(x, indices=[-1], norm=True, intermediates_only=True)
        return maps


class Detectors:
    """Builds the detectors: `cpvt_mm` and `timm`, with or without the argument `frozen`."""
    device = 'cpu'

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        cfg = load_config(CONFIG)
        if candidate.arguments['frozen']:
            cfg.model.backbone.frozen_stages = 12
        model = build_model(cfg)
        if candidate.name == 'timm':
            model.backbone = TimmDino().requires_grad_(not candidate.arguments['frozen'])
        # The constructor for layer decay does not know timm's model.
        optim_wrapper = build_optim_wrapper(model, dict(
            type='OptimWrapper', optimizer=dict(type='AdamW', lr=0., weight_decay=0.1)))
        batch = random_batch(cfg, (setting.height, setting.width), setting.batch_size, BOXES)
        for count in ('iter', 'epoch'):  # a runner does the same
            MessageHub.get_current_instance().update_info(count, 0)
        model.train()
        return Step(model, lambda: model.train_step(copy.deepcopy(batch), optim_wrapper), optim_wrapper)

    def flops(self, candidate: Candidate, setting: Setting) -> None:
        """Returns None: not counted."""

    def max_abs_diff(self, step: Step, setting: Setting) -> None:
        """Returns None: the weights are different random ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--size', type=int, nargs=2, default=(800, 1216), help='height and width of the image')
    parser.add_argument('--rounds', type=int, default=3, help='timed steps of each')
    args = parser.parse_args()
    warnings.simplefilter('ignore')
    candidates = [Candidate(name, dict(frozen=frozen)) for frozen in (True, False) for name in ('cpvt_mm', 'timm')]
    setting = Setting('train', *args.size, 1, 'fp32', torch.get_num_threads())
    rows = measure_group(Detectors(), candidates, setting, args.rounds, 1)
    cells = ((one.name, 'yes' if one.arguments['frozen'] else 'no', f'{row["memory_mb"]:.0f}', f'{row["min_s"]:.1f}')
             for one in candidates for row in [rows[str(one)]])
    print(f'{setting}; {describe_machine("cpu")}\n')
    print(markdown_table(('backbone', 'frozen', 'memory, MB', 's'), cells))


if __name__ == '__main__':
    main()
