"""Opens an exported file where a checkpoint is expected, so that a test or a prediction runs what will be deployed."""
import hashlib
import importlib
import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from torch import Tensor

from openmmlab_tools.checkpoints.loading import normalization
from openmmlab_tools.checkpoints.reading import Checkpoint, open_checkpoint
from openmmlab_tools.errors import UserError, as_sentence

from .runtimes import Loaded, is_exported, load

# The module and class of the model that runs a file, and the outputs of the file, by the library of the config.
MODELS = {
    'mmdet': ('openmmlab_tools.exported.detector', 'ExportedDetector', {'dets', 'labels', 'images'}),
    'mmseg': ('openmmlab_tools.exported.segmentor', 'ExportedSegmentor', {'output0'})}

TRIED = 40, 56  # height and width of the image on which a file is tried


def open_weights(cfg: Config, path: str | Path) -> Checkpoint:
    """Opens a checkpoint, or an exported file of the config's model: then `cfg.model` is replaced by one that runs it.

    Raises:
        UserError: If the file cannot be read or run, is of another model, or expects other images than the config's.
    """
    if not is_exported(path):
        return open_checkpoint(path)
    if cfg.default_scope not in MODELS:
        raise UserError(f'config {cfg.filename} is for {cfg.default_scope}, but exported files are models of '
                        f'{" or ".join(MODELS)}: pass a checkpoint.')
    file = Path(path)
    loaded, digest = open_file(file)
    check_model(loaded, file, cfg)
    module, kind, _ = MODELS[cfg.default_scope]
    importlib.import_module(module)  # registers the class
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor')
    cfg.model = dict(type=f'openmmlab_tools.{kind}', file=str(file), data_preprocessor=preprocessor)
    meta = {'classes': entry(loaded, file, 'classes')}
    if 'palette' in loaded.description:
        meta['palette'] = json.loads(loaded.description['palette'])
    return Checkpoint(str(path), dict(meta=dict(dataset_meta=meta), state_dict=dict(digest=digest)))


class Opened(NamedTuple):
    """An exported file that is loaded, and its hash. The hash stands in for weights: thresholds are found by it."""
    loaded: Loaded
    digest: Tensor


def open_file(file: Path) -> Opened:
    """Loads and hashes an exported file; as long as it does not change, the next call returns the same."""
    status = file.stat() if file.is_file() else None
    return _open_version(file, status and (status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=1)  # what checks a file, and then the model that runs it, open the same file
def _open_version(file: Path, version: tuple[int, int] | None) -> Opened:
    return Opened(load(file), torch.tensor([*hashlib.sha256(file.read_bytes()).digest()], dtype=torch.uint8))


def check_model(loaded: Loaded, file: Path, cfg: Config) -> None:
    """Raises a UserError unless an exported file is a whole model of the config's library, for its images."""
    told = loaded.description
    if not {'mean', 'std', 'channels'} <= told.keys():
        raise UserError(f'{file} does not contain the normalization of its images: pass a file that cpvt_mm export has '
                        'written.')
    if 'classes' not in told:
        raise UserError(f'{file} has no classes, so it is a backbone alone, or its config had no test data: export the '
                        'whole model, with --part segmentor or --part detector.')
    *_, outputs = MODELS[cfg.default_scope]
    if not outputs <= {*loaded.outputs}:
        raise UserError(f'{file} returns {", ".join(loaded.outputs)}, but a model of {cfg.default_scope} must return '
                        f'{", ".join(sorted(outputs))}: pass the config that it was exported with.')
    expected = normalization(cfg)._asdict()
    given = dict(mean=entry(loaded, file, 'mean'), std=entry(loaded, file, 'std'), channels=told['channels'])
    if given != expected:
        name = next(name for name in expected if given[name] != expected[name])
        raise UserError(f'{file} was exported for images with {name} {given[name]}, but config {cfg.filename} has '
                        f'{expected[name]}: pass the config that it was exported with.')
    check_outputs(loaded, file, len(expected['mean']))


def check_outputs(loaded: Loaded, file: Path, channels: int) -> None:
    """Raises a UserError unless a model runs on a small image, and has as many classes as its description."""
    with as_sentence(f'{file} does not run on a float32 image of {channels} channels and any size', 'export the model '
                     'again'):
        outputs = dict(zip(loaded.outputs, loaded.run(torch.zeros(1, channels, *TRIED)), strict=True))
    classes = entry(loaded, file, 'classes')
    if (logits := outputs.get('output0')) is not None and logits.shape[1] != len(classes):
        raise UserError(f'{file} returns logits of {logits.shape[1]} classes, but names {len(classes)}: export the '
                        'model again.')


def entry(loaded: Loaded, file: Path, name: str) -> list[Any]:
    """Returns a list in the description of a file: names of classes, or numbers; a UserError if it is something else.
    """
    kind = str if name == 'classes' else float | int
    with suppress(ValueError):
        values = json.loads(loaded.description[name])
        if isinstance(values, list) and values and all(isinstance(value, kind) for value in values):
            return values
    members = 'names' if name == 'classes' else 'numbers'
    raise UserError(f'{file} has a description whose {name} is {loaded.description[name][:40]!r}, but must be a list '
                    f'of {members}: export the model again.')
