"""Tests of `cpvt_mm` share these: small backbones, toy configs, reference outputs, and counts of what a pass keeps."""
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_mm import CPVT, PyramidCPVT
from tests.helpers import ROOT

GOLDEN = ROOT / 'tests/golden'
UPERNET = ROOT / 'configs/toy/upernet_pyramid-cpvt-nano_toy-shapes.py'
MASK_RCNN = ROOT / 'configs/toy/mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes.py'

# The backbones of the reference outputs.
NARROW = dict(embed_dims=(16, 32, 40, 64), depths=(2, 2, 3, 2), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4),
              sr_ratios=(8, 4, 2, 1))
NARROW_PLAIN = dict(embed_dims=48, depth=4, num_heads=3)

# A backbone of each kind, for tests that try them all.
BACKBONES = {
    'conv': partial(PyramidCPVT, NARROW), 'pool': partial(PyramidCPVT, dict(NARROW, sr_mode='pool')),
    'pvtv2': partial(PyramidCPVT, dict(NARROW, patch_mode='overlap', mlp_mode='conv', stage_norm=True)),
    'plain': partial(CPVT, NARROW_PLAIN)}
WITH_CP = (False, 'selective', True)


def golden_cases(name: str) -> list[tuple[Tensor, list[Tensor]]]:
    """Pairs of an input and its four reference outputs, one for each size."""
    arrays = np.load(GOLDEN / f'{name}_io.npz')
    sizes = [key.removeprefix('input_') for key in arrays if key.startswith('input_')]
    return [(torch.from_numpy(arrays[f'input_{size}']), [torch.from_numpy(arrays[f'out{i}_{size}']) for i in range(4)])
            for size in sizes]


def pretrained(path: Path, cls: type = PyramidCPVT, init_cfg: dict[str, Any] = {},
               **kwargs: object) -> PyramidCPVT | CPVT:
    """A backbone in eval mode that `init_cfg` filled from a file; the narrow one, if no `arch` is given."""
    kwargs = {'arch': NARROW if issubclass(cls, PyramidCPVT) else NARROW_PLAIN, **kwargs}
    model = cls(**kwargs, init_cfg=dict(type='Pretrained', checkpoint=str(path), **init_cfg))
    model.init_weights()
    return model.eval()


class Operators(TorchDispatchMode):
    """Records the names of all operators that run, and the memory of all tensors that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.bytes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.bytes[StorageWeakRef(storage)] = storage.nbytes()
        return result


def kept_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Bytes that live on after `run`, a forward pass of the model, beside the parameters: for the backward pass."""
    with Operators() as seen:
        outputs = run()
    parameters = {StorageWeakRef(parameter.untyped_storage()) for parameter in model.parameters()}
    assert outputs is not None  # and alive until here
    return sum(count for ref, count in seen.bytes.items() if not ref.expired() and ref not in parameters)
