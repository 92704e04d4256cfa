"""mmdet's own tools/train.py, with the config that a run of this project has written to its work dir."""
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.config import Config

from tests.conftest import Trained, read_anywhere

from .attempts import die_at_step, run
from .test_durability import KILLED, assert_same

pytestmark = pytest.mark.slow

MMDET = Path(find_spec('mmdet').origin).parent
TOOL = next((path for path in (MMDET / '.mim/tools/train.py', MMDET.parent / 'tools/train.py') if path.exists()), None)


OPTIONS = ['train_cfg.max_iters=4', 'default_hooks.checkpoint.interval=2', 'default_hooks.checkpoint.max_keep_ckpts=1',
           'model.backbone.drop_path_rate=0.3', 'train_dataloader.num_workers=1', 'log_level=WARNING']


@pytest.mark.skipif(TOOL is None, reason='mmdet is installed without its tools')
def test_a_killed_training_resumes_to_the_bit_and_is_guarded(trained: dict[str, Trained], toy_shapes: Path,
                                                             tmp_path: Path) -> None:
    config = trained['mmdet'].config
    # The seed that the run drew is in the file, so that the order of the data is the same after a resume.
    assert isinstance(Config.fromfile(config).randomness.seed, int)
    whole, part, bad, output = (tmp_path / name for name in ('whole', 'part', 'bad', 'output.txt'))
    # A new process, which has not imported this project.
    subprocess.run([sys.executable, TOOL, config, '--work-dir', whole, '--cfg-options', *OPTIONS], check=True,
                   cwd=tmp_path, timeout=300)
    part_run = TOOL, config, '--work-dir', part
    assert run(output, *part_run, '--cfg-options', *OPTIONS, trap=die_at_step, number=5) == KILLED
    assert (part / 'last_checkpoint').read_text() == f'{part}/iter_2.pth'
    assert run(output, *part_run, '--resume', '--cfg-options', *OPTIONS) == 0
    assert f'{part}/iter_2.pth' in output.read_text()

    assert_same(whole / 'iter_4.pth', part / 'iter_4.pth')
    assert sorted(path.name for path in part.glob('*.pth*')) == ['iter_4.pth']
    read_anywhere(part / 'iter_4.pth')  # plain types only

    assert run(output, TOOL, config, '--work-dir', bad, '--cfg-options', *OPTIONS,
               'model.roi_head.mask_head.loss_mask.loss_weight=1e39') == 1
    assert ('UserError: Training has stopped: in iteration 3 loss_mask is inf '
            f'(images {toy_shapes}/images/training/') in output.read_text()
    assert not list(bad.glob('*.pth'))
