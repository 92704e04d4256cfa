"""Trains and tests configs of all supported libraries, with errors in one sentence."""
import copy
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook

from openmmlab_tools.errors import UserError, show
from openmmlab_tools.exported.opening import open_weights
from openmmlab_tools.files import held
from openmmlab_tools.pictures.written_images import KeepLabelMapsHook, PaintPredictionsHook
from openmmlab_tools.registry import in_scope
from openmmlab_tools.signals import handlers_restored

from .checks import SameClassesHook
from .console import readable_console
from .failures import failures_as_user_errors
from .ranks import all_or_none, process_group
from .runner import build_runner
from .steps import at_start, for_test, for_training, prepare
from .views import MergeViewsHook
from .work_dir import WorkDir


@in_scope()  # mmengine has one logger and one scope for all threads
def train(cfg: Config, amp: bool | str | None = None, auto_scale_lr: bool = False, resume: str | None = None,
          hooks: Sequence[Hook] = (), verbose: bool = False) -> None:
    """Trains a config with mmengine's runner, or with the runner in the key `runner_type`.

    The module `steps` lists the changes to the config. On a CPU, a run that is killed and resumed ends with the same
    weights as an uninterrupted run (see `DurableCheckpointHook` and `ExactResumeHook`). If the caller has initialised a
    process group, the run uses it; see `process_group`.

    Args:
        cfg: A config from `load_config`. Changed in place.
        amp: Mixed precision: 'float16' or 'bfloat16', which requires a GPU. True uses the config's type, or float16 if
            the config has none. Defaults to None: the config's setting.
        auto_scale_lr: Whether to scale the learning rate with the batch size. Defaults to False.
        resume: The checkpoint to resume; 'auto' resumes the last complete checkpoint in `cfg.work_dir`, if there is
            one. Defaults to None: the config's setting.
        hooks: Additional hooks. Defaults to none.
        verbose: Whether to print everything that mmengine logs. Defaults to False.

    Raises:
        UserError: If the config or the checkpoint is wrong, the first iteration fails, or the disk is full.
    """
    start = for_training(cfg, amp, resume)
    work_dir = WorkDir(cfg.work_dir)
    with (readable_console(verbose), process_group(cfg.launcher, cfg.get('env_cfg') or {}) as cfg.launcher,
          handlers_restored(), ExitStack() as holding,
          failures_as_user_errors('training cannot begin', work_dir, resumable=True) as run):
        with all_or_none():
            if is_main_process():  # before a run that is under way removes what is read here
                holding.enter_context(held(work_dir.path))
        checkpoint, is_resumed = work_dir.open_start(start)
        run.resumed = checkpoint.meta['iter'] if checkpoint and is_resumed else None
        scaled = at_start(cfg, checkpoint if is_resumed else None, auto_scale_lr)
        prepared = prepare(cfg)
        run.runner = build_runner(prepared, hooks, checkpoint, is_whole=is_resumed)
        del checkpoint  # the runner frees its memory once it is loaded
        if scaled:
            show(scaled)
        run.runner.train()


@in_scope()
def test(cfg: Config, checkpoint: str | Path, show_dir: str | Path | None = None,
         hooks: Sequence[Hook] = (), verbose: bool = False, tta: bool = False, out: str | Path | None = None,
         report: str | Path | None = None, compare: str | Path | None = None, at_most_missed: float | None = None
         ) -> dict[str, Any]:
    """Evaluates a checkpoint and returns the metrics by name. Writes logs and results to `cfg.work_dir/test/<time>`.

    Args:
        cfg: A config from `load_config`.
        checkpoint: Path or URL, or an exported file.
        show_dir: Folder for pictures with the predictions of all images. Defaults to None: no pictures.
        hooks: Additional hooks. Defaults to none.
        verbose: Whether to print everything that mmengine logs. Defaults to False.
        tta: Whether to predict several views of each image and merge the predictions; see `make_views`. Defaults to
            False.
        out: New or empty folder for the predictions: `predictions.bbox.json` and `predictions.segm.json` from COCO's
            metric, or the label maps of a segmentor. Defaults to None: predictions are not saved.
        report: Folder for a report; see `ReportHook`. Defaults to None: no report.
        compare: The report.json of another test to compare with. Defaults to None.
        at_most_missed: The share of objects that may be missed: thresholds are chosen for it. Defaults to None.

    Raises:
        UserError: If the config or the checkpoint is wrong, classes do not fit, or the disk is full.
    """
    if (show_dir or out) and (cfg.launcher != 'none' or get_world_size() > 1):
        where = f'the launcher is {cfg.launcher}' if cfg.launcher != 'none' else f'there are {get_world_size()}'
        raise UserError(f'{"--show-dir paints" if show_dir else "--out writes"} in one process only, but {where}: test '
                        'without a launcher.')
    if out and (Path(out).is_file() or (Path(out).is_dir() and any(Path(out).iterdir()))):
        raise UserError(f'--out {out} is a file, or has files: choose a new folder.')
    work_dir = WorkDir(Path(cfg.work_dir, 'test'))  # not among the logs and the config of the training
    with (readable_console(verbose), process_group(cfg.launcher, cfg.get('env_cfg') or {}) as launcher,
          failures_as_user_errors('the test fails', work_dir) as run):
        cfg = copy.deepcopy(cfg)
        opened = open_weights(cfg, checkpoint)
        asked = dict(folder=report and str(report), compare=compare and str(compare), at_most_missed=at_most_missed)
        cfg = for_test(cfg, opened.path, work_dir.path, launcher, tta, out, asked)
        more: list[Hook] = [SameClassesHook(checkpoint)]
        if show_dir:
            more.append(PaintPredictionsHook(show_dir))
        if tta:
            more.append(MergeViewsHook())
        if out and cfg.default_scope == 'mmseg':
            more.append(KeepLabelMapsHook(out))
        prepared = prepare(cfg)
        run.runner = build_runner(prepared, [*hooks, *more], opened, is_whole=True)
        del opened  # the runner frees its memory once it is loaded
        metrics: dict[str, Any] = run.runner.test()
        if out:
            show(f'The predictions are in {out}.')
        return metrics
