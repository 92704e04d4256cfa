"""A config with classes as types is, once read, that with their names; libraries that are others are told."""
import copy
import sys
from pathlib import Path
from typing import Any

import mmengine.registry
import pytest
from mmengine.config import Config
from mmengine.registry import Registry

from openmmlab_tools.config_files import read_config, write_config
from openmmlab_tools.engine import load_config
from openmmlab_tools.libraries import require
from tests.helpers import refusal
from tests.openmmlab_tools.toy import DETECTOR, SEGMENTOR

REGISTRIES = [one for one in vars(mmengine.registry).values() if isinstance(one, Registry)]


def find(name: str, scope: str) -> Any:
    for registry in REGISTRIES:
        with registry.switch_scope_and_registry(scope) as here:
            if isinstance(kind := here.get(name), type):
                return kind
    return None  # a function, or a class that mmcv looks up by itself


def to_source(value: Any, scope: str, imports: set[str]) -> str:
    """Source of a value in the pure Python style; what it needs goes to `imports`."""
    if isinstance(value, list | tuple):
        items = ''.join(f'{to_source(one, scope, imports)}, ' for one in value)
        return f'[{items}]' if isinstance(value, list) else f'({items})'
    if not isinstance(value, dict):
        return repr(value)
    items = []
    for key, one in value.items():
        kind = find(one, scope) if key == 'type' and isinstance(one, str) else None
        if kind:
            imports.add(f'from {kind.__module__} import {kind.__name__}')
        items.append(f'{key!r}: {kind.__name__ if kind else to_source(one, scope, imports)}')
    return f'{{{", ".join(items)}}}'


def write_pure(cfg: Config, path: Path) -> None:
    """Writes a config in the pure Python style, which inherits from another."""
    imports: set[str] = set()
    content = dict(Config.to_dict(cfg), default_scope=None)
    lines = [f'{key} = {to_source(value, cfg.default_scope, imports)}' for key, value in content.items()]
    path.with_name('pure_base.py').write_text('\n'.join([*sorted(imports), *lines]))
    path.write_text('from mmengine.config import read_base\n\nwith read_base():\n    from .pure_base import *\n\n'
                    'optim_wrapper.update(clip_grad=dict(max_norm=2.))\n')


@pytest.mark.parametrize('config', [SEGMENTOR, DETECTOR])
def test_a_config_with_classes_is_that_with_names(config: Path, tmp_path: Path) -> None:
    expected = load_config(config, {'optim_wrapper.clip_grad': dict(max_norm=2.)}, 'work')
    expected.val_dataloader.key = 'secret'
    path = tmp_path / 'pure.py'
    write_pure(expected, path)
    assert not isinstance(Config.fromfile(path).model.type, str)
    cfg = load_config(path, work_dir='work')
    assert cfg.to_dict() == expected.to_dict()
    assert cfg.val_dataloader.key == 'secret' and 'secret' not in cfg.pretty_text  # a run still has it
    Config.fromfile(path).dump(tmp_path / 'places.py')  # as mmengine writes it
    assert load_config(tmp_path / 'places.py', work_dir='work').to_dict() == expected.to_dict()
    for name in (path, tmp_path / 'places.py'):
        old, out = read_config(str(name)), tmp_path / f'new_{name.name}'
        new = copy.deepcopy(old)
        new.model.backbone.init_cfg = dict(type='Kaiming', layer='Conv2d')
        write_config(old, new, str(name), out)  # a base in the text style lies beside it
        assert load_config(out).model.to_dict() == new.model.to_dict()
        assert Config.fromfile(out.with_name(f'{out.stem}_base.py')).to_dict() == old.to_dict()
        assert 'exists already' in refusal(write_config, old, new, str(name), tmp_path / f'new_{name.name}')
    cfg.dump(tmp_path / 'text.py')
    assert read_config(str(tmp_path / 'text.py')).to_dict() == expected.to_dict()


def test_no_scope_is_that_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / 'a.py'
    path.write_text("default_scope = None\nmodel = dict(type='mmseg.EncoderDecoder')\n"
                    "test_pipeline = [dict(type='mmdet.A')]\n")
    assert load_config(path).default_scope == 'mmseg'


@pytest.mark.parametrize('library', ['mmcv', 'mmdet', 'mmseg', 'mmpretrain'])
@pytest.mark.parametrize('content, version', [
    (None, 'unknown'), ('', 'unknown'), ('__version__ = None', 'None'), ('__version__ = "0.30.0"', '0.30.0')])
def test_another_library_of_the_name_is_told_with_its_place(library: str, content: str | None, version: str,
                                                            tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / library).mkdir()
    if content is not None:
        (tmp_path / library / '__init__.py').write_text(content)
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition('.')[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    told = refusal(require, library, error=ImportError)
    assert told.startswith(f'{library} cannot be imported (Python imports version {version} from {tmp_path}/{library},')
    sys.modules.pop(library)
