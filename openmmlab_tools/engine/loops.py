"""Loops that check their data: annotations, the first sample, and each file; and a wait for their workers ends."""
import re
from typing import Any

from mmengine.dataset import BaseDataset, Compose
from mmengine.dist import is_main_process
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner, TestLoop, ValLoop
from torch import nn
from torch.utils.data import DataLoader

from openmmlab_tools.checkpoints.loading import check_model
from openmmlab_tools.config_walk import walk
from openmmlab_tools.data.checked_pipeline import CheckedPipeline, load_first
from openmmlab_tools.data.config_datasets import check_before_training
from openmmlab_tools.data.datasets import classes_of, layout_of, unwrap_built
from openmmlab_tools.errors import UserError, as_sentence, first_line
from openmmlab_tools.registry import LOOPS

from .checks import check_metrics
from .ranks import all_or_none, compact

Loader = DataLoader | dict[str, Any]
LONGEST = 600.  # seconds without a batch after which workers are given up
LOST = re.compile(r'DataLoader (timed out|worker \(pid)')  # torch's errors


class _Checked:
    """Mixin for loops of mmengine: checks the data loader before its workers start (see `checked_loader`)."""

    split = 'train'

    def __init__(self, runner: Runner, dataloader: Loader, *args: Any, **settings: Any) -> None:
        loader = checked_loader(runner, dataloader, self.split)
        super().__init__(runner, loader, *args, **settings)  # type: ignore[call-arg]


@LOOPS.register_module()
class CheckedEpochBasedTrainLoop(_Checked, EpochBasedTrainLoop):
    """mmengine's loop, which checks its data, and counts the batches of a resumed epoch from its beginning."""

    def run_iter(self, idx: int, data_batch: Any) -> None:
        super().run_iter(idx + getattr(self.dataloader.batch_sampler, 'skip', 0), data_batch)


CheckedIterBasedTrainLoop, CheckedValLoop, CheckedTestLoop = (
    LOOPS.register_module(module=type(f'Checked{loop.__name__}', (_Checked, loop), dict(
        split=split, __doc__="mmengine's loop, which checks its data.")))
    for loop, split in ((IterBasedTrainLoop, 'train'), (ValLoop, 'val'), (TestLoop, 'test')))


def checked_loader(runner: Runner, dataloader: Loader, split: str) -> DataLoader:
    """Builds a data loader from its config, unless it is built already, and checks its data.

    The main process first checks the model, the metrics and the annotations, before training also those of the
    validation. Then a first sample is loaded. Pipelines name a faulty file when it is loaded. Workers are given up
    after 10 minutes without a batch. All processes end if a check fails.
    """
    with all_or_none():
        check_model(runner.model)
        if is_main_process() and split != 'val':
            splits = ('train', 'val') if split == 'train' else (split,)
            evaluators = [f'{name}_evaluator' for name in splits]
            check_metrics(runner.model, {name: runner.cfg.get(name) for name in evaluators})
            check_before_training(runner.cfg, splits)
    if isinstance(dataloader, dict):
        randomness = runner.cfg.get('randomness') or {}
        with as_sentence(f'{split}_dataloader of the config cannot be built', 'correct it', OSError):
            built = runner.build_dataloader(dataloader, runner.seed, randomness.get('diff_rank_seed', False))
    else:
        built = dataloader
    limit_waiting(built)
    compact(built.dataset)
    check_while_loading(built, runner.model, runner.cfg.to_dict())
    with all_or_none():
        if is_main_process():
            load_first(built.dataset, f'{split}_dataloader.dataset')
    return built


def check_while_loading(loader: DataLoader, model: nn.Module, cfg: dict[str, Any]) -> None:
    """Makes a loader's pipelines check the data and name the faulty file; labels that are ignored are no faults."""
    for dataset in unwrap_built(loader.dataset):
        # Only mmengine's own class: pipelines of other classes may do more than run their transforms.
        if type(getattr(dataset, 'pipeline', None)) is Compose:
            layout = layout_of(type(dataset))
            dataset.pipeline = CheckedPipeline(
                dataset.pipeline.transforms, layout in ('coco', 'panoptic'),
                len(classes_of(dataset)) if layout == 'label maps' else None, _ignored(dataset, model, cfg))


def _ignored(dataset: BaseDataset, model: nn.Module, cfg: dict[str, Any]) -> set[int]:
    """Returns the labels that the dataset, a part of the model or a metric ignores, and 255, which means no label."""
    modules = [getattr(module, 'ignore_index', None) for module in model.modules()]
    configs = [part.get('ignore_index') for _, part in walk(cfg)]
    return {255, getattr(dataset, 'ignore_index', 255), *(
        label for label in (*modules, *configs) if isinstance(label, int))}


def limit_waiting(loader: DataLoader) -> None:
    """Sets the time after which workers without a batch are given up, unless the config sets one (`timeout`)."""
    if loader.num_workers and not loader.timeout:
        loader.timeout = LONGEST


def lost_workers(error: Exception) -> UserError | None:
    """Returns the sentence for an error of torch that workers are gone or give no batch; None for other errors."""
    if not LOST.search(first_line(error)):
        return None
    return UserError(f'the workers of a data loader have stopped ({first_line(error).rstrip(".")}). Read their errors '
                     'above. If they lack memory or shared memory (shm), start the container with more (docker run '
                     '--shm-size 8g), or lower num_workers or batch_size.')
