"""Compares checkpoints with models: what is missing, left over or of another shape."""
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from torch import Tensor, nn

from openmmlab_runs.errors import UserError, show

from .reading import bare, check_weights, is_spread, read_checkpoint, read_weights, unwrap

COUNTER = 'num_batches_tracked'  # of batch norms, which do not read it in eval mode, nor with a momentum


@runtime_checkable
class ChecksWeights(Protocol):
    """A backbone that tells what a run must fit: the channels of its images, and of each map that it returns."""
    in_channels: int
    out_channels: tuple[int, ...]

    def translated(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights of the backbone with its names, if they have those of another library; else unchanged."""

    def check_weights(self, weights: dict[str, Tensor], what: str) -> None:
        """Raises a UserError, which begins with `what`, unless weights have all tensors of the backbone."""


def translated(model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """Returns weights with the names of a model, where those of its backbones are of another library."""
    for prefix, backbone in backbones_of(model).items():
        start = f'{prefix}.' if prefix else ''
        theirs = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
        ours = backbone.translated(theirs)
        if ours is not theirs:
            rest = {name: tensor for name, tensor in weights.items() if not name.startswith(start)}
            weights = {**rest, **{start + name: tensor for name, tensor in ours.items()}}
    return weights


def backbones_of(model: nn.Module) -> dict[str, Any]:
    """Returns the backbones in a model that check their weights, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, ChecksWeights)}


