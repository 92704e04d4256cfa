"""Workers of data loaders end with the process that started them, however it ends."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import UPERNET, toy_overrides
from tests.processes import is_alive, wait_until

CODE = '''
import multiprocessing, os, sys, time
from pathlib import Path
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from cpvt_mm.engine import load_config, prepare
options = dict(option.split('=') for option in sys.argv[2:])
cfg = load_config(sys.argv[1], options, 'work')
cfg.val_dataloader.update(num_workers=2, persistent_workers=True)
init_default_scope(cfg.default_scope)
batches = iter(Runner.build_dataloader(prepare(cfg).val_dataloader, seed=0))
next(batches)
Path('tmp').write_text(' '.join(str(worker.pid) for worker in multiprocessing.active_children()))
os.replace('tmp', 'pids')
time.sleep(600)
'''


@pytest.mark.slow
def test_workers_end_with_a_killed_process(toy_shapes: Path, tmp_path: Path) -> None:
    options = [f'{key}={value}' for key, value in toy_overrides(toy_shapes).items() if key.endswith('data_root')]
    process = subprocess.Popen([sys.executable, '-c', CODE, UPERNET, *options], cwd=tmp_path,
                               stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / 'pids').exists() or process.poll() is not None)
        workers = [int(pid) for pid in (tmp_path / 'pids').read_text().split()]
        assert len(workers) == 2 and all(map(is_alive, workers))
        process.kill()
        wait_until(lambda: not any(map(is_alive, workers)))
    finally:
        process.kill()
        process.wait()
        for worker in workers:
            if is_alive(worker):
                os.kill(worker, signal.SIGKILL)
