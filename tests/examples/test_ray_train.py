"""The example of Ray Train, on a cluster of this machine. A worker of it is killed."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT, UPERNET, toy_overrides

pytest.importorskip('ray', reason='make test-clusters installs it')
EXAMPLE = ROOT / 'examples' / 'ray_train.py'
DYING = """
import os
import signal
from pathlib import Path

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

@HOOKS.register_module()
class DieOnce(Hook):
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        note = Path(runner.work_dir, 'died')
        if runner.rank == 1 and runner.iter == 3 and not note.exists():
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing_of_the_end(toy_shapes: Path, tmp_path: Path) -> None:
    """Ray starts both workers again, from the last checkpoint. The end is that of two processes without Ray."""
    (tmp_path / 'dying.py').write_text(DYING)
    (tmp_path / 'config.py').write_text(
        f"_base_ = {str(UPERNET)!r}\ncustom_imports = dict(imports='dying')\ncustom_hooks = [dict(type='DieOnce')]")
    options = [f'{key}={value}' for key, value in toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 5, 'train_cfg.val_interval': 5, 'default_hooks.checkpoint.interval': 2,
        'randomness.seed': 0}).items()]
    environ = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(tmp_path), *sys.path]), 'PYTHON': sys.executable}
    for command in ([sys.executable, EXAMPLE, 'config.py', '--workers', '2', '--work-dir', 'killed'],
                    [ROOT / 'tools/dist_train.sh', UPERNET, '2', '--work-dir', 'whole']):
        subprocess.run([*command, '--cfg-options', *options], cwd=tmp_path, env=environ, check=True)
    killed, whole = (torch.load(tmp_path / name / 'iter_5.pth')['state_dict'] for name in ('killed', 'whole'))
    assert (tmp_path / 'killed/died').exists() and killed.keys() == whole.keys()
    assert all(torch.equal(value, whole[key]) for key, value in killed.items())
    # After iterations 2, 4 and 5; after 2 twice if the worker dies before Ray has taken note of the first.
    assert len(list(tmp_path.glob('killed/ray/checkpoint_*/last.pth'))) in (3, 4)
