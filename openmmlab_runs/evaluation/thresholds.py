"""The score that boxes of each class must exceed for the best F1: measured by a test, and found by a prediction."""
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from openmmlab_runs.checkpoints.fitting import hash_weights
from openmmlab_runs.files import read_state, write_text

from .matching import Matches

NAME = 'thresholds.json'  # the file with the best scores, which a test writes and a prediction finds
Best = tuple[float, float | None] | None  # a score, and its F1


def best_scores(matches: Matches) -> list[Best]:
    """Returns for each class the score that boxes must exceed for the best F1, and that F1; None if no object is found.

    The matches are those of boxes and objects of one class; see `match`.
    """
    return [_best_score(matches.scores[own], matches.is_hit[own], int(objects)) for own, objects in (
        (matches.predicted == label, number) for label, number in enumerate(matches.objects))]


def _best_score(scores: np.ndarray, is_hit: np.ndarray, objects: int) -> Best:
    order = np.argsort(-scores, kind='stable')
    scores, hits = scores[order], is_hit[order].cumsum()
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # boxes of one score count together
    if not is_hit.any():
        return None
    f1 = 2 * hits[last] / (last + 1 + objects)
    index = int(f1.argmax())
    # Half way to the next box; rounded as scores are, it must stay below that of the last box.
    score, below = np.float32(np.append(scores[last], 0)[index:index + 2])
    return float(min((score + below) / 2, np.nextafter(score, below))), float(f1[index])


def write_thresholds(folder: Path, model: nn.Module, classes: Sequence[str], best: Sequence[Best],
                     at_most_missed: float | None = None) -> Path:
    """Writes scores and their F1, null without objects that are found, and the share of objects that they may miss. The
    hash of the weights tells to which checkpoint they belong. Returns the file.
    """
    content = dict(weights=hash_weights(model), at_most_missed=at_most_missed, classes={
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
