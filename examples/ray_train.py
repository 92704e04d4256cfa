"""Trains a config with Ray Train: if a worker dies, all begin again at the last checkpoint that Ray has.

On several machines, the work dir is on a shared disk. The same command once more goes on with what is there.
"""
import argparse
import os
import shutil
import tempfile
from contextlib import nullcontext
from typing import Any

import ray
from mmengine.hooks import Hook
from mmengine.runner import Runner
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from openmmlab_tools.cli import add_cfg_options
from openmmlab_tools.engine import load_config, train


class ReportToRay(Hook):
    """Gives Ray each checkpoint with the loss, and the metrics of each validation. All workers report together."""

    priority = 'LOWEST'  # after the hook that saves checkpoints

    def after_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        last, checkpoint = runner.message_hub.get_info('last_ckpt'), None
        if last not in (None, getattr(self, 'last', runner.cfg.load_from)):
            if runner.rank == 0:
                checkpoint = Checkpoint(tempfile.mkdtemp())
                shutil.copy(last, f'{checkpoint.path}/last.pth')
            metrics = dict(checkpoint=last, loss=runner.message_hub.get_scalar('train/loss').current())
            ray.train.report(metrics, checkpoint, delete_local_checkpoint_after_upload=True)
        self.last = last

    after_train_epoch = after_train_iter

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        ray.train.report(metrics or {})


def work(args: dict[str, Any]) -> None:
    checkpoint = ray.train.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else nullcontext() as folder:
        train(load_config(args['config'], args['cfg_options'], args['work_dir']),
              resume=folder and f'{folder}/last.pth', hooks=[ReportToRay()])


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', type=os.path.abspath)
    parser.add_argument('--work-dir', type=os.path.abspath, required=True)
    parser.add_argument('--workers', type=int, default=2)
    add_cfg_options(parser)
    args = parser.parse_args()
    ray.init()
    run = RunConfig(name='ray', storage_path=args.work_dir, failure_config=FailureConfig(max_failures=3))
    workers = ScalingConfig(num_workers=args.workers, use_gpu='GPU' in ray.cluster_resources())
    TorchTrainer(work, train_loop_config=vars(args), run_config=run, scaling_config=workers).fit()
