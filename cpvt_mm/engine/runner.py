"""The runner of training and testing."""
from typing import Any

from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import HOOKS, OPTIMIZERS
from mmengine.runner import BaseLoop
from mmengine.runner import Runner as MMEngineRunner
from torch import nn
from torch.utils.data import DataLoader

from cpvt_mm.data.checking.before_training import check_before_training
from cpvt_mm.data.checking.first_sample import load_first
from cpvt_mm.errors import UserError, did_you_mean
from cpvt_mm.hooks import DurableCheckpointHook, StopOnNonFiniteLoss

from .checked_data import check_while_loading
from .disk_space import replace_log_files
from .normalization import check_normalization
from .seed_each_iteration import SeedEachIteration
from .seeding import with_seeded_batches
from .workers import WorkerInit


class Runner(MMEngineRunner):
    """mmengine's runner, for runs that can be killed and resumed, and with errors that name the faulty file.

    Every method here overrides a public method of mmengine's runner:

    - `build_logger`: a full disk raises an error.
    - `train`, `test`: check annotation files first. Only training writes the config to the work dir (`dump_config`).
    - `build_dataloader`: checks images and label maps during loading. Workers end with the process that started them.
    - `build_train_loop`, `build_val_loop`, `build_test_loop`: load a first sample at once.
    - `build_optim_wrapper`: an unknown optimizer raises an error with its name.
    - `build_train_loop`, `register_hooks`, `call_hook`: seed random draws with the number of the iteration.
    - `register_hook`: replaces `CheckpointHook` by `DurableCheckpointHook`.
    - `register_default_hooks`: adds `StopOnNonFiniteLoss`; `default_hooks.non_finite_loss=None` removes it.
    - `build_model`: checks that images are normalized for the channels of the backbone.
    - `wrap_model`: lets several processes train on a CPU.
    """

    _train_dataloader: DataLoader | dict[str, Any] | None

    def build_logger(self, log_level: int | str = 'INFO', log_file: str | None = None, **kwargs: Any) -> MMLogger:
        """Builds the logger; see `LogFile`."""
        logger = super().build_logger(log_level, log_file, **kwargs)
        replace_log_files(logger)
        return logger

    def build_model(self, model: nn.Module | dict[str, Any]) -> nn.Module:
        """Builds the model.

        Raises:
            UserError: If images are normalized for another number of channels than the backbone's `in_channels`.
        """
        built = super().build_model(model)
        check_normalization(built)
        return built

    def wrap_model(self, model_wrapper_cfg: dict[str, Any] | None, model: nn.Module) -> nn.Module:
        """Wraps the model for several processes. On a CPU, the default wrapper gets no device ids."""
        if self.distributed and model_wrapper_cfg is None and get_device() == 'cpu':
            model_wrapper_cfg = dict(
                type='MMDistributedDataParallel', device_ids=None, broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters', False))
        return super().wrap_model(model_wrapper_cfg, model)

    def dump_config(self) -> None:
        """Does nothing: mmengine's constructor calls it, and a test must not overwrite the config of the training."""

    def train(self) -> nn.Module:
        """Trains the model.

        Raises:
            UserError: If annotations cannot be used.
        """
        self._check_data('train', 'val')
        super().dump_config()
        return super().train()

    def test(self) -> dict[str, float]:
        """Evaluates the model.

        Raises:
            UserError: If annotations cannot be used.
        """
        self._check_data('test')
        return super().test()

    def _check_data(self, *splits: str) -> None:
        if is_main_process():
            check_before_training(self.cfg, splits)

    # mmengine's method is static. This one needs the model, which works because the loops call it on the runner.
    def build_dataloader(self, dataloader: DataLoader | dict[str, Any], seed: int | None = None,
                         diff_rank_seed: bool = False) -> DataLoader:
        """Builds a data loader; the pipeline of its dataset checks the loaded data.

        Raises:
            FileNotFoundError: If an annotation file or a folder does not exist.
        """
        loader = MMEngineRunner.build_dataloader(dataloader, seed, diff_rank_seed)
        check_while_loading(loader, self.model, self.cfg.to_dict())
        loader.worker_init_fn = WorkerInit(loader.worker_init_fn)
        return loader

    def build_optim_wrapper(self, optim_wrapper: OptimWrapper | OptimWrapperDict | dict[str, Any]
                            ) -> OptimWrapper | OptimWrapperDict:
        """Builds the optimizer.

        Raises:
            UserError: If the optimizer's name is unknown.
        """
        name = optim_wrapper.get('optimizer', {}).get('type') if isinstance(optim_wrapper, dict) else None
        if isinstance(name, str) and OPTIMIZERS.get(name) is None:
            raise UserError(f'optim_wrapper.optimizer.type is {name}, which is not a registered optimizer'
                            f'{did_you_mean(name, OPTIMIZERS.module_dict)}.')
        return super().build_optim_wrapper(optim_wrapper)

    def build_train_loop(self, loop: BaseLoop | dict[str, Any]) -> BaseLoop:
        """Builds the training loop with `SeededBatches` in its loader, and loads a first sample."""
        if isinstance(self._train_dataloader, dict):
            self._train_dataloader = with_seeded_batches(
                self._train_dataloader, self.seed, lambda: self.seeding.iteration, endless='max_iters' in loop)
        return self._with_good_sample(super().build_train_loop(loop), 'train_dataloader.dataset')

    def build_val_loop(self, loop: BaseLoop | dict[str, Any]) -> BaseLoop:
        """Builds the validation loop and loads a first sample."""
        return self._with_good_sample(super().build_val_loop(loop), 'val_dataloader.dataset')

    def build_test_loop(self, loop: BaseLoop | dict[str, Any]) -> BaseLoop:
        """Builds the test loop and loads a first sample."""
        return self._with_good_sample(super().build_test_loop(loop), 'test_dataloader.dataset')

    @staticmethod
    def _with_good_sample(loop: BaseLoop, name: str) -> BaseLoop:
        if is_main_process():
            load_first(loop.dataloader.dataset, name)
        return loop

    def register_hooks(self, default_hooks: dict[str, Hook | dict[str, Any]] | None = None,
                       custom_hooks: list[Hook | dict[str, Any]] | None = None) -> None:
        """Registers the config's hooks and `SeedEachIteration`."""
        super().register_hooks(default_hooks, custom_hooks)
        self.seeding = SeedEachIteration()
        self.register_hook(self.seeding)

    def register_default_hooks(self, hooks: dict[str, Hook | dict[str, Any]] | None = None) -> None:
        """Registers mmengine's default hooks and `StopOnNonFiniteLoss`."""
        hooks = {'non_finite_loss': dict(type=StopOnNonFiniteLoss), **(hooks or {})}
        if hooks['non_finite_loss'] is None:
            del hooks['non_finite_loss']
        super().register_default_hooks(hooks)

    def register_hook(self, hook: Hook | dict[str, Any], priority: str | int | None = None) -> None:
        """Registers a hook; any config of a `CheckpointHook` builds a `DurableCheckpointHook` instead."""
        if isinstance(hook, dict):
            with HOOKS.switch_scope_and_registry(hook.get('_scope_')) as hooks:
                cls = hooks.get(hook['type']) if isinstance(hook.get('type'), str) else hook.get('type')
            if cls is CheckpointHook:
                hook = dict(hook, type=DurableCheckpointHook)
        super().register_hook(hook, priority)

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """Calls all hooks. In a resumed epoch, it corrects the batch index, by which hooks recognize its end."""
        if self.seeding.done and fn_name in ('before_train_iter', 'after_train_iter'):
            kwargs['batch_idx'] += self.seeding.done
        super().call_hook(fn_name, **kwargs)
