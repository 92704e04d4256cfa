"""The file with the best scores of the classes of a detector, which a test writes and a prediction finds."""
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import nn

from openmmlab_runs.engine.ranks import hash_weights
from openmmlab_runs.files import read_state, write_text

from .curves import Curve

NAME = 'thresholds.json'


def write_thresholds(folder: Path, model: nn.Module, classes: Sequence[str], curves: Sequence[Curve | None]) -> Path:
    """Writes the score that boxes of each class must exceed for the best F1, and that F1; null without objects that are
    found. The hash of the weights tells to which checkpoint they belong. Returns the file.
    """
    best = [curve.best() if curve else None for curve in curves]
    content = dict(weights=hash_weights(model), classes={
        name: one and dict(score_thr=one[0], f1=one[1]) for name, one in zip(classes, best, strict=True)})
    write_text(folder / NAME, json.dumps(content, indent=1, ensure_ascii=False))
    return folder / NAME


def find_thresholds(folders: Iterable[Path], model: nn.Module) -> tuple[Path, dict[str, float]] | None:
    """Returns the first file for the weights of a model, and its scores by class; None if there is none.

    It looks into each folder, then into its tests, the newest first.
    """
    files = [file for folder in dict.fromkeys(folders)
             for file in (folder / NAME, *sorted(folder.glob(f'test/*/{NAME}'), reverse=True)) if file.is_file()]
    own = hash_weights(model) if files else ''
    for file in files:
        weights, thresholds = read_state(file, _parsed, 'remove it, or test the checkpoint again') or ('', {})
        if weights == own:
            return file, thresholds
    return None


def _parsed(text: str) -> tuple[str, dict[str, float]]:
    content = json.loads(text)
    return content['weights'], {name: float(one['score_thr']) for name, one in content['classes'].items() if one}
