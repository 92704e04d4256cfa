"""Importing the package changes nothing for others: only registries, and the finder of `openmmlab_compat`."""
import subprocess
from collections.abc import Callable

# The package itself imports parts of mmcv and mmengine, which may change settings.
STATE = '''
import logging, os, sys, warnings
import numpy, torch, mmcv
import mmengine.config, mmengine.hub, mmengine.model, mmengine.runner, mmengine.visualization
def is_torchs(one):  # torch adds entries when modules of its own are imported
    return getattr(one, '__module__', '').startswith('torch.')
def state():
    loggers = [logging.root, *(logging.getLogger(name) for name in sorted(logging.root.manager.loggerDict))]
    return dict(
        safe=[one for one in torch.serialization.get_safe_globals() if not is_torchs(one)],
        environment=dict(os.environ), warnings=warnings.filters[:],
        levels={logger.name: logger.level for logger in loggers if logger.level},
        numpy=[id(getattr(numpy, name)) for name in numpy.__all__], path=sys.path[:],
        dtype=torch.get_default_dtype(), threads=torch.get_num_threads())
before = state()
import cpvt_mm, cpvt_mm.loading, cpvt_mm.weights.reading
after = state()
print([name for name in before if before[name] != after[name]])
'''


def test_importing_changes_no_global_state(run_python: Callable[[str], subprocess.CompletedProcess]) -> None:
    done = run_python(STATE)
    assert done.stdout.splitlines()[-1:] == ['[]'], done.stdout + done.stderr
