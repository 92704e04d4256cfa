"""Each fault ends each command that meets it in a sentence with the file or the value, without output."""
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import Models, toy_overrides
from tests.tools.conftest import Capture, Exploit, Run, cut

WEIGHT = 'backbone.stages.0.blocks.0.mlp.fc1.weight'
Content = dict[str, Any]
Fault = Callable[[Content, Path], object]


class Case:
    """Arguments of commands: a config with a checkpoint beside it, an image, data, and a folder for what they write.
    """

    def __init__(self, trained: Models, data: Path, image: Path, folder: Path) -> None:
        (folder / 'model').mkdir()
        (folder / 'out').mkdir()
        self.config, self.checkpoint = folder / 'model/config.py', folder / 'model/a.pth'
        shutil.copy(trained['mmseg'].config, self.config)
        self.content: Content = torch.load(trained['mmseg'].checkpoint, weights_only=True)
        self.data, self.image, self.out = data, image, folder / 'out'

    def train(self, **options: object) -> tuple[object, ...]:
        return ('train.py', self.config, '--work-dir', self.out / 'work', '--cfg-options', *(
            f'{key}={value}' for key, value in {**toy_overrides(self.data), **options}.items()))

    def pretrained(self, part: str) -> tuple[object, ...]:
        return self.train(**{f'{part}.init_cfg.type': 'Pretrained', f'{part}.init_cfg.checkpoint': self.checkpoint})


COMMANDS: dict[str, Callable[[Case], tuple[object, ...]]] = {
    'train load_from': lambda case: case.train(load_from=case.checkpoint),
    'train init_cfg': lambda case: case.pretrained('model.backbone'),
    'train init_cfg of a model': lambda case: case.pretrained('model'),
    'train --resume': lambda case: (*case.train()[:4], '--resume', case.checkpoint, *case.train()[4:]),
    'test': lambda case: ('test.py', case.config, case.checkpoint, '--work-dir', case.out / 'work'),
    'predict': lambda case: ('../demo/image_demo.py', case.image, case.config, case.checkpoint, '--out-dir',
                             case.out / 'painted'),
    'export': lambda case: ('deployment/export.py', case.config, case.out / 'a.pt2', '--checkpoint', case.checkpoint),
    'export --part': lambda case: ('deployment/export.py', case.config, case.out / 'a.onnx', '--checkpoint',
                                   case.checkpoint, '--part', 'segmentor'),
    'convert_checkpoint': lambda case: ('model_converters/convert_checkpoint.py', case.checkpoint, case.out / 'a.pth'),
    'publish_model': lambda case: ('model_converters/publish_model.py', case.checkpoint, case.out / 'a'),
    'swap': lambda case: ('misc/swap_backbone.py', case.config, case.out / 'a.py', '--arch', 'nano', '--checkpoint',
                          case.checkpoint),
    'new_config': lambda case: ('misc/new_config.py', case.data, case.out / 'a.py', '--from', case.config.parent,
                                '--task', 'semantic'),
    'attention_maps': lambda case: ('lab attention_maps', case.config, '--image', case.image,
                                    '--checkpoint', case.checkpoint, '--out-dir', case.out / 'maps')}


def damage(key: str) -> Fault:
    """Puts NaN into a weight in a checkpoint."""
    def fault(content: Content, path: Path) -> None:
        weights = content[key] = dict(content['state_dict'])
        weights[WEIGHT] = weights[WEIGHT].clone().index_fill(0, torch.tensor([0]), torch.nan)
        torch.save(content, path)

    return fault


def saved(make: Callable[[Content], object]) -> Fault:
    return lambda content, path: torch.save(make(content), path)


# Others of the same kinds are in tests/openmmlab_tools/checkpoints/test_reading.py.
FAULTS: dict[str, Fault] = {
    'nan': damage('state_dict'), 'nan in an average': damage('ema_state_dict'),
    'names': saved(lambda content: dict(content, state_dict=dict.fromkeys(content['state_dict'], 'x'))),
    'code': saved(lambda content: dict(content, state_dict=Exploit())), 'nothing': saved(lambda content: {}),
    'cut': lambda content, path: (torch.save(content, path), cut(path)), 'a folder': lambda content, path: path.mkdir()}


