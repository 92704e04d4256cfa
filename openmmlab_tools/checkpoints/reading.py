"""Opens checkpoints: a file is read once, only its tensors and plain data, never code."""
import logging
import math
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from openmmlab_tools.errors import MissingFile, UserError, as_sentence, check_path, first_line

from .fetching import fetched
from .restricted import is_safetensors, parse

# Keys of the weights in checkpoint files: mmengine uses 'state_dict', which contains the average if EMAHook is used;
# DeiT and Twins use 'model'. EMA_KEYS are keys of moving averages.
KEYS = ('state_dict', 'model')
EMA_KEYS = ('ema_state_dict', 'state_dict_ema', 'model_ema', 'ema')
# Several numbers in a byte, or a number that is no more than its bits.
PACKED = tuple(dtype for name in dir(torch) if isinstance(dtype := getattr(torch, name), torch.dtype)
               and re.match('u?int[1-7]$|bits|float4', name))
NOT_FINITE = ('nan', 'inf', '-inf')


class Weights(NamedTuple):
    tensors: dict[str, Tensor]  # the weights by name
    key: str  # their key in the checkpoint; '' if it is the state dict itself
    ema_key: str  # the key of other weights, usually a moving average, that were not used; '' for none
    meta: dict[str, Any]  # mmengine's entry `meta`, as `{'meta': ...}`; empty if there is none
    left_out: tuple[str, ...]  # all other keys of the checkpoint, such as the optimizer's


@dataclass
class Checkpoint:
    """The content of a file that `open_checkpoint` has read, to be handed on.

    Attributes:
        path: The path or address that a user named.
        content: Tensors, numbers, strings and their containers.
    """
    path: str
    content: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        return self.content.get('meta') or {}

    @property
    def state_dict(self) -> dict[str, Any]:
        """The weights that mmengine loads: those at the key 'state_dict', or at the top level."""
        weights = self.content.get('state_dict', self.content)
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
            has = 'keys that are no names' if isinstance(weights, dict) else f'a {type(weights).__name__}'
            raise UserError(f'checkpoint {self.path} has {has} in place of its state dict, which must be a dict of '
                            "tensors by name: use a checkpoint of the config's model.")
        return bare(weights)

    def as_mmengine_has_it(self) -> dict[str, Any]:
        """Returns the content with the keys that mmengine and its hooks need, also if the file is a bare state dict."""
        return {'meta': {}, **(self.content if 'state_dict' in self.content else {}), 'state_dict': self.state_dict}

    def weights(self, expected: Mapping[str, Tensor] = {}) -> Weights:
        """Finds the weights: under the first existing key of KEYS and EMA_KEYS, or at the top level.

        Raises:
            UserError: If there are none, or they are not plain and finite; see `check_tensors`.
        """
        held = self._held()
        key, values = next(iter(held.items()))
        tensors = bare({name: value for name, value in values.items() if isinstance(name, str)
                        and isinstance(value, Tensor)})
        if not tensors:
            where = f'under {key!r}' if key else f'and none of the keys {", ".join((*KEYS, *EMA_KEYS))}'
            has = ', '.join(map(str, list(values)[:3])) or 'nothing'
            raise UserError(f'checkpoint {self.path} contains no tensors {where}, but only {has}: use a file with '
                            'weights.')
        self.check_weights(expected)
        ema_key = next((other for other in held if other in EMA_KEYS and other != key), '')
        meta = {'meta': self.content['meta']} if key and 'meta' in self.content else {}
        left_out = [name for name, value in self.content.items()
                    if (name not in (key, *meta) if key else not isinstance(value, Tensor))]
        return Weights(tensors, key, ema_key, meta, tuple(map(str, left_out)))

    def _held(self) -> dict[str, dict[str, Any]]:
        """Returns what is at the keys of weights; at '' the content itself, if there are none."""
        return {key: self.content[key] for key in (*KEYS, *EMA_KEYS) if isinstance(self.content.get(key), dict)
                } or {'': self.content}

    def check_weights(self, expected: Mapping[str, Tensor] = {}) -> None:
        """Checks the weights under all keys, also moving averages; see `check_tensors`."""
        for weights in self._held().values():
            check_tensors(bare({str(name): value for name, value in weights.items()}), self.path, expected)


def check_device(name: str, device: str) -> None:
    """Raises a UserError, which begins with the name of the argument, if torch cannot use a device."""
    with as_sentence(f'{name} {device!r} cannot be used', 'choose another'):
        torch.empty(0, device=device)


