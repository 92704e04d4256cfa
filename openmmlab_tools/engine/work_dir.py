"""The work dir of a training: the checkpoints in it, and from which of them the training resumes."""
import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

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
# The advice for a checkpoint whose state does not fit.
INSTEAD = 'start from its weights with --cfg-options load_from=CHECKPOINT instead of --resume'


class Start(NamedTuple):
    """From what a training starts, unless from the beginning."""
    resume: str | None = None  # a checkpoint, or 'auto' for the result of `find_checkpoint`
    load_from: str | None = None  # the weights that it loads, if it resumes nothing


class WorkDir:
    """A folder with checkpoints, and the file `last_checkpoint` with the name of the last checkpoint."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.note = self.path / 'last_checkpoint'

    def open_start(self, start: Start) -> tuple[Checkpoint | None, bool]:
        """Opens the checkpoint that training resumes or, if it resumes none, that whose weights it loads; None if there
        is none. Returns also whether training resumes.

        The main process chooses for all. If torchrun has restarted the processes, it is the result of
        `find_checkpoint`, if there is one, whatever was asked for at first.
        """
        resume = start.resume
        opened: Checkpoint | None = None
        restarted = int(os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)) > 0
        with all_or_none():
            if is_main_process() and (restarted or resume == 'auto'):
                opened = self.find_checkpoint()
            if is_main_process() and not opened and resume not in (None, 'auto'):
                opened = open_checkpoint(resume)
        if restarted and is_main_process():
            show('torchrun has restarted this run: '
                 f'{f"resuming from {opened.path}" if opened else "no checkpoint yet"}.')
        chosen = [opened.path if opened else None]
        broadcast_object_list(chosen)
        if not (path := chosen[0] or start.load_from):
            return None, False
        with all_or_none():
            checkpoint = opened or open_checkpoint(path)
        if chosen[0] is None:
            return checkpoint, False
        if missing := _missing(checkpoint):
            raise UserError(f'checkpoint {checkpoint.path} has no {", ".join(missing)}, so training cannot resume. It '
                            f'may be a published checkpoint with weights only: {INSTEAD}.')
        return checkpoint, True

    def find_checkpoint(self) -> Checkpoint | None:
        """Opens the checkpoint that `last_checkpoint` names; None if there is nothing to resume from.

        If there is no such file, because a run was killed just before it wrote the first one, it opens the complete
        checkpoint of the highest number that a run in this work dir has written. What it skips is told.

        Raises:
            UserError: If `last_checkpoint` names no complete checkpoint. Another one may be of another run.
        """
        if os.path.lexists(self.note):
            return self._named_checkpoint()
        faults: list[str] = []
        for path in self._numbered():
            try:
                checkpoint = open_checkpoint(path)
            except UserError as error:
                faults.append(_fault(error))
                continue
            if fault := _incomplete(checkpoint) or self._foreign(checkpoint):
                faults.append(fault)
                continue
            print_log(f'Resuming from {path}, because {"; ".join([*faults, f"{self.note} does not exist"])}.',
                      'current', logging.WARNING)
            return checkpoint
        show(f'{self.path} has no complete checkpoint to resume from{" (" * bool(faults)}{"; ".join(faults)}'
             f'{")" * bool(faults)}: training from the beginning.')
        return None

    def how_to_continue(self) -> str:
        """Returns what to do after an interruption: 'continue from <checkpoint> with --resume', or 'start again'."""
        # A run may be interrupted between a whole checkpoint and the note of its name.
        last = self.last_checkpoint([]) or next(map(str, self._numbered()), '')
        return f'continue from {last} with --resume' if last else 'start again'

    def last_checkpoint(self, faults: list[str]) -> str:
        """Returns the path in the file `last_checkpoint`, of a folder that may have moved since (`in_folder`); '' if
        there is no such file, or it has no path, which goes to `faults`.
        """
        try:
            named = read_state(self.note, read_note, 'remove it')
        except UserError as error:
            faults.append(_fault(error))
            return ''
        return in_folder(self.path, named) if named else ''

    def _named_checkpoint(self) -> Checkpoint:
        """Opens the checkpoint that a file names, or raises a UserError."""
        faults: list[str] = []
        if named := self.last_checkpoint(faults):
            try:
                checkpoint = open_checkpoint(named)
            except UserError as error:
                faults.append(_fault(error))
            else:
                is_remote = '://' in named  # in a storage backend of mmengine, which does not write partial objects
                if is_remote or not (fault := _incomplete(checkpoint)):
                    if not is_remote and Path(named).resolve().parent != self.path.resolve():
                        print_log(f'Resuming from {named}, in another folder, because {self.note} names it.', 'current',
                                  logging.WARNING)
                    return checkpoint
                faults.append(fault)
        others = [path.name for path in self._numbered() if str(path) != named]
        raise UserError(f'training cannot resume from what {self.note} names ({"; ".join(faults)}): put that file back,'
                        f' choose another with --resume CHECKPOINT{f" (there are {some(others)})" * bool(others)}, or '
                        'choose another --work-dir to train from the start.')

    def _numbered(self) -> list[Path]:
        """Returns the checkpoints by the number at the end of their names, the highest first."""
        paths = [path for path in self.path.glob('*.pth') if path.is_file()
                 and not path.name.startswith('best_')]  # which are for testing, and have no optimizer
        return sorted(paths, key=lambda path: int((re.findall(r'\d+', path.stem) or ['0'])[-1]), reverse=True)

    def _foreign(self, checkpoint: Checkpoint) -> str:
        """Returns a clause about a checkpoint of a run that has no log in this work dir; '' if it has.

        mmengine names a run by the time of its start, and so the folder of its log.
        """
        time = TIME.search(str(checkpoint.meta.get('experiment_name')))
        has_log = time is not None and Path(self.path, time[0]).is_dir()
        return '' if has_log else f'checkpoint {checkpoint.path} is of a run that was not in this folder'


def read_note(text: str) -> str:
    """Returns the path in the content of `last_checkpoint`; raises a ValueError if it has none."""
    path = text.strip()
    if not path or CONTROLS.search(path):
        raise ValueError('it has no path')
    return path


def in_folder(folder: str | Path, path: str) -> str:
    """Returns the path of the file of the same name in a folder if there is one, or else the path itself."""
    here = Path(folder, Path(path).name)
    return str(here) if here.is_file() else path


def _incomplete(checkpoint: Checkpoint) -> str:
    missing = _missing(checkpoint)
    return f'checkpoint {checkpoint.path} has no {", ".join(missing)}' if missing else ''


def _missing(checkpoint: Checkpoint) -> list[str]:
    missing = [key for key in NEEDED if not isinstance(checkpoint.content.get(key), dict)]
    return missing or [f'meta.{key}' for key in COUNTS if not isinstance(checkpoint.meta.get(key), int)]


def _fault(error: UserError) -> str:
    return str(error).rsplit(': ', 1)[0]
