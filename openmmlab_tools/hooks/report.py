"""A hook that logs the model, the data and the results of a run."""
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mmengine.device import get_device
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel
from mmengine.runner import Runner
from rich.cells import cell_len

from openmmlab_tools.checkpoints.fitting import inner
from openmmlab_tools.config_walk import arch_of
from openmmlab_tools.data.datasets import classes_of
from openmmlab_tools.errors import show
from openmmlab_tools.evaluation.confusion import Confusion
from openmmlab_tools.evaluation.gathered import Gathered
from openmmlab_tools.evaluation.hidden import what_is_hidden
from openmmlab_tools.evaluation.matching import IOU, SCORE
from openmmlab_tools.evaluation.reporting import Report
from openmmlab_tools.evaluation.thresholds import best_scores, write_thresholds
from openmmlab_tools.files import near, write_figure, write_text
from openmmlab_tools.registry import HOOKS
from openmmlab_tools.texts import label, printable

from .checkpoint import best_checkpoints

# The number of validations in a table, and the number of classes that are named at the start of a run.
MAX_COLUMNS, MAX_CLASSES = 5, 10
VALIDATIONS = 'validations'  # the key of the message hub for the metrics by iteration


@HOOKS.register_module()
class ReportHook(Hook):
    """Logs the model, the data, and the results of validations and tests. From the first validation on, it writes:

    - `curve.png`: the loss and the metrics by iteration.
    - `confusion.png`: the confusion matrix of the last validation or test, for detectors and segmentors.
    - `validations.json`: the metrics by iteration, including validations before a resume.

    A test of a detector also writes `thresholds.json` with the scores of the best F1 into the work dir. Predictions
    with the checkpoint use these scores; see `find_thresholds`. At the end, notes list what the metrics do not show;
    see `what_is_hidden`.

    Args:
        folder: Folder for the report of a test; see `Report`. Defaults to None: no report.
        compare: The report.json of another test to compare with. Defaults to None.
        at_most_missed: The share of objects that may be missed: thresholds are chosen for it. Defaults to None.
    """

    priority = 'LOW'  # before CheckpointHook, which may repeat a validation when training begins

    def __init__(self, folder: str | None = None, compare: str | None = None, at_most_missed: float | None = None
                 ) -> None:
        is_asked = folder or compare or at_most_missed is not None
        self.report = Report(folder, compare, at_most_missed) if is_asked else None
        self.is_training = False
        self.classes = ''  # the text on metrics by class
        self.hidden: list[str] = []  # sentences on the last validation or test

    def before_train(self, runner: Runner) -> None:
        self.is_training = self.is_first = True
        show(table(summary(runner)))

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if self.is_first:  # LoggerHook tells nothing for many iterations
            self.is_first = False
            left = timedelta(seconds=int(runner.message_hub.get_info('eta', 0)))
            show(f'First iteration done. At this speed, the remaining iterations take {left}.')

    def before_val(self, runner: Runner) -> None:
        self.gathered = Gathered(runner.val_loop)

    def before_test(self, runner: Runner) -> None:
        self.gathered = Gathered(runner.test_loop, keeps=self.report is not None)
        if self.report:
            self.report.begin(self.gathered, isinstance(runner.model, BaseTTAModel))

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        for sample in outputs or ():
            self.gathered.add(sample)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        for sample in outputs or ():
            result = self.gathered.add(sample)
            if self.report:
                self.report.check(sample, result)

    def after_val_epoch(self, runner: Runner, metrics: Mapping[str, Any] | None = None) -> None:
        if not self.is_training:
            return
        values = self._by_class(runner, runner.work_dir, metrics or {}, f'validation after iteration {runner.iter}')
        # If a run was killed after its checkpoint, the hub does not contain its later validations.
        validations = {**runner.message_hub.runtime_info.get(VALIDATIONS, {}), runner.iter: values}
        runner.message_hub.update_info(VALIDATIONS, validations)
        if is_main_process():
            write_text(Path(runner.work_dir, 'validations.json'), json.dumps(validations, indent=1))
            draw_curve(runner, validations)
        shown = sorted(validations)[-MAX_COLUMNS:]
        show(table([('validation after', *shown), *(
            (name, *(validations[iteration].get(name, math.nan) for iteration in shown)) for name in values)]))

    def after_test_epoch(self, runner: Runner, metrics: Mapping[str, Any] | None = None) -> None:
        values = self._by_class(runner, runner.log_dir, metrics or {}, 'test')
        best = best_scores(self.confusion.matches) if self.confusion.matches else []
        show(f'{table(values.items())}\n{self.classes}')
        if best and not isinstance(runner.model, BaseTTAModel):  # scores are others without its views
            file = write_thresholds(Path(runner.log_dir), inner(runner.model), self.confusion.classes, best)
            show(f'{near(file)} contains the score with the best F1 for each class. Predictions with this checkpoint '
                 'draw only boxes above it, unless a test with --at-most-missed has chosen other scores.')
        if self.report and is_main_process():
            hooks = {type(hook).__name__ for hook in runner.hooks}
            is_exact = runner.test_loop.dataloader.batch_size == 1 or 'BatchInvariantHook' in hooks
            # The report overwrites the thresholds.json that this hook has written.
            self.report.write(self.gathered, is_exact, self.hidden, f'{runner.cfg.filename}, {runner.cfg.load_from}',
                              Path(runner.log_dir), inner(runner.model))

    def after_train(self, runner: Runner) -> None:
        rows = [('loss and metrics', near(Path(runner.work_dir, 'curve.png')))]
        if is_main_process():
            draw_curve(runner, runner.message_hub.runtime_info.get(VALIDATIONS, {}))
        best, last = [*best_checkpoints(runner).values()], runner.message_hub.get_info('last_ckpt')
        if best or last:
            rows.append((f'{"best" if best else "last"} checkpoint', near(best[0] if best else last)))
        show(f'{self.classes}\n{table(rows)}')

    def _by_class(self, runner: Runner, folder: str, metrics: Mapping[str, Any], title: str) -> dict[str, float]:
        """Makes the text and the figure on classes; returns the metrics that are numbers, but not of one class."""
        self.gathered.merge()
        self.confusion, self.hidden = Confusion(self.gathered), []
        values = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float | np.number)}
        total = self.confusion.total()
        if total is None:
            return values
        names, columns = self.confusion.classes, self.confusion.by_class(total)
        if all(keys := ap_keys(values, names)):  # the columns have AP of each kind
            values = {name: value for name, value in values.items() if name not in keys}
        path = Path(folder, 'confusion.png')
        if is_main_process():
            self.confusion.draw(total, path, title)
        note = '' if self.confusion.counts else (
            f' (recall and precision: boxes with a score from {SCORE}, matched at IoU {IOU})')
        self.hidden = what_is_hidden(self.confusion, runner.cfg.model.get('test_cfg'))
        rows = [('class', *columns), *zip(names, *columns.values(), strict=True)]
        self.classes = '\n'.join([
            f'{title}, by class{note}:', table(rows), f'{near(path)} shows which classes the model confuses.',
            *self.hidden])
        return values


