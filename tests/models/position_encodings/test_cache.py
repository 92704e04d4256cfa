import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.models.position_encodings import cache
from cpvt_mm.models.position_encodings.cache import cached
from cpvt_mm.models.position_encodings.relative import clipped_offsets
from cpvt_mm.models.position_encodings.rotary import rotation
from cpvt_mm.models.position_encodings.sinusoidal import sinusoid
from tests.conftest import NARROW

CPU = torch.device('cpu')


def test_the_same_size_is_computed_once() -> None:
    calls = []

    @cached
    def ones(length: int, device: torch.device) -> torch.Tensor:
        calls.append(length)
        return torch.ones(length, device=device)

    assert ones(3, CPU) is ones(3, CPU)
    assert ones(4, CPU).shape == (4,)
    assert calls == [3, 4]


def test_thousands_of_sizes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, 'MAX_BYTES', 40_000)
    remembered = cached(lambda length, device: torch.ones(length, device=device))
    for length in range(1, 3000):
        remembered(length, CPU)
    assert sum(tensor.nbytes for tensor in remembered.kept.values()) <= 40_000
    assert (2999, CPU) in remembered.kept and (1, CPU) not in remembered.kept
    remembered(20_000, CPU)  # alone too large: still the latest is kept, and nothing else
    assert list(remembered.kept) == [(20_000, CPU)]


@pytest.mark.parametrize('name, function', [('SinusoidalPE', sinusoid), ('RotaryPE', rotation),
                                            ('RelativePE', clipped_offsets)])
def test_encodings_use_it_outside_the_state_dict(name: str, function: object) -> None:
    function.kept.clear()
    model = PyramidCPVT(NARROW, position_encoding=dict(type=name))
    keys = list(model.state_dict())
    model(torch.randn(1, 3, 64, 96))
    entries = list(function.kept)
    assert entries
    model(torch.randn(1, 3, 64, 96))
    assert set(function.kept) == set(entries)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize('name', ['SinusoidalPE', 'RotaryPE', 'RelativePE', 'RandomFourierPE', 'LearnablePE'])
def test_what_inference_mode_left_serves_training(name: str) -> None:
    for function in (sinusoid, rotation, clipped_offsets):
        function.kept.clear()
    model = CPVT(dict(embed_dims=16, depth=2, num_heads=2), position_encoding=dict(type=name))
    image = torch.randn(1, 3, 48, 64)
    with torch.inference_mode():
        model(image)
    model(image)[0].mean().backward()
    assert model.patch_embed.proj.weight.grad.isfinite().all()


def test_shapes_worked_out_without_numbers_are_not_kept() -> None:
    model = CPVT(dict(embed_dims=16, depth=1, num_heads=2), position_encoding=dict(type='RotaryPE'))
    rotation.kept.clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.randn(1, 3, 48, 80))
    assert not rotation.kept
    assert model(torch.randn(1, 3, 48, 80))[0].isfinite().all()


def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, 'MAX_BYTES', 4_000)
    remembered = cached(lambda length, device: torch.ones(length, device=device))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            lengths = list(pool.map(lambda i: len(remembered(1 + i % 50, CPU)), range(20_000)))
    finally:
        sys.setswitchinterval(interval)
    assert lengths == [1 + i % 50 for i in range(20_000)]
