"""The command `cpvt_mm`: its subcommands are those of tools/, under other names."""
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cpvt_mm.__main__ import COMMANDS
from cpvt_mm.version import __version__
from openmmlab_tools.commands import COMMANDS as GENERAL
from openmmlab_tools.compat.late_imports import IMPORTERS
from openmmlab_tools.engine import load_config
from tests.helpers import ROOT
from tests.openmmlab_tools.readers.layouts import NO_WORKERS
from tests.tools.conftest import Capture, Run, change_annotations

COMMAND = '../cpvt_mm/__main__.py'
TOOLS = {'train': 'train.py', 'test': 'test.py', 'predict': '../demo/image_demo.py',
         'new-config': 'misc/new_config.py', 'check': 'misc/check_dataset.py', 'distil': 'misc/distil.py',
         'swap': 'misc/swap_backbone.py', 'export': 'deployment/export.py'}


def test_alone_it_lists_its_commands_and_it_tells_its_version_and_which_command_was_meant(
        run_tool: Run, capsys: Capture) -> None:
    assert run_tool(COMMAND) == run_tool(COMMAND, '--help') == ''
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith('  ')]
    assert listed == [*COMMANDS] * 2 == [*TOOLS] * 2
    assert {f'{path.parts[-3]}.commands.{path.stem}' for path in ROOT.glob('*/commands/[!_]*.py')
            if path.parts[-3] != 'lab'} == {command.module for command in COMMANDS.values()}
    assert run_tool(COMMAND, '--version') == '' and capsys.readouterr().out == f'cpvt_mm {__version__}\n'
    assert run_tool(COMMAND, 'trian').startswith("error: 'trian' is not a command: did you mean train; there are ")


@pytest.mark.parametrize('command, tool', TOOLS.items())
def test_a_command_has_the_options_of_its_tool(command: str, tool: str, run_tool: Run, capsys: Capture) -> None:
    helps = []
    for name, *args in ((tool, '--help'), (COMMAND, command, '--help')):
        assert run_tool(name, *args) == '0'
        helps.append(capsys.readouterr().out.split())
    assert helps[1] == ['usage:', 'cpvt_mm', command, *helps[0][2:]]


@pytest.mark.parametrize('option, words', [
    ('a', 'has no value: write a=VALUE'), ('a=[1,b(2,3)]', 'has a list that cannot be read'),
    ('a=[(1]', 'has a list that cannot be read'),
    *((f'custom_hooks={hook}', 'has a dict, which this option does not accept: set each key') for hook in (
        "[dict(type='EarlyStoppingHook', patience=3)]", "[{'type':'EarlyStoppingHook'}]"))])
def test_an_option_of_the_config_that_cannot_be_read_is_told(option: str, words: str, run_tool: Run, capsys: Capture
                                                             ) -> None:
    assert run_tool('train.py', 'no.py', '--cfg-options', option) == '2'
    assert f'error: --cfg-options {option} {words}' in capsys.readouterr().err


# What takes long to import: arguments are parsed before it.
LONG = ('numpy', 'torch', 'PIL', 'cv2', 'matplotlib', 'rich', 'pycocotools', 'pandas', 'transformers', 'mmengine',
        'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'onnxruntime', 'openvino', 'cpvt_mm.public', 'openmmlab_tools.files')
FILES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob('tools/**/*.py'), ROOT / 'demo/image_demo.py'))
# Other commands of the lab may import at once what they study.
PACKAGES = {'cpvt_mm': [*COMMANDS], 'openmmlab_tools': [*GENERAL], 'lab': ['benchmark', 'get_flops', 'start']}
PROGRAMS = [['-m', package, *name] for package, names in PACKAGES.items() for name in ([], *([name] for name in names))]


@pytest.mark.parametrize('program', [*PROGRAMS, *([file] for file in FILES)], ids=' '.join)
def test_help_version_and_mistyped_words_wait_for_nothing(program: list[str]) -> None:
    """New commands and tools are tested as well. `python -X importtime` lists what a process imports."""
    is_list = program[1:] in [[package] for package in PACKAGES]  # of commands
    words = ['--help', *(['--version', 'trian'] if is_list else ['--no-such-option'])]
    for word in words:
        done = subprocess.run([sys.executable, '-X', 'importtime', *program, word], cwd=ROOT, capture_output=True,
                              text=True, timeout=300, env={**os.environ, 'PYTHONPATH': str(ROOT)})
        lines = done.stderr.splitlines()
        imported = {line.rpartition('|')[2].strip() for line in lines if line.startswith('import time:')}
        assert 'argparse' in imported and not imported & {*LONG}, f'{program} {word}: {imported & {*LONG}}'
        told = done.stdout + '\n'.join(line for line in lines if not line.startswith('import time:'))
        assert 'usage: ' in told or 'cpvt_mm ' in told or 'is not a command' in told
        assert done.returncode == (0 if word in ('--help', '--version') and 'not a command' not in told else
                                   1 if 'is not a command' in told else 2)


@pytest.mark.parametrize('program', ['-m mine', '-mmine', '-m mine -m cpvt_mm', '-m mine.training'])
def test_a_package_that_imports_this_one_builds_its_types(program: str, tmp_path: Path) -> None:
    """Python imports the package of `-m` before its module, so the registries must be there at once."""
    mine = tmp_path / 'mine'
    mine.mkdir()
    (mine / '__init__.py').write_text('import cpvt_mm\n')
    for name in ('__main__.py', 'training.py'):
        (mine / name).write_text('from mmengine.registry import MODELS\n'
                                 "print(type(MODELS.build(dict(type='PyramidCPVT', arch='nano'))).__name__)\n")
    done = subprocess.run([sys.executable, *program.split()], cwd=tmp_path, capture_output=True, text=True,
                          timeout=300, env={**os.environ, 'PYTHONPATH': f'{ROOT}{os.pathsep}{tmp_path}'})
    assert done.stdout == 'PyramidCPVT\n', done.stderr