def ap_keys(metrics: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the names of CocoMetric's AP of each class, which may have slashes; '' without `classwise`."""
    return [min((key for key in metrics if f'/{key}'.endswith(f'/{name}_precision')), key=len, default='')
            for name in names]


def table(rows: Iterable[Sequence[Any]]) -> str:
    """Returns aligned rows of cells; '-' is for a metric without objects, for which mmdet has -1."""
    def cell(value: Any) -> str:
        if not isinstance(value, float):
            return printable(value)
        return '-' if math.isnan(value) or value == -1 else f'{value:.3f}'

    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]  # some characters take two columns

    def aligned(text: str, width: int, index: int) -> str:
        space = ' ' * (width - cell_len(text))
        return space + text if index and len(widths) > 2 else text + space

    return '\n'.join('  '.join(map(aligned, row, widths, count())).rstrip() for row in cells)


def summary(runner: Runner) -> Iterator[tuple[str, str]]:
    """Yields what is trained on what, and where results go: names and texts."""
    cfg, model = runner.cfg, inner(runner.model)
    backbone = cfg.model.get('backbone') or {}
    parts: dict[str, Any] = {type(model).__name__: model}
    if hasattr(model, 'backbone'):
        parts[f'backbone {type(model.backbone).__name__} {arch_of(backbone) or ""}'.rstrip()] = model.backbone
    yield 'model', ', '.join(f'{name} ({sum(x.numel() for x in part.parameters()) / 1e6:.1f} M parameters)'
                             for name, part in parts.items())
    start = (backbone.get('init_cfg') or {}).get('checkpoint') if isinstance(backbone.get('init_cfg'), dict) else None
    yield 'weights', cfg.get('load_from') or (f'backbone from {start}, all others random' if start else 'random')
    data = runner.train_dataloader.dataset
    for split in ('train', 'val') if runner.val_loop else ('train',):
        yield split, f'{len(getattr(runner, f"{split}_dataloader").dataset)} images'
    classes = classes_of(data)
    yield 'classes', f'{len(classes)}: ' + ', '.join([*classes[:MAX_CLASSES], *['...'] * (len(classes) > MAX_CLASSES)])
    batch, counts = cfg.train_dataloader.batch_size * get_world_size(), cfg.optim_wrapper.get('accumulative_counts', 1)
    text = f'{batch} images on {get_world_size()} x {get_device()}'
    text += f', {counts} batches for each update' if counts > 1 else ''
    optimizer = runner.optim_wrapper.optimizer
    rates = [float(group.get('initial_lr', group['lr'])) for group in optimizer.param_groups]  # before a schedule
    ends = dict.fromkeys(f'{rate:.4g}' for rate in (min(rates), max(rates)))
    yield 'batch', f'{text}; {type(optimizer).__name__}, lr {" to ".join(ends)}'
    unit = 'epochs' if 'max_epochs' in cfg.train_cfg else 'iterations'
    epochs = cfg.train_cfg.get('max_epochs') or runner.max_iters * batch / len(data)
    yield 'schedule', f'{runner.max_iters} iterations ({epochs:.3g} epochs)' + (
        f'; validation every {getattr(runner.train_loop, "val_interval", 1)} {unit}' if runner.val_loop else '')
    if runner.iter:
        yield 'resumed', f'after iteration {runner.iter}'
    yield 'results in', near(runner.work_dir)


