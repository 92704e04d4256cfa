"""One real sample of a dataset: through its pipeline, and through the model."""
import logging
import os
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from mmengine.runner import Runner

from cpvt_mm.errors import UserError, explain

from .findings import Finding, Kind
from .images import check_image


def load_first(dataset: Any, name: str) -> Any:
    """Loads one sample through the pipeline, and warns of what is wrong with its image, such as 16 bits a channel.

    Args:
        dataset: A dataset that is built.
        name: The dotted name of its config, for the error.

    Raises:
        UserError: If it does not pass.
    """
    path = dataset.get_data_info(0).get('img_path') if hasattr(dataset, 'get_data_info') else None
    if isinstance(path, str) and os.path.isfile(path):
        for finding in check_image(path):
            print_log(f'{finding.file} {finding.detail}; tools/misc/check_dataset.py finds all such files.', 'current',
                      logging.WARNING)
    try:
        return dataset[0]
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:  # transforms raise what they like
        raise UserError(f'{name}: sample {path or 0} does not pass the pipeline ({explain(error)}): correct '
                        f'{name}.pipeline of the config, or the annotation.') from error


def try_split(cfg: Config, split: str) -> Iterator[Finding]:
    """Sends a sample of a config's dataset through its pipeline; in training also through data preprocessor and losses.

    Args:
        cfg: See `cpvt_mm.engine.load_config`.
        split: 'train', 'val' or 'test'; the config has its dataloader.
    """
    name = f'{split}_dataloader.dataset'
    model = None
    try:
        loader = Runner.build_dataloader(
            {**cfg[f'{split}_dataloader'], 'num_workers': 0, 'persistent_workers': False})
        sample = load_first(loader.dataset, name)
        if split == 'train':
            # As mmengine's runner merges the two.
            preprocessor = {key: cfg[key] for key in ('data_preprocessor',) if cfg.get(key)}
            model = revert_sync_batchnorm(MODELS.build({**preprocessor, **cfg.model}))
            # Norms of a batch need two.
            batch = loader.collate_fn([sample] * min(getattr(loader.batch_sampler, 'batch_size', 1), 2))
            with torch.no_grad():
                model.train()(**model.data_preprocessor(batch, True), mode='loss')
    except UserError as error:
        yield Finding(Kind.SAMPLE, name, f'fails: {str(error).removeprefix(f"{name}: ")}')
    except Exception as error:  # so do models
        yield Finding(Kind.SAMPLE, name, f'has a first sample that the model fails on ({explain(error, model)})'
                      if model else f'fails ({explain(error)})')
