"""Measures whole detectors and segmentors with the backbones."""
import copy
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import BaseModel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.runner import set_random_seed

from cpvt_mm.models.init import logs_from
from cpvt_mm.swap import read_config, swap_backbone
from cpvt_mm.zoo.families import PYRAMID_ARCHS
from openmmlab_runs.config_walk import walk
from openmmlab_runs.errors import first_line
from openmmlab_runs.registry import in_scope

from .candidates import PEERS, Candidate, CannotMeasure
from .counting import count_flops
from .from_config import Batch, build_model, build_plain_optim_wrapper, random_batch
from .steps import Setting, Step

BOXES_OF_COCO = 7  # on an image, on average


@dataclass(frozen=True)
class WholeModels:
    """Runs a prediction, or a training step with the config's optimizer, with random images and weights.

    The learning rate is 0, so that every step trains the same model. For a compiled candidate, only the backbone is
    compiled. The backbone of `config`, see `cpvt_mm.swap.read_config`, is replaced; the rest is as in `Backbones`.
    """
    config: str
    arch: str
    drop_path_rate: float = 0.2
    device: str = 'cpu'

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        cfg = self._config(candidate)
        with in_scope(cfg.default_scope), _quietly():
            model = self._build(cfg, candidate)
            if getattr(model.data_preprocessor, 'size', None):
                model.data_preprocessor.size = setting.shape[2:]
            batch = random_batch(cfg, setting.shape[2:], setting.batch_size, BOXES_OF_COCO)
            if setting.mode == 'forward':
                return Step(model, self._predict(model.eval(), batch, setting))
            optim_wrapper = build_plain_optim_wrapper(model, cfg, lr=0.)
            return Step(model, self._train(model.train(), optim_wrapper, batch, setting), optim_wrapper)

    def flops(self, candidate: Candidate, setting: Setting) -> int | None:
        return count_flops(replace(self, drop_path_rate=0.).step(candidate.plain(), setting).run)

    def max_abs_diff(self, step: Step, setting: Setting) -> None:
        """Returns None, because the models have different random weights."""

    def _config(self, candidate: Candidate) -> Config:
        """Makes the config with the candidate as its backbone, without batch augmentations that set the image size."""
        peer = PEERS[candidate.name]
        if peer.type is None:
            raise CannotMeasure(f'{candidate} is in no registry of OpenMMLab, so configs cannot use it.')
        cfg = copy.deepcopy(_with_pyramid(self.config, self.arch))
        for _, node in walk(cfg.model):
            if node.get('type') == PEERS['cpvt_mm'].type:
                out_indices = {key: node[key] for key in ('out_indices',) if key in node}
                arguments = peer.complete(candidate, PYRAMID_ARCHS[self.arch], self.drop_path_rate)
                node.clear()
                node.update(type=peer.type, **{**out_indices, **arguments})
            if 'batch_augments' in node:
                node['batch_augments'] = None
        return cfg

    def _build(self, cfg: Config, candidate: Candidate) -> BaseModel:
        try:
            PEERS[candidate.name].load()
            set_random_seed(0)
            model = revert_sync_batchnorm(build_model(cfg))
            model.init_weights()
        except Exception as error:  # imports and constructors can raise any error
            raise CannotMeasure(f'{candidate} cannot be built ({type(error).__name__}: {first_line(error)}).'
                                ) from error
        model = model.to(self.device)
        candidate.compile(model.backbone)
        return model

    def _predict(self, model: BaseModel, batch: Batch, setting: Setting) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad(), setting.autocast(self.device):
                model.test_step(copy.deepcopy(batch))  # a copy, because predictions are written into the batch
        return run

    def _train(self, model: BaseModel, optim_wrapper: OptimWrapper, batch: Batch,
               setting: Setting) -> Callable[[], None]:
        @contextmanager
        def autocast(model: BaseModel) -> Iterator[None]:
            with setting.autocast(self.device):
                yield

        optim_wrapper.optim_context = autocast  # mmengine's own context needs a GPU
        for count in ('iter', 'epoch'):  # a runner does the same
            MessageHub.get_current_instance().update_info(count, 0)
        return lambda: model.train_step(copy.deepcopy(batch), optim_wrapper)  # a copy, too


@functools.cache
def _with_pyramid(config: str, arch: str) -> Config:
    """Swaps PyramidCPVT into the config, and adapts the channels of necks and heads."""
    with _quietly():
        return swap_backbone(read_config(config), arch)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences mmengine's log and warnings of constructors."""
    with logs_from(logging.ERROR), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield
