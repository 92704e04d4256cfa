"""Trains and tests configs of all supported libraries, with errors in one sentence."""
import copy
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_rank, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import RUNNERS
from mmengine.runner import CheckpointLoader, Runner, load_state_dict
from torch.distributed import DistError

from openmmlab_tools.checkpoints.fitting import check_fits, check_load_from, inner
from openmmlab_tools.checkpoints.reading import Checkpoint, check_tensors, open_checkpoint
from openmmlab_tools.config_walk import leaves
from openmmlab_tools.data.datasets import classes_of
from openmmlab_tools.errors import UserError, explain, first_line, for_readers, show
from openmmlab_tools.evaluation.reporting import EvaluationReportHook
from openmmlab_tools.files import DISK_FULL, held, write_text
from openmmlab_tools.optimizer_groups import keep_groups
from openmmlab_tools.pictures.painting_hook import PaintPredictionsHook
from openmmlab_tools.registry import in_scope
from openmmlab_tools.signals import handlers_restored
from openmmlab_tools.texts import some

from .checks import check_classes, check_optim_wrapper, check_pretrained, trained_classes
from .config import secrets_of
from .console import ReadableRunner, readable_console
from .loops import lost_workers
from .prepare import prepare
from .ranks import all_or_none, process_group
from .resuming import INSTEAD, how_to_continue, prepare_to_resume
from .while_testing import KeepPredictionsHook, MergeViewsHook


@in_scope()  # mmengine has one logger and one scope for all threads
def train(cfg: Config, amp: bool | str | None = None, auto_scale_lr: bool = False, resume: str | None = None,
          hooks: Sequence[Hook] = (), verbose: bool = False) -> None:
    """Trains a config that `prepare` has completed, with mmengine's runner, or that which `runner_type` names.

    A run that is killed and resumed ends with the same weights as an uninterrupted one (see `DurableCheckpointHook` and
    `ExactResumeHook`). A process group of the caller is used; see `process_group`.

    Args:
        cfg: A config from `load_config`. Changed in place.
        amp: Trains in mixed precision, 'float16' or 'bfloat16', which needs a GPU; True takes that of the config, or
            else float16. Defaults to None: as in the config.
        auto_scale_lr: Whether to scale the learning rate with the batch size. Defaults to False.
        resume: The checkpoint, or 'auto' for the last complete one in `cfg.work_dir`, if there is one. Defaults to
            None: the config's setting.
        hooks: Additional hooks. Defaults to none.
        verbose: Whether all that mmengine logs is printed. Defaults to False.

    Raises:
        UserError: If the config, the checkpoint, the first iteration or a full disk do not allow the run.
    """
    if amp:
        cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic')
        cfg.optim_wrapper.dtype = cfg.optim_wrapper.get('dtype') if amp is True else amp
    check_optim_wrapper(cfg, 'leave out --amp.' if amp else 'train with optim_wrapper.type=OptimWrapper.')
    with (readable_console(verbose), process_group(cfg), handlers_restored(), ExitStack() as holding,
          failures_as_user_errors('training cannot begin', cfg.work_dir, resumable=True) as run):
        with all_or_none():
            if is_main_process():  # before a run that is under way removes what is read here
                holding.enter_context(held(Path(cfg.work_dir)))
        checkpoint = prepare_to_resume(cfg, resume)
        run.resumed = checkpoint.meta['iter'] if checkpoint else None
        if checkpoint:
            keep_groups(cfg.optim_wrapper, checkpoint.content['optimizer'])
        scaled = scale_rate(cfg) if auto_scale_lr or (cfg.get('auto_scale_lr') or {}).get('enable') else ''
        if cfg.get('load_from') and not checkpoint:
            checkpoint = open_checkpoint(cfg.load_from)
        check_pretrained(cfg)
        run.runner = runner = build_runner(cfg, hooks)
        if scaled and not cfg.resume:  # else the rate is the checkpoint's
            show(scaled)
        if checkpoint:
            hand_over(runner, checked(runner, checkpoint))
        del checkpoint  # frees memory once it is loaded
        runner.train()


@in_scope()
def test(cfg: Config, checkpoint: str | Path, show_dir: str | Path | None = None,
         hooks: Sequence[Hook] = (), verbose: bool = False, tta: bool = False, out: str | Path | None = None,
         report: str | Path | None = None, compare: str | Path | None = None, at_most_missed: float | None = None
         ) -> dict[str, Any]:
    """Evaluates a checkpoint, and returns the metrics by name; logs and results are in `cfg.work_dir/test/<time>`.

    Args:
        cfg: A config from `load_config`.
        checkpoint: Path or URL.
        show_dir: Folder for painted predictions of all images. Defaults to None: no painting.
        hooks: Additional hooks. Defaults to none.
        verbose: Whether all that mmengine logs is printed. Defaults to False.
        tta: Whether predictions of several views of each image are merged; see `MergeViewsHook`. Defaults to False.
        out: New or empty folder for the predictions; see `KeepPredictionsHook`. Defaults to None: they are not kept.
        report: Folder for a report; see `EvaluationReportHook`, as for the next two. Defaults to None: no report.
        compare: The report.json of another test to compare with. Defaults to None.
        at_most_missed: The share of objects that may be missed, for which scores are chosen. Defaults to None.

    Raises:
        UserError: If the config, the checkpoint, its classes or a full disk do not allow the run.
    """
    if (show_dir or out) and (cfg.launcher != 'none' or get_world_size() > 1):
        where = f'the launcher is {cfg.launcher}' if cfg.launcher != 'none' else f'there are {get_world_size()}'
        raise UserError(f'{"--show-dir paints" if show_dir else "--out writes"} in one process only, but {where}: test '
                        'without a launcher.')
    cfg = copy.deepcopy(cfg)
    cfg.resume = False
    cfg.work_dir = str(Path(cfg.work_dir, 'test'))  # not among the logs and the config of the training
    with (readable_console(verbose), process_group(cfg),
          failures_as_user_errors('the test fails', cfg.work_dir) as run):
        opened = open_checkpoint(checkpoint)
        cfg.load_from = opened.path
        more: list[Hook] = [PaintPredictionsHook(show_dir)] if show_dir else []
        if tta:
            more.append(MergeViewsHook(cfg))
        if out:
            more.append(KeepPredictionsHook(cfg, Path(out)))
        if report or compare or at_most_missed is not None:
            more.append(EvaluationReportHook(report, compare, at_most_missed))
        run.runner = runner = build_runner(cfg, [*hooks, *more])
        check_fits(runner.model, opened)
        check_classes(trained_classes(opened.meta), classes_of(runner.test_loop.dataloader.dataset), checkpoint)
        hand_over(runner, opened)
        del opened  # frees memory once it is loaded
        return runner.test()


def checked(runner: Runner, checkpoint: Checkpoint) -> Checkpoint:
    """Returns a checkpoint that fits a runner that resumes, or is told to load what fits; else raises a UserError."""
    if runner.cfg.get('resume'):
        check_fits(runner.model, checkpoint)
        check_tensors(dict(leaves(checkpoint.content['optimizer'], 'optimizer')), checkpoint.path)
    elif told := check_load_from(runner.model, checkpoint):
        show(told)
    return checkpoint


def hand_over(runner: Runner, checkpoint: Checkpoint) -> None:
    """Lets a runner load a checkpoint that is open, where it would read the file again: once, then it is forgotten."""
    opened = [checkpoint]

    def load(filename: str, map_location: Any = 'cpu', strict: bool = False, revise_keys: Any = ()) -> dict[str, Any]:
        del runner.load_checkpoint
        content = opened.pop().as_mmengine_has_it()
        runner.call_hook('after_load_checkpoint', checkpoint=content)
        load_state_dict(inner(runner.model), content['state_dict'], strict, runner.logger)
        runner.logger.info(f'Load checkpoint from {filename}')
        return content

    runner.load_checkpoint = load


@CheckpointLoader.register_scheme(r'.*\.safetensors$', force=True)
def load_from_safetensors(path: str, map_location: Any = None) -> dict[str, Any]:
    """Reads a safetensors file for mmengine's own runner and tools, which cannot read it."""
    return open_checkpoint(path, map_location or 'cpu').as_mmengine_has_it()