@pytest.fixture
def case(trained: Models, data: Path, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.chdir(tmp_path)
    return Case(trained, data, image, tmp_path)


def check(told: str, case: Case) -> None:
    assert told.startswith('error: ') and '\n' not in told and str(case.checkpoint) in told, told
    left = {path.name for path in case.out.iterdir()} - {'work'}
    assert not left and not [*case.out.rglob('*.pth')] and not Path('hacked').exists()


def slow_but(one: str, names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name == one else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize('fault', slow_but('nan', FAULTS))
@pytest.mark.parametrize('command', COMMANDS)
def test_a_checkpoint(command: str, fault: str, case: Case, run_tool: Run) -> None:
    FAULTS[fault](case.content, case.checkpoint)
    check(run_tool(*COMMANDS[command](case)), case)


def changed(**model: object) -> str:
    return f'model = dict({", ".join(f"{key}=dict({value})" for key, value in model.items())})'


# What follows the line of `_base_` in a config, and a word of what is told.
CONFIGS: dict[str, tuple[str, str]] = {
    'an encoding': (changed(backbone="position_encoding=dict(type='PEGG')"), 'PEGG'),
    'an argument': (changed(backbone='drop_path=0.1'), 'drop_path'),
    'a value': (changed(backbone="arch='tinyy'"), 'tinyy'),
    'a type': (changed(backbone="type='PyramidCVPT'"), 'PyramidCVPT'),
    'no name': (changed(backbone="type='../x'"), '../x'),
    'a head': (changed(decode_head="type='UPerHed'"), 'UPerHed'),
    'channels': (changed(decode_head='in_channels=[1, 2, 3, 4]'), 'decode_head'),
    'no model': ('model = dict(_delete_=True)', 'model'), 'a number': ('model = 3', 'model'),
    'no data set': ('val_dataloader = dict(_delete_=True, batch_size=2)', 'val_dataloader'),
    'an error': ("raise ImportError('no colour today')", 'no colour today'), 'cut': ('model = dict(', 'own.py')}
OF_CONFIGS = {**{name: command for name, command in COMMANDS.items() if 'init_cfg' not in name and 'model' not in name
                 and name not in ('train load_from', 'train --resume', 'convert_checkpoint')},
              'train': lambda case: case.train(), 'check': lambda case: ('misc/check_dataset.py', case.config),
              'swap': lambda case: ('misc/swap_backbone.py', case.config, case.out / 'a.py', '--arch', 'nano')}


@pytest.mark.parametrize('fault', slow_but('an encoding', CONFIGS))
@pytest.mark.parametrize('command', OF_CONFIGS)
def test_a_config(command: str, fault: str, case: Case, run_tool: Run, capsys: Capture) -> None:
    text, word = CONFIGS[fault]
    torch.save(case.content, case.checkpoint)
    case.config = case.config.rename(case.out.with_name('base.py')).with_name('model') / 'own.py'
    case.config.write_text(f"_base_ = '../base.py'\n{text}\n")
    told = run_tool(*OF_CONFIGS[command](case))
    if told == '1':  # of check, which prints a table
        told = f'error: {" ".join(capsys.readouterr().out.split())}'
    assert told.startswith('error: ') and '\n' not in told and word in told, told
    assert not {path.name for path in case.out.iterdir()} - {'work'}


def test_the_state_of_an_optimizer_is_checked_before_a_run_goes_on(case: Case, run_tool: Run) -> None:
    state = case.content['optimizer']['state']
    state[0]['exp_avg'] = state[0]['exp_avg'] * torch.nan
    torch.save(case.content, case.checkpoint)
    told = run_tool(*COMMANDS['train --resume'](case))
    check(told, case)
    assert 'not finite, such as optimizer.state.0.exp_avg (nan)' in told
