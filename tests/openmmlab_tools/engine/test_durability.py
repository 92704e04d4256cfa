"""Training that is killed or finds a full disk is resumed as if nothing had happened, by others' tools, too."""
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import pytest
from mmengine.config import Config

from openmmlab_tools.checkpoints.publishing import publish_model
from openmmlab_tools.checkpoints.reading import read_checkpoint
from tests.helpers import ROOT, Trained, read_anywhere
from tests.openmmlab_tools.resuming import assert_same, segmentor

KILLED = -signal.SIGKILL
def die_at_step(number: int) -> None:
    """Kills this process in front of one of its steps with checkpoints: to open, rename or remove a file."""
    steps = iter(range(number + 1))

    def hook(event: str, args: tuple) -> None:
        flags = args[2] or 0 if event == 'open' else 0  # O_EXCL makes the empty file that is opened next
        step = event in ('os.rename', 'os.remove') or (flags & (os.O_WRONLY | os.O_RDWR) and not flags & os.O_EXCL)
        if step and ('.pth' in str(args[0]) or 'last_checkpoint' in str(args[0])) and next(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def die_half_written(number: int) -> None:
    """Kills this process in the middle of the bytes of a checkpoint."""
    write, files = Path.write_bytes, iter(range(number + 1))

    def write_half(path: Path, content: bytes) -> int:
        if '.pth' in path.name and next(files) == number:
            write(path, content[:len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, content)

    Path.write_bytes = write_half


def in_child(output: Path, arguments: list[str], trap: Callable[[Any], None] | None, number: Any) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if trap:
        trap(number)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name='__main__')


def run(output: Path, tool: Path, *arguments: object, trap: Callable[[Any], None] | None = None, number: Any = 0,
        seconds: float | None = None) -> int:
    """Runs a tool in a process that is killed after `seconds`, or by `trap` at some number; returns its status.

    What it prints goes to `output`.
    """
    # Forked from one that has imported all that training needs, which takes seconds.
    forking = multiprocessing.get_context('forkserver')
    forking.set_forkserver_preload([__name__, 'mmdet.apis', 'mmseg.apis'])
    process = forking.Process(target=in_child, args=(output, [*map(str, (tool, *arguments))], trap, number))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode


def attempt(cfg: Config, **how: Any) -> int:
    """Trains a config, or goes on; beside its work dir go a file of it, and `output.txt`. See `run`."""
    config = Path(f'{cfg.work_dir}.py')
    cfg.dump(config)
    return run(config.parent / 'output.txt', ROOT / 'tools/train.py', config, '--resume', **how)


@pytest.mark.slow
def test_a_segmentor_that_is_killed_at_random_moments(toy_shapes: Path, tmp_path: Path) -> None:
    """After each, but before the first, there is a whole checkpoint."""
    whole, folder = tmp_path / 'whole', tmp_path / 'run'
    options = {'train_cfg.max_iters': 8, 'train_cfg.val_interval': 4, 'default_hooks.checkpoint.max_keep_ckpts': 1,
               'default_hooks.checkpoint.save_best': 'mIoU', 'custom_hooks': [dict(type='EMAHook')]}
    assert attempt(segmentor(toy_shapes, whole, options)) == 0
    cfg = segmentor(toy_shapes, folder, options)
    for kill in (
            dict(trap=die_at_step, number=16),  # the best checkpoint is written, but the other does not yet know of it
            dict(trap=die_at_step, number=7), dict(seconds=3), dict(trap=die_half_written, number=1),
            dict(trap=die_at_step, number=12)):
        assert attempt(cfg, **kill) in (0, KILLED), (tmp_path / 'output.txt').read_text()
        if (folder / 'last_checkpoint').exists():
            read_checkpoint((folder / 'last_checkpoint').read_text())
        # One that is whole, the next, and one that is half written.
        assert len([path for path in folder.glob('*.pth*') if not path.name.startswith('best')]) <= 3
    assert attempt(cfg) == 0 and not list(folder.glob('*.tmp'))
    names, expected = (sorted(path.name for path in work_dir.glob('*.pth')) for work_dir in (folder, whole))
    assert names == expected and names[1:] == ['iter_8.pth']
    for name in names:  # the best, too
        assert_same(read_checkpoint(whole / name), read_checkpoint(folder / name))


MMDET = Path(find_spec('mmdet').origin).parent
TOOL = next((path for path in (MMDET / '.mim/tools/train.py', MMDET.parent / 'tools/train.py') if path.exists()), None)
OPTIONS = ['train_cfg.max_iters=4', 'default_hooks.checkpoint.interval=2', 'default_hooks.checkpoint.max_keep_ckpts=1',
           'train_dataloader.num_workers=1', 'log_level=WARNING']


@pytest.mark.slow
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

    assert_same(*(read_checkpoint(folder / 'iter_4.pth') for folder in (whole, part)))
    assert sorted(path.name for path in part.glob('*.pth*')) == ['iter_4.pth']
    read_anywhere(part / 'iter_4.pth')  # plain types only

    assert run(output, TOOL, config, '--work-dir', bad, '--cfg-options', *OPTIONS,
               'model.roi_head.mask_head.loss_mask.loss_weight=1e39') == 1
    assert ('UserError: Training has stopped: in iteration 3 loss_mask is inf '
            f'(images {toy_shapes}/images/training/') in output.read_text()
    assert not list(bad.glob('*.pth'))


Run = Callable[[str], subprocess.CompletedProcess]
INFER = '''
import os
from {scope}.apis import {inferencer}
inferencer = {inferencer}({arguments}, device='cpu')
found = inferencer({image!r})['predictions']
import torch
from openmmlab_tools.checkpoints.reading import read_checkpoint
state, loaded = read_checkpoint({checkpoint!r})['state_dict'], inferencer.model.state_dict()
print('all weights:', state.keys() == loaded.keys() and all(torch.equal(state[name], loaded[name]) for name in state))
print('prediction:', sorted(found[0]) if isinstance(found[0], dict) else found.shape)
print('files:', os.listdir())
'''


@pytest.mark.parametrize('scope, inferencer, is_published', [
    ('mmdet', 'DetInferencer', True), pytest.param('mmseg', 'MMSegInferencer', False, marks=pytest.mark.slow)])
def test_what_a_training_leaves_is_enough(scope: str, inferencer: str, is_published: bool, toy_shapes: Path,
                                          trained: dict[str, Trained], tmp_path: Path, run_python: Run) -> None:
    image = toy_shapes / 'images/validation/000000.jpg'
    assert_inferred(scope, inferencer, is_published, trained[scope], image, tmp_path, run_python)


def assert_inferred(scope: str, inferencer: str, is_published: bool, trained: Trained, image: Path, tmp_path: Path,
                    run_python: Run) -> None:
    """Checks that an inferencer of a library, in a new process, has all weights and predicts an image."""
    config, checkpoint = trained
    arguments = f'{str(config)!r}, {str(checkpoint)!r}'
    if is_published:  # it holds the config, too
        checkpoint, _ = publish_model(checkpoint, tmp_path / 'model')
        arguments = f'weights={str(checkpoint)!r}'
    done = run_python(INFER.format(scope=scope, inferencer=inferencer, arguments=arguments, image=str(image),
                                   checkpoint=str(checkpoint)))
    assert done.returncode == 0, done.stderr
    # onedl's mmengine answers a refusal by reading the file with all its code, and says so.
    assert 'weights_only' not in done.stdout + done.stderr
    prediction = ['bboxes', 'labels', 'masks', 'scores'] if scope == 'mmdet' else cv2.imread(str(image)).shape[:2]
    assert done.stdout.splitlines()[-3:] == ['all weights: True', f'prediction: {prediction}', 'files: []']
