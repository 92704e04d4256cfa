"""The runner of training and testing."""
from typing import Any

from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.evaluator import Evaluator
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MMLogger
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop
from mmengine.runner import Runner as MMEngineRunner
from torch import nn
from torch.utils.data import DataLoader

from cpvt_mm.datasets.checking.before_training import check_before_training
from cpvt_mm.hooks import DurableCheckpointHook

from .checked_data import check_files_of_metrics, check_while_loading
from .disk_space import replace_log_files
from .seed_each_iteration import SeedEachIteration
from .seeding import with_seeded_batches


class Runner(MMEngineRunner):
    """mmengine's runner, with runs that can be killed and resumed, and errors that name the file at fault.

    Every method here overrides a public one of mmengine's:

    - `build_logger`: a full disk is an error.
    - `build_dataloader`, `build_evaluator`: annotation files are checked before they are read, images and label maps
      when they are.
    - `build_train_loop`, `register_hooks`, `call_hook`: what is random follows from the number of the iteration.
    - `register_hook`: `CheckpointHook` becomes `DurableCheckpointHook`.
    - `wrap_model`: several processes can train on a CPU.
    """

    _train_dataloader: DataLoader | dict[str, Any] | None

    def build_logger(self, log_level: int | str = 'INFO', log_file: str | None = None, **kwargs: Any) -> MMLogger:
        """Builds the logger; see `LogFile`."""
        logger = super().build_logger(log_level, log_file, **kwargs)
        replace_log_files(logger)
        return logger

    def wrap_model(self, model_wrapper_cfg: dict[str, Any] | None, model: nn.Module) -> nn.Module:
        """Wraps the model for several processes; unless the config says how, without a device on a CPU."""
        if self.distributed and model_wrapper_cfg is None and get_device() == 'cpu':
            model_wrapper_cfg = dict(
                type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters', False))
        return super().wrap_model(model_wrapper_cfg, model)

    # An instance method here, which knows the model; the loops call it on the runner.
    def build_dataloader(self, dataloader: DataLoader | dict[str, Any], seed: int | None = None,
                         diff_rank_seed: bool = False) -> DataLoader:
        """Builds a data loader, whose dataset's pipeline checks what it loads.

        Raises:
            FileNotFoundError: If an annotation file or a folder does not exist.
            UserError: If annotations are of no use.
        """
        if isinstance(dataloader, dict) and isinstance(dataloader['dataset'], dict) and is_main_process():
            check_before_training(dataloader['dataset'])
        loader = MMEngineRunner.build_dataloader(dataloader, seed, diff_rank_seed)
        check_while_loading(loader, self.model, self.cfg.to_dict())
        return loader

    def build_evaluator(self, evaluator: Evaluator | dict[str, Any] | list[dict[str, Any]]) -> Evaluator:
        """Builds the metrics, which may read an annotation file of their own.

        Raises:
            UserError: If that file is of no use.
        """
        try:
            return super().build_evaluator(evaluator)
        except Exception:  # mmdet's does not name the file
            check_files_of_metrics(evaluator)
            raise

    def build_train_loop(self, loop: BaseLoop | dict[str, Any]) -> BaseLoop:
        """Builds the training loop, whose loader gets `SeededBatches`."""
        if isinstance(self._train_dataloader, dict):
            self._train_dataloader = with_seeded_batches(
                self._train_dataloader, self.seed, lambda: self.seeding.iteration, endless='max_iters' in loop)
        return super().build_train_loop(loop)

    def register_hooks(self, default_hooks: dict[str, Hook | dict[str, Any]] | None = None,
                       custom_hooks: list[Hook | dict[str, Any]] | None = None) -> None:
        """Registers the config's hooks and `SeedEachIteration`."""
        super().register_hooks(default_hooks, custom_hooks)
        self.seeding = SeedEachIteration()
        self.register_hook(self.seeding)

    def register_hook(self, hook: Hook | dict[str, Any], priority: str | int | None = None) -> None:
        """Registers a hook. The config of a `CheckpointHook`, however it names it, makes a `DurableCheckpointHook`."""
        if isinstance(hook, dict):
            with HOOKS.switch_scope_and_registry(hook.get('_scope_')) as hooks:
                cls = hooks.get(hook['type']) if isinstance(hook.get('type'), str) else hook.get('type')
            if cls is CheckpointHook:
                hook = dict(hook, type=DurableCheckpointHook)
        super().register_hook(hook, priority)

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """Calls all hooks. They tell the end of an epoch, also of one that is resumed, by the index of the batch."""
        if self.seeding.done and fn_name in ('before_train_iter', 'after_train_iter'):
            kwargs['batch_idx'] += self.seeding.done
        super().call_hook(fn_name, **kwargs)
