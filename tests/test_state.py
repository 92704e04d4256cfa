"""State that a test changes is put back."""
import logging
import os

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope, init_default_scope

from tests.state import SETTINGS, put_back


@pytest.mark.parametrize('start', ['first', 'second'])
def test_every_test_starts_the_same_and_what_changes_is_put_back(start: str) -> None:
    assert DefaultScope.get_current_instance() is None and torch.rand(()).item() == pytest.approx(0.4963, abs=1e-4)
    init_default_scope('mmseg')
    logger = MMLogger.get_instance('lives on', log_level='INFO')
    before = [read() for read, _ in SETTINGS]
    with pytest.raises(ZeroDivisionError), put_back():
        assert DefaultScope.get_current_instance() is None and not MMLogger.check_instance_created('lives on')
        init_default_scope('mmdet')
        MMLogger.get_instance('b').setLevel('ERROR')
        logging.disable(logging.INFO)
        assert not logger.isEnabledFor(logging.INFO)
        os.environ['CPVT_MM_NEW'] = '1'
        os.chdir('/')
        torch.set_default_dtype(1 / 0)
    assert [read() for read, _ in SETTINGS] == before and 'CPVT_MM_NEW' not in os.environ
    assert logger.isEnabledFor(logging.INFO)  # which remembers what logging.disable had silenced
