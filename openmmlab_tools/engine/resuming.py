"""Finds the checkpoint from which training resumes."""
import logging
import os
import re
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.logging import print_log

from openmmlab_tools.checkpoints.reading import Checkpoint, open_checkpoint
from openmmlab_tools.errors import UserError, show
from openmmlab_tools.files import read_state
from openmmlab_tools.texts import CONTROLS, some

from .ranks import all_or_none

# Keys of a checkpoint that resuming needs.
NEEDED = ('meta', 'state_dict', 'optimizer', 'message_hub')
COUNTS = ('iter', 'epoch')
TIME = re.compile(r'\d{8}_\d{6}$')  # at the end of the name of a run
# What to do with a checkpoint whose state does not fit.
INSTEAD = 'start from its weights with --cfg-options load_from=CHECKPOINT instead of --resume'


def prepare_to_resume(cfg: Config, resume: str | None) -> Checkpoint | None:
    """Sets a config to resume from a checkpoint, and returns it; None if the run starts from the beginning. 'auto' is
    the result of `find_checkpoint`, and None the config's setting. The seed is set, too, if the config has none.

    The main process chooses the checkpoint for all. If torchrun has restarted the processes, training resumes from the
    result of `find_checkpoint`, if there is one, whatever was asked for at first.
    """
    if cfg.get('resume'):
        resume = resume or cfg.get('load_from') or 'auto'
    found: Checkpoint | None = None
    restarted = int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)) > 0
    with all_or_none():
        if is_main_process() and (restarted or resume == 'auto'):
            found = find_checkpoint(cfg.work_dir)
        if is_main_process() and not found and resume not in (None, 'auto'):
            found = open_checkpoint(resume)
    if restarted and is_main_process():
        show(f'torchrun has restarted this run: {f"resuming from {found.path}" if found else "no checkpoint yet"}.')
    chosen = [found and found.path]
    broadcast_object_list(chosen)
    cfg.resume = chosen[0] is not None
    if not chosen[0]:
        return None
    cfg.load_from = chosen[0]
    with all_or_none():
        checkpoint = found or open_checkpoint(cfg.load_from)
    if missing := _missing(checkpoint):
        raise UserError(f'checkpoint {cfg.load_from} has no {", ".join(missing)}, so training cannot resume from it '
                        f'(it may be a published one): {INSTEAD}.')
    randomness = cfg.get('randomness') or {}
    if randomness.get('seed') is None:
        # mmengine also restores the seed, but too late for the order of the data.
        cfg.randomness = dict(randomness, seed=checkpoint.meta.get('seed'))
    return checkpoint


def last_checkpoint(work_dir: str | Path, faults: list[str]) -> str:
    """Returns the path in the file `last_checkpoint` of a work dir, which may have moved since (`in_folder`); '' if
    there is no such file, or it has no path, which goes to `faults`.
    """
    try:
        named = read_state(Path(work_dir, 'last_checkpoint'), _path, 'remove it')
    except UserError as error:
        faults.append(_fault(error))
        return ''
    return in_folder(work_dir, named) if named else ''


def _path(text: str) -> str:
    path = text.strip()
    if not path or CONTROLS.search(path):
        raise ValueError('it has no path')
    return path


def how_to_continue(work_dir: str | Path) -> str:
    """Returns what to do after an interruption: 'continue from <last checkpoint> with --resume', or 'start again'."""
    # A run may be interrupted between a whole checkpoint and the note of its name.
    last = last_checkpoint(work_dir, []) or next(map(str, _numbered(Path(work_dir))), '')
    return f'continue from {last} with --resume' if last else 'start again'


def in_folder(folder: str | Path, path: str) -> str:
    """Returns the path of the file of the same name in a folder if there is one, or else the path itself."""
    here = Path(folder, Path(path).name)
    return str(here) if here.is_file() else path


def find_checkpoint(work_dir: str) -> Checkpoint | None:
    """Opens the checkpoint that `last_checkpoint` names; None if there is nothing to resume from.

    If there is no such file, because a run was killed just before it wrote the first one, it opens the complete
    checkpoint of the highest number that a run in this work dir has written. What it skips is told.

    Raises:
        UserError: If `last_checkpoint` names no complete checkpoint. Another one may be of another run.
    """
    note = Path(work_dir, 'last_checkpoint')
    if os.path.lexists(note):
        return _named_checkpoint(work_dir, note)
    faults: list[str] = []
    for path in _numbered(Path(work_dir)):
        try:
            checkpoint = open_checkpoint(path)
        except UserError as error:
            faults.append(_fault(error))
            continue
        if fault := _incomplete(checkpoint) or _foreign(checkpoint, work_dir):
            faults.append(fault)
            continue
        print_log(f'Resuming from {path}, because {"; ".join([*faults, f"{note} does not exist"])}.', 'current',
                  logging.WARNING)
        return checkpoint
    show(f'{work_dir} has no complete checkpoint to resume from{" (" * bool(faults)}{"; ".join(faults)}'
         f'{")" * bool(faults)}: training from the beginning.')
    return None


def _named_checkpoint(work_dir: str, note: Path) -> Checkpoint:
    """Opens the checkpoint that a file names, or raises a UserError."""
    faults: list[str] = []
    if named := last_checkpoint(work_dir, faults):
        try:
            checkpoint = open_checkpoint(named)
        except UserError as error:
            faults.append(_fault(error))
        else:
            is_remote = '://' in named  # in a storage backend of mmengine, which does not write partial objects
            if is_remote or not (fault := _incomplete(checkpoint)):
                if not is_remote and Path(named).resolve().parent != Path(work_dir).resolve():
                    print_log(f'Resuming from {named}, in another folder, because {note} names it.', 'current',
                              logging.WARNING)
                return checkpoint
            faults.append(fault)
    others = [path.name for path in _numbered(Path(work_dir)) if str(path) != named]
    raise UserError(f'training cannot resume from what {note} names ({"; ".join(faults)}): put that file back, choose '
                    f'another with --resume CHECKPOINT{f" (there are {some(others)})" * bool(others)}, or choose '
                    'another --work-dir to train from the start.')


def _numbered(work_dir: Path) -> list[Path]:
    """Returns the checkpoints in a work dir by the number at the end of their names, the highest first."""
    found = [path for path in work_dir.glob('*.pth') if path.is_file()
             and not path.name.startswith('best_')]  # which are for testing, and have no optimizer
    return sorted(found, key=lambda path: int((re.findall(r'\d+', path.stem) or ['0'])[-1]), reverse=True)


def _incomplete(checkpoint: Checkpoint) -> str:
    missing = _missing(checkpoint)
    return f'checkpoint {checkpoint.path} has no {", ".join(missing)}' if missing else ''


def _foreign(checkpoint: Checkpoint, work_dir: str) -> str:
    """Returns a clause about a checkpoint of a run that has no log in a work dir; '' if it has.

    mmengine names a run by the time of its start, and so the folder of its log.
    """
    time = TIME.search(str(checkpoint.meta.get('experiment_name')))
    has_log = time is not None and Path(work_dir, time[0]).is_dir()
    return '' if has_log else f'checkpoint {checkpoint.path} is of a run that was not in this folder'


def _missing(checkpoint: Checkpoint) -> list[str]:
    missing = [key for key in NEEDED if not isinstance(checkpoint.content.get(key), dict)]
    return missing or [f'meta.{key}' for key in COUNTS if not isinstance(checkpoint.meta.get(key), int)]


def _fault(error: UserError) -> str:
    return str(error).rsplit(': ', 1)[0]
