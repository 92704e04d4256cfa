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

from tests.state import put_back

LOGGER = logging.getLogger('tests.state')

# How each state is read, and how it is changed.
CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    'scope': (DefaultScope.get_current_instance, lambda: init_default_scope('mmdet')),
    'messages': (lambda: MessageHub.check_instance_created('a'), lambda: MessageHub.get_instance('a')),
    'loggers of mmengine': (lambda: MMLogger.check_instance_created('a'), lambda: MMLogger.get_instance('a')),
    'visualizers': (lambda: Visualizer.check_instance_created('a'), lambda: Visualizer.get_instance('a')),
    'level': (lambda: LOGGER.level, lambda: LOGGER.setLevel('ERROR')),
    'handlers': (LOGGER.handlers.copy, lambda: LOGGER.addHandler(logging.Handler())),
    'filters': (LOGGER.filters.copy, lambda: LOGGER.addFilter(lambda _: False)),
    'propagation': (lambda: LOGGER.propagate, lambda: setattr(LOGGER, 'propagate', False)),
    'is disabled': (lambda: LOGGER.disabled, lambda: setattr(LOGGER, 'disabled', True)),
    'root': (lambda: logging.root.handlers[:], lambda: logging.root.addHandler(logging.Handler())),
    'all logs': (lambda: LOGGER.isEnabledFor(logging.ERROR), lambda: logging.disable(logging.ERROR)),
    'warnings': (lambda: warnings.filters[:], lambda: warnings.simplefilter('error')),
    'dtype': (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    'device': (torch.get_default_device, lambda: torch.set_default_device('meta')),
    'gradients': (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    'threads': (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    'determinism': (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
    'precision': (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision('medium')),
    **{f'cudnn.{name}': (lambda name=name: getattr(cudnn, name),
                         lambda name=name: setattr(cudnn, name, not getattr(cudnn, name)))
       for name in ('enabled', 'benchmark', 'deterministic', 'allow_tf32')},
    'threads of OpenCV': (cv2.getNumThreads, lambda: cv2.setNumThreads(cv2.getNumThreads() + 1)),
    'start method': (lambda: multiprocessing.get_start_method(allow_none=True),
                     lambda: multiprocessing.set_start_method('spawn', force=True)),
    'a new variable': (lambda: os.environ.get('CPVT_MM_NEW'), lambda: os.environ.update(CPVT_MM_NEW='1')),
    'an old variable': (lambda: os.environ.get('PATH'), lambda: os.environ.pop('PATH')),
    'sys.path': (sys.path.copy, lambda: sys.path.append('nowhere')),
    'sys.argv': (sys.argv.copy, lambda: sys.argv.append('--more')),
    'folder': (os.getcwd, lambda: os.chdir('/')),
    'figures': (plt.get_fignums, plt.figure),
    'drawing': (lambda: matplotlib.rcParams['figure.dpi'], lambda: matplotlib.rc('figure', dpi=7)),
    'draws of torch': (lambda: torch.get_rng_state().tolist(), lambda: torch.rand(1)),
    'draws of numpy': (lambda: np.random.get_state()[2], lambda: np.random.rand(1)),
    'draws of Python': (random.getstate, random.random),
    'process group': (distributed.is_initialized, lambda: distributed.init_process_group(
        'gloo', store=distributed.HashStore(), rank=0, world_size=1)),
}


@pytest.mark.parametrize('name', CHANGES)
def test_each_change_is_put_back(name: str) -> None:
    read, change = CHANGES[name]
    before = read()
    with put_back():
        change()
        assert read() != before
    assert read() == before


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


@pytest.mark.parametrize('start', ['first', 'second'])
def test_every_test_starts_the_same(start: str) -> None:
    assert DefaultScope.get_current_instance() is None
    draws = [torch.rand(()).item(), np.random.rand(), random.random()]
    assert draws == pytest.approx([0.4963, 0.5488, 0.8444], abs=1e-4)
    init_default_scope('mmdet')


@pytest.fixture(scope='module')
def shared() -> float:
    """Several tests share it."""
    init_default_scope('mmdet')
    return torch.rand(()).item()


@pytest.fixture(scope='session')
def shared_by_all() -> float:
    """Tests of several files may share it."""
    init_default_scope('mmdet')
    return torch.rand(()).item()


@pytest.fixture(scope='module')
def variable() -> object:
    """It is set for all tests of a module."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv('CPVT_MM_NEW', '1')
        yield


@pytest.mark.parametrize('start', ['first', 'second'])
def test_a_shared_fixture_leaves_nothing_but_what_it_takes_back_itself(
        start: str, shared: float, shared_by_all: float, variable: None) -> None:
    assert DefaultScope.get_current_instance() is None
    assert shared == shared_by_all == torch.rand(()).item()
    assert os.environ['CPVT_MM_NEW'] == '1'


def test_a_shared_fixture_that_a_test_asks_for_later_changes_nothing(request: pytest.FixtureRequest) -> None:
    drawn = torch.rand(()).item()
    init_default_scope('mmseg')
    assert request.getfixturevalue('later') == drawn
    assert torch.rand(()).item() != drawn
    assert DefaultScope.get_current_instance().scope_name == 'mmseg'


@pytest.fixture(scope='module')
def later() -> float:
    init_default_scope('mmdet')
    return torch.rand(()).item()