def draw_curve(runner: Runner, validations: Mapping[int, Mapping[str, float]]) -> None:
    panels = 2 if validations else 1
    figure = Figure((6.5 * panels, 4.5), layout='constrained')
    left, *rest = figure.subplots(1, panels, squeeze=False)[0]
    if 'train/loss' in runner.message_hub.log_scalars:  # models with their own train_step do not log it
        losses = runner.message_hub.get_scalar('train/loss').data[0]
        steps, window = np.arange(-len(losses), 0) + runner.iter + 1, max(len(losses) // 50, 1)
        left.plot(steps, losses, color='C0', alpha=0.3, linewidth=0.8)
        left.plot(steps[window - 1:], np.convolve(losses, np.full(window, 1 / window), 'valid'), color='C0')
    left.set(title='loss', xlabel='iteration')
    for right in rest:
        _draw_metrics(right, validations)
    write_figure(Path(runner.work_dir, 'curve.png'), figure)


def _draw_metrics(axes: Axes, validations: Mapping[int, Mapping[str, float]]) -> None:
    for name in dict.fromkeys(name for metrics in validations.values() for name in metrics):
        values = [metrics.get(name, math.nan) for metrics in validations.values()]
        if any(value not in (-1, math.nan) for value in values):  # mmdet's -1: there are no objects
            axes.plot([*validations], [math.nan if value == -1 else value for value in values], '.-',
                      label=label(name))
    axes.set(title='validation', xlabel='iteration')
    if axes.lines:
        axes.legend(loc='center left', bbox_to_anchor=(1, 0.5), fontsize=8)