def open_checkpoint(path: str | Path, map_location: str = 'cpu') -> Checkpoint:
    """Reads a checkpoint from a path or address (see `fetched`): only tensors, numbers, strings and their containers.

    A name that ends in .safetensors means safetensors, all other names mean torch.save. Other objects, such as the log
    of plain mmengine, are skipped with a warning. Raises a MissingFile if the file does not exist, and a UserError if
    it is damaged or contains code.
    """
    check_path('checkpoint', path)
    with fetched(path) as local:
        file = Path(local)
        content, left_out = _parse(path, file, is_safetensors(path) or is_safetensors(file), map_location)
    if left_out:
        print_log(f'checkpoint {path} has objects other than tensors and plain data under {", ".join(left_out[:3])}'
                  f'{", ..." if left_out[3:] else ""}; they are skipped.', 'current', logging.WARNING)
    return Checkpoint(str(path), content)


def _parse(path: str | Path, file: Path, is_safe: bool, map_location: str) -> tuple[dict[str, Any], list[str]]:
    source, remedy = f'checkpoint {path}', ''
    if file != Path(path):  # a user may have put the cached file there, so the message names it
        source, remedy = f'{source} ({os.path.realpath(file)})', '; remove this file to fetch it again'
    try:
        content, left_out = parse(file, is_safe, map_location)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise MissingFile(f'{source} does not exist: check the path.') from error
    except pickle.UnpicklingError as error:
        # torch's message is not shown, because it advises to disable this protection.
        raise UserError(f'{source} is damaged, or contains code or objects other than tensors: save its '
                        f'state_dict alone'
                        f'{remedy}.') from error
    except Exception as error:  # damaged files raise errors of many types
        raise UserError(f'{source} cannot be read ({first_line(error)}): it is damaged or not a checkpoint{remedy}.'
                        ) from error
    if not isinstance(content, dict):
        raise UserError(f'{source} contains a {type(content).__name__}, but must contain a dict of tensors: use a file '
                        'with weights.')
    return content, left_out


def read_checkpoint(path: str | Path, map_location: str = 'cpu') -> dict[str, Any]:
    """Returns the content of a checkpoint; see `open_checkpoint`."""
    return open_checkpoint(path, map_location).content


def read_weights(path: str | Path, map_location: str = 'cpu') -> Weights:
    return open_checkpoint(path, map_location).weights()


def bare(weights: dict[str, Any]) -> dict[str, Any]:
    """Removes the prefix 'module.' that DistributedDataParallel adds to the names."""
    return {name.removeprefix('module.'): value for name, value in weights.items()}


def check_tensors(tensors: Mapping[str, Any], path: str | Path, expected: Mapping[str, Tensor] = {}) -> None:
    """Raises a UserError for tensors that are quantized, sparse, nested, complex, packed, on meta, or of a subclass,
    and for NaN and infinity. Masks of 0 and -inf pass, and so does infinity where a new model has it (`expected`).
    """
    kinds = {name: _kind(value, expected.get(name)) for name, value in tensors.items() if isinstance(value, Tensor)}
    odd = {name: kind for name, kind in kinds.items() if kind}
    if odd and {*kinds.values()} != {'meta'}:  # not read to the meta device
        name, kind = next(iter(odd.items()))
        kind_of_numbers, todo = ('finite', 'use an earlier checkpoint, from before the training diverged') if (
            kind in NOT_FINITE) else ('plain', 'convert them, for example by tensor.dequantize() or tensor.to_dense()')
        raise UserError(f'checkpoint {path} has {len(odd)} tensors that are not {kind_of_numbers}, such as {name} '
                        f'({kind}): {todo}.')


def _kind(tensor: Tensor, expected: Tensor | None) -> str:
    if type(tensor) not in (Tensor, nn.Parameter):
        return type(tensor).__name__
    kinds = dict(quantized=tensor.is_quantized, nested=tensor.is_nested, sparse=tensor.layout is not torch.strided,
                 complex=tensor.is_complex(), packed=tensor.dtype in PACKED, meta=tensor.is_meta)
    return next((kind for kind, is_it in kinds.items() if is_it), '') or not_finite(tensor, expected)


def not_finite(tensor: Tensor, expected: Tensor | None = None) -> str:
    """Returns the first value that is no number as float32, one of NOT_FINITE, or '' if it may be there."""
    if not tensor.is_floating_point():
        return ''
    values = (tensor.new_empty(0).set_(tensor.untyped_storage()) if is_spread(tensor) else tensor).float()
    if not (bad := ~values.isfinite()).any():
        return ''
    is_mask = values.dim() > 1 and (values[bad] == -math.inf).all() and not values[~bad].any()
    is_own = (expected is not None and expected.shape == values.shape
              and torch.equal(values[bad], expected.to(values)[bad]))
    return '' if is_mask or is_own else str(values[bad][0].item())


def is_spread(tensor: Tensor) -> bool:
    """Returns whether a tensor has more numbers than its memory, as after `expand`; a copy of it may be of any size."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()