def test_importing_the_package_waits_for_no_other_library(run_python: Run) -> None:
    long = ('torch._dynamo', 'torch.distributed.tensor', 'transformers', 'huggingface_hub', 'torchvision', 'mmcv',
            'mmdet', 'PIL', 'pandas', 'mmengine.model')
    assert run_python(f'import sys, cpvt_mm; print({{*{long}}} & sys.modules.keys())').stdout == 'set()\n'


@pytest.mark.slow
def test_a_prediction_waits_for_no_package_that_its_model_does_not_use(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, '-X', 'importtime', '-m', 'cpvt_mm', 'predict', 'demo/nuclei/example.png',
                           '--out-dir', tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=300)
    imported = {line.rpartition('|')[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0 and (tmp_path / 'example.png').is_file() and 'torchvision' in imported
    packages = {*IMPORTERS.values(), 'mmseg', 'pandas', 'onnxruntime', 'openvino'}
    # Python also lists the packages that it does not find.
    unused = tuple(f'{package}.' for package in packages if find_spec(package.partition('.')[0]))
    assert {module for module in imported if f'{module}.'.startswith(unused)} == set()


def test_a_detector_does_not_import_the_library_of_segmentors(run_python: Run) -> None:
    code = 'import sys, cpvt_mm.preprocessors, mmdet.apis; print({"mmdet", "mmseg"} & sys.modules.keys())'
    assert run_python(code).stdout.splitlines()[-1] == "{'mmdet'}"  # the forks print more lines before


def test_imports_print_nothing(run_python: Run) -> None:
    """Neither do torch, mmcv, mmdet, mmseg and mmpretrain, which miss packages that no reader asked for."""
    done = run_python('import openmmlab_tools.evaluation.metrics, cpvt_mm.preprocessors, mmdet.models, mmseg.models')
    assert done.stdout + done.stderr == ''


def test_data_becomes_a_config_with_its_faults_told_and_the_next_command_trains_it(
        run_tool: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    change_annotations(data / 'instances_training.json', lambda coco: coco['annotations'][0].update(
        bbox=[500, 500, 9, 9]))
    assert run_tool(COMMAND, 'new-config', data, 'my.py', '--task', 'boxes', '--arch', 'nano', '--scale', 96, 64,
                    '--iters', 2, '--batch', 2) == ''
    printed = capsys.readouterr().out
    assert f'{data} contains COCO annotations.' in printed
    assert 'skipped: 1 objects lie more than half outside of their image, such as ' in printed
    assert (tmp_path / 'my_annotations/samples.png').exists()
    *_, last = printed.splitlines()
    told, _, command = last.rpartition(' Next: ')
    program, *args = shlex.split(command)
    assert (told, program) == ('Wrote my.py.', 'cpvt_mm')
    assert run_tool(COMMAND, *args, '--cfg-options', *(f'{key}={value}' for key, value in NO_WORKERS.items())) == ''
    cfg = load_config('work_dirs/my/my.py')
    assert (cfg.scale, cfg.max_iters, cfg.batch_size) == ((96, 64), 2, 2)
    assert (tmp_path / 'work_dirs/my/iter_2.pth').is_file() and [*tmp_path.glob('work_dirs/my/best_*.pth')]


# How each line begins that a newcomer sees, of five commands in turn.
TABLE, CLASSES = '[┏┃┡│└]', '(class|sun|ball|kite|boat|square)  +'
LINES = {
    'new-config {data} my.py --task boxes --arch nano --random-weights --iters 2 --batch 2': (
        '.* contains COCO annotations', 'train: ', 'val: ', 'val has no object of class ', 'Images have ',
        'In training, the median box ', r'\d+ files: ', r'\d+ of \d+ (images|objects) are used',
        'The backbone starts from random weights', 'About ', 'Look at ', 'Wrote my.py. Next: cpvt_mm train my.py'),
    'check my.py': (
        r'\d+ files: ', r'\d+ of \d+ (images|objects) are used', 'train: ', 'val, test: ', TABLE, 'Suggested: ',
        'Images checked: '),
    'train my.py': (
        'Checking model and data. All details are in ',
        '(model|weights|train|val|classes|batch|schedule|results in|loss and metrics|best checkpoint)  +', CLASSES,
        'First iteration done. ', r'Iter\((train|val)\) +\[\d/\d\]  ', 'validation after ', 'coco/bbox_',
        'work_dirs/.*confusion.png ', 'The model drops boxes '),
    'test my.py work_dirs/my/iter_2.pth': (
        'Checking model and data. All details are in ', r'Iter\(test\) \[\d/4\]  ', 'coco/bbox_', 'test, by class ',
        'work_dirs/.*confusion.png ', CLASSES, 'The model drops boxes ', 'work_dirs/.*thresholds.json contains '),
    'predict {data}/images/validation my.py work_dirs/my/iter_2.pth': (
        'Only boxes are drawn whose score is above the score with the best F1 ',
        'note: images are shown at ', 'Drew 4 of 4 images in outputs; '),
}


@pytest.mark.slow
def test_each_line_that_a_newcomer_sees_is_of_this_project(data: Path, tmp_path: Path) -> None:
    for command, beginnings in LINES.items():
        args = shlex.split(command.format(data=data))
        done = subprocess.run([sys.executable, '-m', 'cpvt_mm', *args], cwd=tmp_path, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        others = [line for line in done.stdout.splitlines() if line and not re.match('|'.join(beginnings), line)]
        assert (done.returncode, others) == (0, [])
