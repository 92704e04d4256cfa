"""Compares checkpoints with models: what is missing, left over or of another shape."""
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from torch import Tensor, nn

from openmmlab_tools.errors import UserError

from .reading import Checkpoint, is_spread, open_checkpoint

OF_SUCH_A_MODEL = ('use a checkpoint of such a model, or load weights of a backbone alone with model.backbone.init_cfg='
                   "dict(type='Pretrained', checkpoint=...)")
COUNTER = 'num_batches_tracked'  # of batch norms, which do not read it in eval mode, nor with a momentum


def inner(model: nn.Module) -> nn.Module:
    return model.module if is_model_wrapper(model) else model  # type: ignore[return-value]  # any attribute


def hash_weights(model: nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for value in model.state_dict().values():
        if isinstance(value, Tensor):
            digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def renamed(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Returns weights as a model takes them: its modules may rename or resize them before they load (pre-hooks)."""
    taken = dict(weights)
    for name, module in model.named_modules():
        for hook in module._load_state_dict_pre_hooks.values():
            hook(taken, f'{name}.' if name else '', {}, True, [], [], [])
    return taken


def compare(weights: Mapping[str, Any], expected: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Compares weights with a model's state dict; returns the names of tensors, and their shapes, by what is wrong."""
    alike = [name for name in expected if getattr(weights.get(name), 'shape', None) == expected[name].shape]
    return {
        'missing': [name for name in expected if name not in weights],
        'left over': [name for name in weights if name not in expected],
        'of another shape': [f'{name} {tuple(getattr(weights[name], "shape", ()))} instead of {tuple(tensor.shape)}'
                             for name, tensor in expected.items() if name in weights and name not in alike],
        'of whole numbers': [name for name in alike if expected[name].is_floating_point()
                             and not weights[name].is_floating_point()]}


def counted(misfits: Mapping[str, Sequence[str]]) -> str:
    """Returns numbers and the first names of misfits, as `compare` returns them: '2 missing (a, b)'; '' for none."""
    return '; '.join(f'{len(names)} {kind} ({", ".join(names[:3])}{", ..." if names[3:] else ""})'
                     for kind, names in misfits.items() if names)


def refuse(by_kind: Mapping[str, Sequence[str]], source: str, model: str, todo: str) -> None:
    """Raises a UserError, whose message begins with `source`, if `compare` returned any misfit."""
    if misfits := counted(by_kind):
        raise UserError(f'{source} does not fit {model}: {misfits}; {todo}.')


def check_fits(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Raises a UserError unless a checkpoint fits a new model; mmengine would only warn about differences.

    As mmengine, it reads the weights at no other key than 'state_dict', or at the top level. A parameter or buffer must
    not be missing, left over, of another shape, not finite, or of whole numbers instead of fractions. It warns of
    tensors that nothing reads, see `find_unread`.
    """
    weights = checkpoint.state_dict
    checkpoint.check_weights(inner(model).state_dict())
    _fitting(model, weights, checkpoint.path, 'the model of the config')


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Loads a checkpoint, with its weights under any key, or raises the UserError of `check_fits`."""
    weights = open_checkpoint(path).weights(inner(model).state_dict()).tensors
    model.load_state_dict(_fitting(model, weights, str(path), f'the {type(model).__name__} it is for'))


def _fitting(model: nn.Module, weights: dict[str, Any], path: str, target: str) -> dict[str, Any]:
    """Returns weights without those that nothing reads, of which it warns; raises a UserError if they do not fit."""
    weights = renamed(inner(model), weights)
    expected, unread = inner(model).state_dict(), find_unread(inner(model), weights)
    fitting = {name: tensor for name, tensor in weights.items() if name not in unread}
    refuse(compare(fitting, expected), f'checkpoint {path}', f'{target}, with {len(expected)} tensors',
           'use the config it was trained with')
    if unread:
        print_log(f'checkpoint {path} has more tensors than {target}. They are not needed, because they are copies of '
                  f'other tensors, or counters: {counted({"left over": unread})}', 'current', logging.WARNING)
    return fitting


def check_load_from(model: nn.Module, checkpoint: Checkpoint) -> str:
    """Returns a sentence on what `load_from` does not load of a checkpoint, or leaves out of the model; '' for nothing.

    Raises:
        UserError: If weights are not plain and finite, fill no tensor, or not all of a backbone; mmengine only warns.
    """
    expected = {name: tensor for name, tensor in inner(model).state_dict().items() if not name.endswith(COUNTER)}
    checkpoint.check_weights(expected)
    given = renamed(inner(model), checkpoint.state_dict)
    misfits_by_kind = compare({name: tensor for name, tensor in given.items() if not name.endswith(COUNTER)}, expected)
    misfits_by_kind.pop('of whole numbers')  # torch converts them
    loaded = len(expected) - len(misfits_by_kind['missing']) - len(misfits_by_kind['of another shape'])
    if loaded <= 0:
        raise UserError(f'load_from is {checkpoint.path}, which has none of the {len(expected)} tensors of the model: '
                        f'{OF_SUCH_A_MODEL}.')
    backbone = {kind: [name for name in names if f'.{name}'.count('.backbone.')]
                for kind, names in misfits_by_kind.items()}
    refuse({**backbone, 'left over': []}, f'load_from ({checkpoint.path})', 'the backbone of the model',
           OF_SUCH_A_MODEL)
    misfits = counted(misfits_by_kind)
    return misfits and (f'load_from is {checkpoint.path}, which fills {loaded} of {len(expected)} tensors in the '
                        f'model. Not loaded are {misfits}. This is normal for heads with other classes.')


def find_unread(model: nn.Module, weights: Mapping[str, Any]) -> list[str]:
    """Returns the names in weights that a model lacks, and that nothing would read if it had them.

    These are counters of batch norms, and copies of modules that the model has, as in mmdet's DDQ. A further entry of a
    list in the model, such as a block, is no copy, nor a further parameter of a module, nor a module whose tensors have
    a single value each, such as a norm that was not trained.
    """
    expected, modules = model.state_dict(), {name for name, _ in model.named_modules()}
    lacking: dict[str, list[str]] = {}
    for name in weights:
        if name not in expected:
            parts = name.split('.')
            places = ['.'.join(parts[:i]) for i in range(1, len(parts))]
            lacking.setdefault(next((place for place in places if place not in modules), ''), []).append(name)
    known = {name: weights[name] for name in expected if name in weights}
    return [name for place, names in lacking.items() for name in names
            if name.endswith(COUNTER) or _is_copy(place, names, weights, known)]


def _is_copy(place: str, names: Sequence[str], weights: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Returns whether an unknown module with these names is a copy: whether a module of the model has the same tensors.
    """
    if not place or place.rpartition('.')[2].isdigit():
        return False
    tensors = [weights[name] for name in names]
    if not all(isinstance(tensor, Tensor) and not is_spread(tensor) for tensor in tensors) or all(
            (bits == bits[:1]).all() for bits in map(_bits, tensors)):
        return False
    ends = [name.removeprefix(place) for name in names]
    others = [name.removesuffix(ends[0]) for name in known if name.endswith(ends[0])]
    return any(all(_are_equal(weights[place + end], known.get(other + end)) for end in ends) for other in others)


def _are_equal(tensor: Tensor, other: Any) -> bool:
    return (isinstance(other, Tensor) and tensor.dtype == other.dtype and tensor.shape == other.shape
            and torch.equal(_bits(tensor), _bits(other)))


def _bits(tensor: Tensor) -> Tensor:
    """Returns the bytes of each number of a plain tensor: `(N, bytes)`. Not all types can be compared themselves."""
    return tensor.flatten().contiguous().view(torch.uint8).view(tensor.numel(), tensor.element_size())
