"""The checkpoint that training goes on from."""
import logging
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from cpvt_mm.checkpoints.reading import read_checkpoint
from cpvt_mm.errors import UserError

# Keys that training needs to go on.
NEEDED = ('meta', 'state_dict', 'optimizer', 'message_hub')


def prepare_to_resume(cfg: Config, resume: str | None) -> dict[str, Any]:
    """Sets a config to go on from a checkpoint, where it or the caller asks for that.

    Args:
        cfg: Gets `resume`, and with it `load_from` and the checkpoint's seed, if it has none.
        resume: The checkpoint, 'auto' for the one that `find_checkpoint` finds, or None for what the config says.

    Returns:
        The checkpoint; empty if there is none to go on from.

    Raises:
        UserError: If the checkpoint cannot be read, or `find_checkpoint` raises it.
    """
    if cfg.get('resume'):
        resume = resume or cfg.get('load_from') or 'auto'
    found = find_checkpoint(cfg.work_dir) if resume == 'auto' else resume and (resume, read_checkpoint(resume))
    cfg.resume = bool(found)
    if not found:
        return {}
    cfg.load_from, checkpoint = found
    missing = [key for key in NEEDED if key not in checkpoint]
    if missing:
        raise UserError(f'checkpoint {cfg.load_from} has no {", ".join(missing)}, so training cannot go on from it (it '
                        'may be published): start from its weights with --cfg-options load_from=CHECKPOINT instead of '
                        '--resume.')
    randomness = cfg.get('randomness') or {}
    if randomness.get('seed') is None:
        # mmengine takes it over, too, but too late for the order of the data.
        cfg.randomness = dict(randomness, seed=checkpoint.get('meta', {}).get('seed'))
    return checkpoint


def find_checkpoint(work_dir: str) -> tuple[str, dict[str, Any]] | None:
    """Reads the checkpoint that `last_checkpoint` in a work dir names, or else the newest that is whole.

    It searches the work dir and the folder of the one that is named. The log tells which ones it passes over, and why.

    Returns:
        Its path and its content; None if there is none to go on from.

    Raises:
        UserError: If one is named, but there is none that is whole.
    """
    note = Path(work_dir, 'last_checkpoint')
    named = note.read_text().strip() if note.is_file() else ''
    if '://' in named:  # in a store of mmengine's, which writes objects whole
        return named, read_checkpoint(named)
    faults: list[str] = []
    for path in _candidates(Path(work_dir), named):
        try:
            checkpoint = read_checkpoint(path)
        except UserError as error:
            faults.append(str(error).rsplit(': ', 1)[0])
            continue
        missing = [key for key in NEEDED if key not in checkpoint]
        if not missing:
            if faults:
                print_log(f'Going on from {path}, because {"; ".join(faults)}.', 'current', logging.WARNING)
            return str(path), checkpoint
        if str(path) == named:  # others, such as best_*, are there to test with
            faults.append(f'checkpoint {path} has no {", ".join(missing)}')
    found = f'{work_dir} holds no whole checkpoint to go on from' + f' ({"; ".join(faults)})' * bool(faults)
    if named:
        raise UserError(f'{found}: name another with --resume CHECKPOINT, or remove {note} to train from the '
                        'beginning.')
    print_log(f'{found}: training from the beginning.', 'current')
    return None


def _candidates(work_dir: Path, named: str) -> list[Path]:
    """Lists the named checkpoint and then those beside it and in the work dir, the newest first."""
    first = [Path(named)] if named else []
    folders = {work_dir, *(path.parent for path in first)}
    others = sorted((path for folder in folders for path in folder.glob('*.pth') if path.is_file()),
                    key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return list(dict.fromkeys(first + others))
