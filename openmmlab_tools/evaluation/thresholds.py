"""The scores that boxes of each class must exceed: measured by tests, for two purposes, and found by a prediction."""
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from openmmlab_tools.checkpoints.fitting import hash_weights
from openmmlab_tools.files import read_state, write_text

from .intervals import CONFIDENCE
from .matching import Matches

NAME = 'thresholds.json'  # the file with the scores, which a test writes and a prediction finds
Best = tuple[float, float | None] | None  # a score, and its F1


def best_scores(matches: Matches) -> list[Best]:
    """Returns for each class the score threshold with the best F1, and this F1; None if no object is found.

    Use matches between boxes and objects of the same class; see `match`.
    """
    return [_best_score(matches.scores[is_of_class], matches.is_hit[is_of_class], int(objects))
            for is_of_class, objects in (
        (matches.predicted == label, number) for label, number in enumerate(matches.objects))]


def _best_score(scores: np.ndarray, is_hit: np.ndarray, objects: int) -> Best:
    order = np.argsort(-scores, kind='stable')
    scores, hits = scores[order], is_hit[order].cumsum()
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # boxes of one score count together
    if not is_hit.any():
        return None
    f1 = 2 * hits[last] / (last + 1 + objects)
    index = int(f1.argmax())
    # Half way to the score of the next box; rounded to float32, it must stay below the score of the last box.
    score, below = np.float32(np.append(scores[last], 0)[index:index + 2])
    return float(min((score + below) / 2, np.nextafter(score, below))), float(f1[index])


class Thresholds(NamedTuple):
    """Scores that boxes must exceed, by the names of classes, from a file.

    Attributes:
        most: The share of the objects of new images that they may miss; None for scores with the best F1.
        confidence: The probability with which they keep to it; None in files of earlier versions, which promised less.
    """
    file: Path
    scores: dict[str, float]
    most: float | None = None
    confidence: float | None = None

    @property
    def told(self) -> str:
        """Which scores these are, and their purpose."""
        if self.most is None:
            return f'whose score is above the score with the best F1 for their class in {self.file}'
        promise = f'chosen to miss at most {self.most:.1%} of the objects of new images'
        return f'whose score is above the scores in {self.file}, which were {promise}' + (
            f', with a confidence of {self.confidence:.0%}' if self.confidence else
            ' by an earlier version, but may miss more: test again with --at-most-missed')


def write_thresholds(folder: Path, model: nn.Module, classes: Sequence[str], best: Sequence[Best],
                     promised: tuple[float, float] | None = None) -> Path:
    """Writes the scores with the best F1, null without objects that are found, and returns the file.

    Args:
        folder: The folder of the file.
        model: The model, whose hash tells to which checkpoint the scores belong.
        classes: The names of the classes.
        best: The best scores of the classes, and their F1.
        promised: The score for all classes which misses few objects, and their share; predictions use it, and the best
            scores stay in the file. Defaults to None: predictions use the best scores.
    """
    by_f1 = {name: threshold and dict(score_thr=threshold[0], f1=threshold[1])
             for name, threshold in zip(classes, best, strict=True)}
    content: dict[str, Any] = dict(weights=hash_weights(model), purpose='best F1', at_most_missed=None, classes=by_f1)
    if promised:
        score, most = promised
        content.update(purpose='at most missed', at_most_missed=most, confidence=CONFIDENCE,
                       classes={name: dict(score_thr=score) for name in classes}, best_f1=by_f1)
    write_text(folder / NAME, json.dumps(content, indent=1, ensure_ascii=False))
    return folder / NAME


def find_thresholds(folders: Iterable[Path], model: nn.Module) -> Thresholds | None:
    """Returns the thresholds for the weights of a model; None if no file has them.

    A file in one of the folders is first, because somebody has put it there. Then come the tests in the folders, the
    newest first, but those that promise how many objects are missed before those with the best F1: a later test without
    --at-most-missed does not take back a promise.
    """
    folders = [*dict.fromkeys(folders)]
    put_there, tests = ([file for folder in folders for file in sorted(folder.glob(pattern), reverse=True)
                         if file.is_file()] for pattern in (NAME, f'test/*/{NAME}'))
    weights_hash = hash_weights(model) if put_there or tests else ''
    by_file = {file: thresholds for file in (*put_there, *tests) if (thresholds := _read(file, weights_hash))}
    promised = [file for file in tests if file in by_file and by_file[file].most is not None]
    order = [file for file in (*put_there, *promised, *tests) if file in by_file]
    return by_file[order[0]] if order else None


def _read(file: Path, weights: str) -> Thresholds | None:
    """Returns the thresholds of a file; None if they are for other weights."""
    content = read_state(file, _parsed, 'remove it, or test the checkpoint again')
    if not content or content['weights'] != weights:
        return None
    scores = {name: threshold['score_thr'] for name, threshold in content['classes'].items() if threshold}
    return Thresholds(file, scores, content['at_most_missed'], content['confidence'])


def _parsed(text: str) -> dict[str, Any]:
    content = json.loads(text)
    numbers = {name: None if (value := content.get(name)) is None else float(value)
               for name in ('at_most_missed', 'confidence')}
    return dict(weights=content['weights'], **numbers, classes={
        name: threshold and dict(score_thr=float(threshold['score_thr']))
        for name, threshold in content['classes'].items()})