def compare(weights: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Compares weights with a model's state dict; returns the names of tensors, and their shapes, by what is wrong."""
    alike = [name for name in wanted if getattr(weights.get(name), 'shape', None) == wanted[name].shape]
    return {
        'missing': [name for name in wanted if name not in weights],
        'left over': [name for name in weights if name not in wanted],
        'of another shape': [f'{name} {tuple(getattr(weights[name], "shape", ()))} instead of {tuple(tensor.shape)}'
                             for name, tensor in wanted.items() if name in weights and name not in alike],
        'of whole numbers': [name for name in alike if wanted[name].is_floating_point()
                             and not weights[name].is_floating_point()]}


def counted(found: Mapping[str, Sequence[str]]) -> str:
    """Returns numbers and the first names of what `compare` found, such as '2 missing (a, b)'; '' for nothing."""
    return '; '.join(f'{len(names)} {what} ({", ".join(names[:3])}{", ..." if names[3:] else ""})'
                     for what, names in found.items() if names)


def refuse(found: Mapping[str, Sequence[str]], what: str, model: str, todo: str) -> None:
    """Raises a UserError, which begins with `what`, if `compare` found anything."""
    if misfits := counted(found):
        raise UserError(f'{what} does not fit {model}: {misfits}; {todo}.')


def check_fits(model: nn.Module, path: str | Path, checkpoint: dict[str, Any] | None = None) -> None:
    """Raises a UserError unless a checkpoint fits a new model; mmengine would only warn about differences.

    It reads the file, unless its content is given. As mmengine, it reads the weights at no other key than 'state_dict',
    or at the top level. A parameter or buffer must not be missing, left over, of another shape, not finite, or of whole
    numbers instead of fractions. It warns of tensors that nothing reads, see `find_unread`.
    """
    checkpoint = read_checkpoint(path) if checkpoint is None else checkpoint
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        has = 'keys that are no names' if isinstance(weights, dict) else f'a {type(weights).__name__}'
        raise UserError(f'checkpoint {path} has {has} for its state dict, but must have a dict of tensors by name: use '
                        'a checkpoint of the model of the config.')
    check_weights(checkpoint, path, inner(model).state_dict())
    _fitting(model, bare(weights), path, 'the model of the config')


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Loads a checkpoint, with its weights under any key (see `unwrap`), or raises the UserError of `check_fits`."""
    weights = read_weights(path, own=inner(model).state_dict()).tensors
    model.load_state_dict(_fitting(model, weights, path, f'the {type(model).__name__} it is for'))


def _fitting(model: nn.Module, weights: dict[str, Any], path: str | Path, what: str) -> dict[str, Any]:
    """Returns weights without those that nothing reads, of which it warns; raises a UserError if they do not fit."""
    weights = translated(inner(model), weights)
    wanted, unread = inner(model).state_dict(), find_unread(inner(model), weights)
    fitting = {name: tensor for name, tensor in weights.items() if name not in unread}
    refuse(compare(fitting, wanted), f'checkpoint {path}', f'{what}, with {len(wanted)} tensors',
           'use the config it was trained with')
    if unread:
        print_log(f'checkpoint {path} has tensors that {what} lacks, but does not need, because they are copies of '
                  f'others or counters: {counted({"left over": unread})}', 'current', logging.WARNING)
    return fitting


def check_load_from(model: nn.Module, path: str | Path) -> dict[str, Any]:
    """Raises a UserError unless a checkpoint has weights (see `read_weights`) that fill backbones with `check_weights`;
    mmengine only warns. Returns the weights that mmengine loads, with the model's names.
    """
    checkpoint = read_checkpoint(path)
    weights = translated(inner(model), unwrap(checkpoint, path, inner(model).state_dict()).tensors)
    for prefix, backbone in backbones_of(inner(model)).items():
        start = f'{prefix}.'
        found = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
        if found.keys().isdisjoint(backbone.state_dict()):
            raise UserError(f'load_from is {path}, which has no weights below {prefix!r}: use a checkpoint of '
                            f'such a model, or load weights of a backbone alone with model.{prefix}.init_cfg='
                            "dict(type='Pretrained', checkpoint=...).")
        backbone.check_weights(found, f'load_from ({path})')
    return translated(inner(model), bare(checkpoint.get('state_dict', checkpoint)))


def show_unloaded(model: nn.Module, weights: Mapping[str, Any], path: str | Path) -> None:
    """Shows what of a checkpoint's weights, and of the model, `load_from` leaves out; a UserError if that is all."""
    wanted, given = ({name: tensor for name, tensor in part.items() if not name.endswith(COUNTER)}
                     for part in (inner(model).state_dict(), weights))
    found = compare(given, wanted)
    found.pop('of whole numbers')  # torch converts them
    loaded = len(wanted) - len(found['missing']) - len(found['of another shape'])
    if loaded <= 0:
        raise UserError(f'load_from is {path}, which has none of the {len(wanted)} tensors of the model: use a '
                        'checkpoint of such a model.')
    if misfits := counted(found):
        show(f'load_from is {path}, which fills {loaded} of the {len(wanted)} tensors of the model; not loaded are '
             f'{misfits}, as is normal for heads of other classes.')


def inner(model: nn.Module) -> nn.Module:
    return model.module if is_model_wrapper(model) else model  # type: ignore[return-value]  # any attribute


def find_unread(model: nn.Module, weights: Mapping[str, Any]) -> list[str]:
    """Returns the names in weights that a model lacks, and that nothing would read if it had them.

    These are counters of batch norms, and copies of modules that the model has, as in mmdet's DDQ. A further entry of a
    list in the model, such as a block, is no copy, nor a further parameter of a module, nor a module whose tensors have
    a single value each, such as a norm that was not trained.
    """
    wanted, modules = model.state_dict(), {name for name, _ in model.named_modules()}
    lacking: dict[str, list[str]] = {}
    for name in weights:
        if name not in wanted:
            parts = name.split('.')
            places = ['.'.join(parts[:i]) for i in range(1, len(parts))]
            lacking.setdefault(next((place for place in places if place not in modules), ''), []).append(name)
    known = {name: weights[name] for name in wanted if name in weights}
    return [name for place, names in lacking.items() for name in names
            if name.endswith(COUNTER) or _is_copy(place, names, weights, known)]


def _is_copy(place: str, names: Sequence[str], weights: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Returns whether a module that the model lacks, of these names, has the tensors of one that it has."""
    if not place or place.rpartition('.')[2].isdigit():
        return False
    tensors = [weights[name] for name in names]
    if any(isinstance(one, Tensor) and is_spread(one) for one in tensors) or all(map(_is_constant, tensors)):
        return False
    ends = [name.removeprefix(place) for name in names]
    others = [name.removesuffix(ends[0]) for name in known if name.endswith(ends[0])]
    return any(all(_are_equal(weights[place + end], known.get(other + end)) for end in ends) for other in others)


def _are_equal(one: Any, other: Any) -> bool:
    return (isinstance(one, Tensor) and isinstance(other, Tensor) and one.dtype == other.dtype
            and one.shape == other.shape and torch.equal(_bits(one), _bits(other)))


def _is_constant(tensor: Any) -> bool:
    return not isinstance(tensor, Tensor) or bool((_bits(tensor) == _bits(tensor)[:1]).all())


def _bits(tensor: Tensor) -> Tensor:
    """Returns the bytes of each number of a plain tensor: `(N, bytes)`. Not all types can be compared themselves."""
    return tensor.flatten().contiguous().view(torch.uint8).view(tensor.numel(), tensor.element_size())
