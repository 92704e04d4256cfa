"""On a GPU a forward pass waits for nothing: no value is read, and no copy blocks.

The device `meta` stands in for a GPU: torch works out shapes there, and has no values to read. `tests/gpu` asks a real
one.
"""
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_mm.models.position_encodings.cache import Cached
from tests.conftest import BACKBONES
from tests.encodings import ENCODINGS

META = torch.device('meta')


class NoBlockingCopies(TorchDispatchMode):
    """Raises where a tensor goes from one device to another and the caller waits for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.name() == 'aten::_to_copy' and args[0].device != result.device and not kwargs.get('non_blocking'):
            raise RuntimeError(f'a copy from {args[0].device} to {result.device} blocks')
        return result


class NoListsToDevices(TorchFunctionMode):
    """Raises where a list is made a tensor of a device: torch copies it, and the caller waits."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.tensor, torch.as_tensor) and (kwargs or {}).get('device') == META:
            raise RuntimeError(f'{func.__name__} copies to {META} and blocks')
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cached, '__call__', lambda self, *key: self.function(*key))


@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('model', BACKBONES)
def test_a_forward_pass_waits_for_nothing(model: str, name: str) -> None:
    backbone = BACKBONES[model](position_encoding=ENCODINGS[name], padding='exact', drop_rate=0.1, attn_drop_rate=0.1,
                             drop_path_rate=0.1).to(META)
    images = torch.empty(2, 3, 64, 96, device=META)
    with NoBlockingCopies(), NoListsToDevices():
        outputs = backbone(images, [(64, 96), (50, 33)], num_frames=1)
    assert all(output.device == META for output in outputs)


def test_what_waits_is_noticed() -> None:
    images = torch.empty(2, device=META)
    with NoBlockingCopies(), NoListsToDevices():
        for wait in (images.tolist, images.max().item, lambda: images[images > 0], lambda: bool(images.any()),
                     lambda: torch.ones(2).to(META), lambda: torch.tensor([1.], device=META)):
            with pytest.raises((RuntimeError, NotImplementedError), match=r'blocks|meta'):
                wait()
        torch.ones(2).to(META, non_blocking=True)
