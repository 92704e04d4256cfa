"""A forward pass waits for nothing; `tests/models/test_no_synchronisation.py` is the stand-in for a CPU."""
from collections.abc import Iterator

import pytest
import torch

from cpvt_mm.models.position_encodings.cache import Cached
from tests.conftest import BACKBONES
from tests.encodings import ENCODINGS

pytestmark = pytest.mark.gpu


@pytest.fixture
def waiting_is_an_error(gpu: torch.device) -> Iterator[None]:
    torch.cuda.synchronize(gpu)
    torch.cuda.set_sync_debug_mode('error')
    yield
    torch.cuda.set_sync_debug_mode('default')


@pytest.fixture(autouse=True)
def nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cached, '__call__', lambda self, *key: self.function(*key))


@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('padding', [None, 'exact'])
@pytest.mark.parametrize('name', ENCODINGS)
@pytest.mark.parametrize('kind', BACKBONES)
def test_a_forward_pass_waits_for_nothing(kind: str, name: str, padding: str | None, with_cp: bool, gpu: torch.device,
                                          request: pytest.FixtureRequest) -> None:
    model = BACKBONES[kind](position_encoding=ENCODINGS[name], padding=padding, with_cp=with_cp, drop_rate=0.1,
                            attn_drop_rate=0.1, drop_path_rate=0.1).to(gpu)
    images = torch.randn(3, 3, 96, 128, device=gpu)
    request.getfixturevalue('waiting_is_an_error')
    for training in (True, False):
        model.train(training)(images, [(96, 128), (50, 70), (33, 1)] if padding else None)


def test_waiting_is_noticed(gpu: torch.device, waiting_is_an_error: None) -> None:
    with pytest.raises(RuntimeError, match='synchronizing'):
        torch.ones((), device=gpu).item()