def scale_rate(cfg: Config) -> str:
    """Scales the learning rate to the images of an update, in place, where mmengine would not count accumulated ones,
    nor scale the rate that factors of parameters multiply. The config then is for so many images, and not scaled again.
    Returns a sentence; '' if the rate stays.
    """
    wrapper, base = cfg.optim_wrapper, (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
    rate = wrapper.get('optimizer', {}).get('lr')
    if not all(isinstance(value, int | float) and value > 0 for value in (base, rate)):
        raise UserError('--auto-scale-lr needs auto_scale_lr.base_batch_size and optim_wrapper.optimizer.lr, which are '
                        f'{base!r} and {rate!r}: set them to a batch size and the learning rate for it.')
    factors = cfg.train_dataloader.get('batch_size', 1), get_world_size(), wrapper.get('accumulative_counts', 1)
    images = math.prod(factors)
    wrapper.optimizer.lr = rate * images / base
    cfg.auto_scale_lr = dict(enable=False, base_batch_size=images)
    return '' if images == base else (
        'The learning rate is scaled from {:.4g} to {:.4g}, because it is for {} images, but an update uses {} images '
        '(batch size {} x {} processes x {} accumulated batches).'.format(
            rate, wrapper.optimizer.lr, base, images, *factors))


def build_runner(cfg: Config, hooks: Sequence[Hook] = ()) -> Runner:
    kind = RUNNERS.get(cfg.get('runner_type', 'Runner'))
    if not (isinstance(kind, type) and issubclass(kind, Runner)):
        raise UserError(f'runner_type is {cfg.runner_type}, which is not a kind of Runner, and does not call hooks as '
                        'it does: remove runner_type from the config.')
    cfg = prepare(cfg)
    if cfg.get('visualizer'):
        # Visualizers with a name are shared in a process, with their output folder; without it each run gets its own.
        cfg.visualizer.pop('name', None)
    readable: Any = type(kind.__name__, (ReadableRunner, kind), {})
    runner: Runner = readable.from_cfg(cfg)
    for hook in hooks:
        runner.register_hook(hook)
    if names := secrets_of(cfg):
        show(f'The copies of the config in {cfg.work_dir} have no secrets ({some(names)}): to use a copy, set the '
             'variables of the store, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name them with '
             '--cfg-options.')
    return runner


@dataclass
class RunState:
    """State of a run for `failures_as_user_errors`: its runner, and the iterations before it was resumed."""
    runner: Runner | None = None
    resumed: int | None = None


@contextmanager
def failures_as_user_errors(what: str, work_dir: str, resumable: bool = False) -> Iterator[RunState]:
    """Converts errors in the `with` block to a UserError that begins with `what`; writes `traceback.txt` in `work_dir`.

    After the first training iteration since a resume, only a full disk, a work dir that is gone, and deaths and hangs
    of ranks and workers are converted, because the config is hardly the cause of others. The block fills the state. If
    it is `resumable`, the error says from which checkpoint to continue.
    """
    run = RunState()
    try:
        yield run
    except (UserError, ImportError):
        raise
    except OSError as error:  # others than these have a clear message already
        if fault := _lost_disk(error, work_dir):
            how = how_to_continue(work_dir) if resumable else 'start again'
            raise UserError(f'{fault}, then {how}.') from error
        raise
    except Exception as error:
        if isinstance(error, DistError) or 'gloo/' in first_line(error):  # gloo's errors are plain RuntimeErrors
            raise UserError(f'rank {get_rank()} has lost another rank, which has died or hangs longer than env_cfg.'
                            f'dist_cfg.timeout ({first_line(error)}): see why in its log, then continue with --resume.'
                            ) from error
        if lost := lost_workers(error):
            raise lost from error
        # runner.iter would build the failed train loop.
        if run.runner and run.runner.message_hub.get_info('iter', 0) > (run.resumed or 0):
            raise
        path = Path(work_dir, 'traceback.txt')
        if is_main_process():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, for_readers(traceback.format_exc()))
        todo = f'correct the config, or {INSTEAD}' if run.resumed is not None else 'correct the config'
        raise UserError(f'{what} ({explain(error)}): {todo}, or see the traceback in {path}.') from error


def _lost_disk(error: OSError, work_dir: str) -> str:
    """Returns what to do about a full disk or a work dir that is gone; '' for other errors."""
    if isinstance(error, FileNotFoundError) and error.filename and not Path(work_dir).is_dir():
        return f'work dir {work_dir} was removed or renamed during the run: put it back if you can'
    return '' if error.errno not in DISK_FULL else (
        f'{error.filename or "a file"} cannot be written ({error.strerror}): free space for it, in {work_dir} or in '
        '/dev/shm, the shared memory of data loader workers')
