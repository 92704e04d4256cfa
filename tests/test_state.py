"""State that a test or a shared fixture changes is put back."""
import os

import pytest
import torch
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope, init_default_scope

from tests.state import SETTINGS, put_back


def test_what_changes_is_put_back_and_what_was_there_stays(tmp_path: pytest.TempPathFactory) -> None:
    init_default_scope('mmseg')
    logger = MMLogger.get_instance('a', log_file=str(tmp_path / 'a.log'), log_level='WARNING')
    before = [read() for read, _ in SETTINGS]
    with pytest.raises(ZeroDivisionError), put_back():
        init_default_scope('mmdet')
        MessageHub.get_instance('b')
        logger.handlers.clear()
        torch.set_default_dtype(torch.float64)
        os.environ.update(CPVT_MM_NEW='1')
        os.chdir(os.path.dirname(os.getcwd()))
        torch.set_num_threads(torch.get_num_threads() + 1 // 0)
    assert [read() for read, _ in SETTINGS] == before and len(logger.handlers) == 2
    assert DefaultScope.get_current_instance().scope_name == 'mmseg'


@pytest.mark.parametrize('start', ['first', 'second'])
def test_every_test_starts_the_same(start: str) -> None:
    assert DefaultScope.get_current_instance() is None and torch.rand(()).item() == pytest.approx(0.4963, abs=1e-4)
    init_default_scope('mmdet')
