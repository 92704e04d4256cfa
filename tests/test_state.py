"""State that a test or a shared fixture changes is put back."""
import logging
import multiprocessing
import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import cv2
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope, init_default_scope
from mmengine.visualization import Visualizer
from torch import distributed
from torch.backends import cudnn

from tests.state import SETTINGS, put_back

LOGGER = logging.getLogger('tests.state')
CHANGES: dict[str, Callable[[], object]] = {
    'scope': lambda: init_default_scope('mmdet'),
    'messages': lambda: MessageHub.get_instance('a'), 'visualizers': lambda: Visualizer.get_instance('a'),
    'loggers of mmengine': lambda: MMLogger.get_instance('a'), 'level': lambda: LOGGER.setLevel('ERROR'),
    'handlers': lambda: LOGGER.addHandler(logging.Handler()), 'filters': lambda: LOGGER.addFilter(lambda _: False),
    'propagation': lambda: setattr(LOGGER, 'propagate', False),
    'is disabled': lambda: setattr(LOGGER, 'disabled', True),
    'root': lambda: logging.root.addHandler(logging.Handler()), 'all logs': lambda: logging.disable(logging.ERROR),
    'warnings': lambda: warnings.simplefilter('error'),
    'dtype': lambda: torch.set_default_dtype(torch.float64), 'device': lambda: torch.set_default_device('meta'),
    'gradients': lambda: torch.set_grad_enabled(False),
    'threads': lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    'determinism': lambda: torch.use_deterministic_algorithms(True),
    'precision': lambda: torch.set_float32_matmul_precision('medium'),
    **{f'cudnn.{name}': lambda name=name: setattr(cudnn, name, not getattr(cudnn, name))
       for name in ('enabled', 'benchmark', 'deterministic', 'allow_tf32')},
    'threads of OpenCV': lambda: cv2.setNumThreads(cv2.getNumThreads() + 1),
    'start method': lambda: multiprocessing.set_start_method('spawn', force=True),
    'a new variable': lambda: os.environ.update(CPVT_MM_NEW='1'), 'an old variable': lambda: os.environ.pop('PATH'),
    'sys.path': lambda: sys.path.append('nowhere'), 'sys.argv': lambda: sys.argv.append('--more'),
    'folder': lambda: os.chdir('/'), 'figures': plt.figure, 'drawing': lambda: matplotlib.rc('figure', dpi=7),
    'draws of torch': lambda: torch.rand(1), 'draws of numpy': lambda: np.random.rand(1),
    'draws of Python': random.random,
    'process group': lambda: distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0,
                                                            world_size=1)}


def read_all() -> list[object]:
    return [*(read() for read, _ in SETTINGS.values()), warnings.filters[:], os.getcwd(), plt.get_fignums(),
            matplotlib.rcParams['figure.dpi'], torch.get_rng_state().tolist(), np.random.get_state()[2],
            random.getstate(), distributed.is_initialized()]


@pytest.mark.parametrize('name', CHANGES)
def test_each_change_is_put_back(name: str) -> None:
    before = read_all()
    with put_back():
        CHANGES[name]()
        assert read_all() != before
    assert read_all() == before


def test_also_after_an_error_and_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    before, gone = os.getcwd(), tmp_path / 'gone'
    gone.mkdir()
    with pytest.raises(ZeroDivisionError), put_back():
        os.chdir(gone)
        gone.rmdir()
        torch.set_default_dtype(1 / 0)
    assert os.getcwd() == before


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    init_default_scope('mmseg')
    logger = MMLogger.get_instance('a', log_file=str(tmp_path / 'a.log'), log_level='WARNING')
    with put_back():
        init_default_scope('mmdet')
        MMLogger.get_instance('b', log_file=str(tmp_path / 'b.log')).info('line')
        file = MMLogger.get_current_instance().handlers[-1].stream
        logger.setLevel('ERROR')
        logger.handlers.clear()
    assert DefaultScope.get_current_instance().scope_name == 'mmseg'
    assert MMLogger.get_current_instance() is logger and not logger.level and len(logger.handlers) == 2
    assert file.closed and not logger.handlers[-1].stream.closed


def drawn() -> float:
    init_default_scope('mmdet')
    return torch.rand(()).item()


shared = pytest.fixture(drawn, scope='session')
later = pytest.fixture(drawn, scope='module')


@pytest.fixture(scope='module')
def variable() -> object:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv('CPVT_MM_NEW', '1')
        yield


@pytest.mark.parametrize('start', ['first', 'second'])
def test_every_test_starts_the_same_and_shared_fixtures_leave_only_what_they_take_back(
        start: str, shared: float, variable: None) -> None:
    assert DefaultScope.get_current_instance() is None and os.environ['CPVT_MM_NEW'] == '1'
    draws = [torch.rand(()).item(), np.random.rand(), random.random()]
    assert draws == pytest.approx([0.4963, 0.5488, 0.8444], abs=1e-4)
    assert shared == draws[0]
    init_default_scope('mmdet')


def test_a_shared_fixture_that_a_test_asks_for_later_changes_nothing(request: pytest.FixtureRequest) -> None:
    before = torch.rand(()).item()
    init_default_scope('mmseg')
    assert request.getfixturevalue('later') == before
    assert torch.rand(()).item() != before
    assert DefaultScope.get_current_instance().scope_name == 'mmseg'
