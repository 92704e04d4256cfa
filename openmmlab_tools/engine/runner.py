"""mmengine's runner for a config that is prepared: it prints for readers, and loads a checkpoint that is open already.
"""
import itertools
import logging
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.registry import RUNNERS
from mmengine.runner import CheckpointLoader, Runner, load_state_dict
from torch import nn

from openmmlab_tools.checkpoints.fitting import check_fits, check_load_from, inner
from openmmlab_tools.checkpoints.loading import buildable
from openmmlab_tools.checkpoints.reading import Checkpoint, check_tensors, open_checkpoint
from openmmlab_tools.class_weights import mend_class_weights
from openmmlab_tools.config_walk import leaves
from openmmlab_tools.errors import UserError, filter_for_readers, show
from openmmlab_tools.files import near
from openmmlab_tools.texts import some

from .checks import check_norms
from .console import ReaderHandler
from .run_config import secrets_of

EARLIER_RUNS = itertools.count()  # of this process


class OpenedRunner(Runner):
    """A base class for mmengine's runner, with a checkpoint that is open already, and checked against the model.

    Each runner of a process has its own name, by which mmengine finds its scope, logger and metrics. mmengine itself
    names runs by the config file and the second of their start, so two runs could have the same name.
    """

    opened: list[Checkpoint]  # empty once it is loaded, which frees memory, or if there is none
    is_whole: bool  # whether the checkpoint must have all weights of the model, to resume or to test it

    def __init__(self, *args: Any, cfg: Config, experiment_name: str | None = None, **kwargs: Any) -> None:
        name = experiment_name or Path(cfg.filename or 'run').stem
        if number := next(EARLIER_RUNS):
            name += f'_{number}'
        super().__init__(*args, cfg=cfg, experiment_name=name, **kwargs)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """Builds the logger, which prints as the logger before it, from its first line."""
        handlers = [handler for handler in MMLogger.get_current_instance().handlers
                    if isinstance(handler, ReaderHandler)]
        logger = super().build_logger(*args, **kwargs)
        logger.addFilter(filter_for_readers)
        for file in logger.handlers:
            if isinstance(file, logging.FileHandler) and isinstance(file.stream, TextIOWrapper):
                file.stream.reconfigure(encoding='utf-8', errors='backslashreplace')  # for any names of files
        for handler in handlers:
            handler.attach(logger)
            show(f'Checking model and data. All details are in {near(logger.log_file)}.')
        return logger

    def build_model(self, model: nn.Module | dict[str, Any]) -> nn.Module:
        built = super().build_model(buildable(model) if isinstance(model, dict) else model)
        check_norms(built)
        mend_class_weights(built)
        for checkpoint in self.opened:
            if self.is_whole:
                check_fits(built, checkpoint)
                check_tensors(dict(leaves(checkpoint.content.get('optimizer', {}), 'optimizer')), checkpoint.path)
            elif told := check_load_from(built, checkpoint):
                show(told)
        return built

    def dump_config(self) -> None:
        super().dump_config()
        if names := secrets_of(self.cfg):
            show(f'The copies of the config in {self.cfg.work_dir} do not contain its secrets ({some(names)}). To use '
                 "a copy, set the store's environment variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                 'or pass the secrets with --cfg-options.')

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Loads the open checkpoint, where mmengine would read the file again."""
        if not self.opened:
            return super().load_checkpoint(filename, *args, **kwargs)
        content = self.opened.pop().as_mmengine_has_it()
        self.call_hook('after_load_checkpoint', checkpoint=content)
        load_state_dict(inner(self.model), content['state_dict'], False, self.logger)
        self.logger.info(f'Load checkpoint from {filename}')
        return content


def build_runner(cfg: Config, hooks: Sequence[Hook] = (), checkpoint: Checkpoint | None = None, is_whole: bool = False
                 ) -> Runner:
    """Builds the runner of a config that `prepare` has completed.

    The runner loads the checkpoint where the config names one. If it `is_whole`, a UserError says that it lacks weights
    of the model.
    """
    kind = RUNNERS.get(cfg.get('runner_type', 'Runner'))
    if not (isinstance(kind, type) and issubclass(kind, Runner)):
        raise UserError(f'runner_type is {cfg.runner_type}, which is not a kind of Runner, and does not call hooks as '
                        'it does: remove runner_type from the config.')
    opened: Any = type(kind.__name__, (OpenedRunner, kind), dict(
        opened=[] if checkpoint is None else [checkpoint], is_whole=is_whole))
    runner: Runner = opened.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    return runner


@CheckpointLoader.register_scheme(r'.*\.safetensors$', force=True)
def load_from_safetensors(path: str, map_location: Any = None) -> dict[str, Any]:
    """Reads a safetensors file for mmengine's own runner and tools, which cannot read it."""
    return open_checkpoint(path, map_location or 'cpu').as_mmengine_has_it()
