"""Tests the pipeline and the model with one real sample of a dataset."""
from collections.abc import Iterator

import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner

from cpvt_mm.data.checking.findings import Finding, Kind
from cpvt_mm.data.checking.first_sample import load_first
from cpvt_mm.errors import UserError, explain

from .normalization import check_normalization


def try_split(cfg: Config, split: str) -> Iterator[Finding]:
    """Runs the pipeline on a sample of a config's dataset; for 'train', also the data preprocessor and the losses.

    Args:
        cfg: See `cpvt_mm.engine.load_config`.
        split: 'train', 'val' or 'test'; the config must have its dataloader.

    Yields:
        A finding, if the sample fails.
    """
    name = f'{split}_dataloader.dataset'
    model = None
    try:
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            loader = Runner.build_dataloader(
                {**cfg[f'{split}_dataloader'], 'num_workers': 0, 'persistent_workers': False})
            sample = load_first(loader.dataset, name)
            if split == 'train':
                model_cfg = dict(cfg.model)
                if cfg.get('data_preprocessor'):  # mmengine's runner merges it in the same way
                    model_cfg.setdefault('data_preprocessor', cfg.data_preprocessor)
                model = revert_sync_batchnorm(MODELS.build(model_cfg))
                check_normalization(model)
                # BatchNorm needs at least two samples.
                batch = loader.collate_fn([sample] * min(getattr(loader.batch_sampler, 'batch_size', 1), 2))
                with torch.no_grad():
                    model.train()(**model.data_preprocessor(batch, True), mode='loss')
    except UserError as error:
        yield Finding(Kind.SAMPLE, name, f'fails: {str(error).removeprefix(f"{name}: ")}')
    except Exception as error:  # models can raise any error
        yield Finding(Kind.SAMPLE, name, f'has a first sample that the model fails on ({explain(error, model)})'
                      if model else f'fails ({explain(error)})')
