import logging
import re
from pathlib import Path

import pytest

from cpvt_mm.engine.full_disk import report_full_disk
from cpvt_mm.errors import UserError

pytestmark = pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs a file that is always full')


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('log')
    logger.addHandler(logging.FileHandler('/dev/full'))
    sentence = '/dev/full cannot be written (No space left on device): make room for it, then start again.'
    with pytest.raises(UserError, match=re.escape(sentence)), report_full_disk(str(tmp_path)):
        logger.info('line')
    assert 'Traceback' not in capsys.readouterr().err


def test_what_to_go_on_from_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    with pytest.raises(UserError, match=re.escape(f'a file in {tmp_path} cannot be written')) as raised, \
            report_full_disk(str(tmp_path)), open('/dev/full', 'w') as file:
        file.write('scalars')
    assert str(raised.value).endswith('then go on from iter_2.pth with --resume.')


def test_other_errors_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('log')
    logger.addHandler(logging.FileHandler(tmp_path / 'a.log'))
    with report_full_disk(str(tmp_path)):
        logger.info('%d', 'not a number')
    assert 'Logging error' in capsys.readouterr().err
    with pytest.raises(PermissionError), report_full_disk(str(tmp_path)):
        raise PermissionError
