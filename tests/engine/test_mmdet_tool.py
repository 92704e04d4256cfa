"""mmdet's own tools/train.py, with the config that a run of this project has written to its work dir."""
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.config import Config

from tests.conftest import Trained
from tests.processes import wait_until

from .test_durability import assert_same

pytestmark = pytest.mark.slow

MMDET = Path(find_spec('mmdet').origin).parent
TOOL = next((path for path in (MMDET / '.mim/tools/train.py', MMDET.parent / 'tools/train.py') if path.exists()), None)


def start(config: Path, work_dir: Path, *arguments: str, **more: object) -> subprocess.Popen:
    """Starts mmdet's tool in a new process."""
    options = {
        'train_cfg.max_iters': 6, 'default_hooks.checkpoint.interval': 2, 'default_hooks.checkpoint.max_keep_ckpts': 1,
        'model.backbone.drop_path_rate': 0.3, 'train_dataloader.num_workers': 1, 'log_level': 'WARNING', **more}
    work_dir.mkdir(exist_ok=True)
    with (work_dir / 'output.txt').open('a') as output:
        return subprocess.Popen(
            [sys.executable, TOOL, config, '--work-dir', work_dir, *arguments, '--cfg-options',
             *(f'{key}={value}' for key, value in options.items())],
            stdout=output, stderr=subprocess.STDOUT, cwd=work_dir)


def finish(process: subprocess.Popen, work_dir: Path) -> str:
    """Waits for the end of a process; returns what it has printed."""
    process.wait(300)
    return (work_dir / 'output.txt').read_text()


@pytest.mark.skipif(TOOL is None, reason='mmdet is installed without its tools')
def test_a_killed_training_resumes_to_the_bit_and_is_guarded(trained: dict[str, Trained], tmp_path: Path) -> None:
    config = trained['mmdet'].config
    # The seed that the run drew is in the file, so that the order of the data is the same after a resume.
    assert isinstance(Config.fromfile(config).randomness.seed, int)
    whole, part, bad = (tmp_path / name for name in ('whole', 'part', 'bad'))
    process = start(config, whole)
    assert 'Traceback' not in finish(process, whole)

    process = start(config, part)
    wait_until(lambda: process.poll() is not None or (part / 'last_checkpoint').exists())
    process.kill()
    assert process.wait() == -signal.SIGKILL, finish(process, part)
    resumed = (part / 'last_checkpoint').read_text()
    assert resumed in (f'{part}/iter_2.pth', f'{part}/iter_4.pth')
    output = finish(start(config, part, '--resume'), part)
    assert 'Traceback' not in output and resumed in output

    assert_same(whole / 'iter_6.pth', part / 'iter_6.pth')
    assert sorted(path.name for path in part.glob('*.pth*')) == ['iter_6.pth']
    # Plain types only: torch needs no permission for other classes.
    code = f'import torch; torch.load({str(part / "iter_6.pth")!r}, weights_only=True)'
    assert subprocess.run([sys.executable, '-c', code], capture_output=True).returncode == 0

    process = start(config, bad, **{'model.roi_head.mask_head.loss_mask.loss_weight': 1e39})
    assert 'UserError: Training has stopped: in iteration 3 loss_mask is inf' in finish(process, bad)
    assert process.returncode == 1 and not list(bad.glob('*.pth'))
