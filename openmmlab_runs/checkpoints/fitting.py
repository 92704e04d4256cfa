"""Compares checkpoints with models: what is missing, left over or of another shape."""
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from torch import Tensor, nn

from openmmlab_runs.errors import UserError, show

from .reading import bare, check_plain, read_checkpoint, read_weights

COUNTER = 'num_batches_tracked'  # of batch norms, which do not read it in eval mode, nor with a momentum


@runtime_checkable
class ChecksWeights(Protocol):
    """A backbone that tells what a run must fit, such as those of cpvt_mm.

    Attributes:
        in_channels: Channels of its images.
        out_channels: Channels of each map that it returns.
    """
    in_channels: int
    out_channels: tuple[int, ...]

    def check_weights(self, weights: dict[str, Tensor], what: str) -> None:
        """Raises a UserError, which begins with `what`, unless weights have all tensors of the backbone."""


def check_fits(model: nn.Module, path: str | Path, checkpoint: dict[str, Any] | None = None) -> None:
    """Compares a checkpoint's names and shapes with a model's; mmengine would only warn about differences.

    It reads the file, unless its content is given. It warns of tensors that are left over, but that nothing reads: see
    `find_unread`.

    Raises:
        UserError: If there is no state dict, or a parameter or buffer is missing, left over, of another shape, or of
            whole numbers instead of fractions.
    """
    checkpoint = read_checkpoint(path) if checkpoint is None else checkpoint
    # `unwrap` is not used, because mmengine reads no other key than 'state_dict'.
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        has = 'keys that are no names' if isinstance(weights, dict) else f'a {type(weights).__name__}'
        raise UserError(f'checkpoint {path} has {has} for its state dict, but must have a dict of tensors by name: use '
                        'a checkpoint of the model of the config.')
    _compare(model, bare(weights), path, 'the model of the config')


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Loads a checkpoint into a model; the names must be equal. See `unwrap` for the keys of the weights.

    Raises:
        UserError: See `check_fits`. The model is unchanged then.
    """
    weights = read_weights(path).tensors
    unread = _compare(model, weights, path, f'the {type(model).__name__} it is for')
    model.load_state_dict({name: tensor for name, tensor in weights.items() if name not in unread})


def check_fills_backbones(model: nn.Module, checkpoint: str | Path) -> None:
    """Checks that a checkpoint of a whole model, such as `load_from`, has all weights of backbones that check them.

    mmengine loads the weights that fit, and only warns about others. That suits heads with another number of classes,
    but it would leave a part of a backbone random.

    Raises:
        UserError: If a tensor of a backbone is missing or has another shape, or the file cannot be read.
    """
    backbones: dict[str, Any] = {
        name: module for name, module in model.named_modules() if isinstance(module, ChecksWeights)}
    weights = read_weights(checkpoint).tensors if backbones else {}
    for prefix, backbone in backbones.items():
        start = f'{prefix}.'
        found = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
        if found.keys().isdisjoint(backbone.state_dict()):
            raise UserError(f'load_from is {checkpoint}, which has no weights below {prefix!r}: use a checkpoint of '
                            f'such a model, or load weights of a backbone alone with model.{prefix}.init_cfg='
                            "dict(type='Pretrained', checkpoint=...).")
        backbone.check_weights(found, f'load_from ({checkpoint})')


@contextmanager
def unloaded_shown(model: nn.Module, checkpoint: str | Path) -> Iterator[None]:
    """Shows what of a checkpoint does not load, when a runner loads it as `load_from` in the `with` block.

    Raises:
        UserError: When it is loaded, if no tensor of the model is.
    """
    found: list[Any] = []  # torch fills the lists of missing and left over names while it loads

    def begin(module: nn.Module, weights: Any, prefix: str, metadata: Any, strict: bool, *lists: list[str]) -> None:
        found[:] = weights, *lists

    def end(module: nn.Module, incompatible: Any) -> None:
        weights, missing, left_over, _ = found
        wanted = module.state_dict()
        missing = [name for name in missing if not name.endswith(COUNTER)]
        other = [name for name, tensor in wanted.items() if name in weights and weights[name].shape != tensor.shape]
        total = sum(not name.endswith(COUNTER) for name in wanted)
        what = f'load_from is {checkpoint}, '
        loaded = total - len(missing) - len(other)
        if loaded <= 0:
            raise UserError(f'{what}which has none of the {total} tensors of the model: use a checkpoint of such a '
                            'model.')
        if misfits := counted({'missing': missing, 'left over': left_over, 'of another shape': other}):
            show(f'{what}which fills {loaded} of the {total} tensors of the model; not loaded are {misfits}, as is '
                 'normal for heads of other classes.')

    part = inner(model)
    hooks = part.register_load_state_dict_pre_hook(begin), part.register_load_state_dict_post_hook(end)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def inner(model: nn.Module) -> nn.Module:
    """Returns the model itself, without the wrapper of a distributed run."""
    return model.module if is_model_wrapper(model) else model  # type: ignore[return-value]  # any attribute


def counted(found: Mapping[str, Sequence[str]]) -> str:
    """Returns numbers and the first names of kinds of tensors, such as '2 missing (a, b)'; '' if there are none."""
    return '; '.join(f'{len(names)} {what} ({", ".join(names[:3])}{", ..." if names[3:] else ""})'
                     for what, names in found.items() if names)


def _compare(model: nn.Module, weights: dict[str, Any], path: str | Path, what: str) -> Collection[str]:
    """Raises a UserError if weights do not fit a model; warns of those that nothing reads, and returns their names."""
    check_plain(weights, path)
    wanted = inner(model).state_dict()
    both = [name for name in wanted if name in weights]
    unread = find_unread(inner(model), weights)
    misfits = counted({
        'missing': [name for name in wanted if name not in weights],
        'left over': [name for name in weights if name not in wanted and name not in unread],
        'of another shape': [name for name in both if getattr(weights[name], 'shape', None) != wanted[name].shape],
        'of whole numbers': [name for name in both if wanted[name].is_floating_point()
                             and isinstance(weights[name], Tensor) and not weights[name].is_floating_point()]})
    if misfits:
        raise UserError(f'checkpoint {path} does not fit {what}, with {len(wanted)} tensors: {misfits}; use the config '
                        'it was trained with.')
    if unread:
        print_log(f'checkpoint {path} has tensors that {what} lacks, but does not need, because they are copies of '
                  f'others or counters: {counted({"left over": unread})}', 'current', logging.WARNING)
    return unread


def find_unread(model: nn.Module, weights: Mapping[str, Any]) -> list[str]:
    """Returns the names in weights that a model lacks, and that nothing would read if it had them.

    These are counters of batch norms, and modules that are copies of others that the model has. mmdet's DDQ gives its
    decoder a second name for branches of its head when it is trained first, and the checkpoint has both names.

    What makes a model larger is no copy, even if it has the weights of another part: one more entry of a list in the
    model, such as a block, or one more parameter of a module. Nor are modules whose tensors have a single value each,
    such as a norm that was not trained.
    """
    wanted = model.state_dict()
    modules = {name for name, _ in model.named_modules()}
    left = [name for name in weights if name not in wanted]
    tops: dict[str, list[str]] = {}
    for name in left:
        parts = name.split('.')
        depth = next((i for i in range(len(parts) - 1) if '.'.join(parts[:i + 1]) not in modules), None)
        if parts[-1] != COUNTER and depth is not None and not parts[depth].isdigit():
            tops.setdefault('.'.join(parts[:depth + 1]), []).append(name)
    known = {name: weights[name] for name in wanted if getattr(weights.get(name), 'shape', None) == wanted[name].shape}
    unread = {name for top, names in tops.items() for name in _copies(top, names, weights, known)}
    return [name for name in left if name in unread or name.rpartition('.')[2] == COUNTER]


def _copies(place: str, names: Sequence[str], weights: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Returns the names of copies among those of a module: all if it is a copy, or else those of its parts that are."""
    shapes = {tensor.shape for tensor in known.values()}
    varied = next((name for name in names if getattr(weights[name], 'shape', None) in shapes
                   and not _is_constant(weights[name])), '')
    end = varied.removeprefix(place)
    for other in known if varied else ():
        if other.endswith(end) and all(_are_equal(weights[name], known.get(other.removesuffix(end) + name.removeprefix(
                place))) for name in (varied, *names)):
            return [*names]
    parts: dict[str, list[str]] = {}
    for name in names:
        part, *below = name.removeprefix(f'{place}.').split('.')
        if below:
            parts.setdefault(f'{place}.{part}', []).append(name)
    return [name for part, inside in parts.items() for name in _copies(part, inside, weights, known)]


def _are_equal(one: Any, other: Any) -> bool:
    return (isinstance(one, Tensor) and isinstance(other, Tensor) and one.dtype == other.dtype
            and one.shape == other.shape and torch.equal(_bits(one), _bits(other)))


def _is_constant(tensor: Tensor) -> bool:
    return torch.equal(_bits(tensor), _bits(tensor.flatten()[:1]).expand(tensor.numel(), -1))


def _bits(tensor: Tensor) -> Tensor:
    """Returns the bytes of each number of a plain tensor: `(N, bytes)`. Not all types can be compared themselves."""
    return tensor.flatten().contiguous().view(torch.uint8).view(tensor.numel(), tensor.element_size())
