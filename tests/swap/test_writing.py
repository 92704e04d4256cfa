from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.utils import is_installed

from cpvt_mm.errors import UserError
from cpvt_mm.swap import read_config, swap_backbone, to_delta, write_config
from cpvt_mm.swap.writing import bases_of, shipped_configs, to_source

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
OLD = dict(type='A', same=1, other=dict(x=1, y=dict(z=2)), items=[1, 2])
needs_mmseg_names = pytest.mark.skipif(not is_installed('mmsegmentation'), reason='mmengine finds no mmseg:: on onedl')


@pytest.mark.parametrize(('old', 'new', 'delta'), [
    (OLD, OLD, {}),
    (OLD, dict(type='A', same=1, other=dict(x=1, y=dict(z=3)), items=[2], more=0),
     dict(other=dict(y=dict(z=3)), items=[2], more=0)),
    # A key or the type is gone.
    (dict(a=dict(type='A', x=1)), dict(a=dict(type='B', x=1)), dict(a=dict(_delete_=True, type='B', x=1))),
    (dict(a=dict(x=1, y=1)), dict(a=dict(x=1)), dict(a=dict(_delete_=True, x=1))),
])
def test_delta_states_what_differs(old: dict, new: dict, delta: dict) -> None:
    assert to_delta(old, new) == delta


@pytest.mark.parametrize('value', [dict(a=[dict(b=(1,))], c=None), {'a.b': dict(c='x')}, [(1, 2), 'y'], dict(), ()])
def test_source_evaluates_to_the_value(value: object) -> None:
    assert eval(to_source(value)) == value


def test_written_config_inherits_and_is_what_was_asked_for(tmp_path: Path) -> None:
    old = read_config(RETINANET)
    new = swap_backbone(old, 'nano')
    write_config(old, new, RETINANET, tmp_path / 'swapped.py')
    assert (tmp_path / 'swapped.py').read_text() == (
        f"_base_ = '{RETINANET}'\n"
        "model = dict(backbone=dict(_delete_=True, type='cpvt_mm.PyramidCPVT', arch='nano', drop_path_rate=0.2),\n"
        '             neck=dict(in_channels=[32, 64, 128, 192]))\n')
    assert list(tmp_path.rglob('*')) == [tmp_path / 'swapped.py']
    written = Config.fromfile(tmp_path / 'swapped.py')
    assert written.model.neck.in_channels == [32, 64, 128, 192]
    assert written.train_dataloader == old.train_dataloader


def test_shipped_file_is_inherited_from_by_its_name(tmp_path: Path) -> None:
    path = shipped_configs('mmdet') / 'retinanet/retinanet_r50_fpn_1x_coco.py'
    assert bases_of(str(path), tmp_path / 'out.py', 'mmdet')[0] == RETINANET
    assert bases_of(RETINANET, tmp_path / 'out.py', 'mmdet') == [RETINANET]
    other_scope, = bases_of(str(path), tmp_path / 'out.py', 'mmpretrain')
    assert '::' not in other_scope and (tmp_path / other_scope).samefile(path)


@pytest.mark.slow
@pytest.mark.parametrize('is_own', [True, False], ids=['own', 'with a plus sign'])
def test_a_file_without_a_name_for_mmengine_is_inherited_from_by_its_path(is_own: bool, tmp_path: Path) -> None:
    path = shipped_configs('mmdet') / 'gn+ws/faster-rcnn_r50_fpn_gn-ws-all_1x_coco.py'
    if is_own:
        path = tmp_path / 'configs/own.py'
        path.parent.mkdir()
        path.write_text(f'_base_ = {RETINANET!r}\nmodel = dict(bbox_head=dict(num_classes=3))\n')
    old, out = read_config(str(path)), tmp_path / 'swapped/out.py'
    out.parent.mkdir()
    write_config(old, swap_backbone(old), str(path), out)
    assert Config.fromfile(out).model.neck.in_channels == [64, 128, 320, 512]
    assert '::' not in out.read_text()
    assert out.read_text().startswith("_base_ = '../configs/own.py'\n") or not is_own


@pytest.mark.slow
@needs_mmseg_names
def test_config_of_mmseg_by_name(tmp_path: Path) -> None:
    name = 'mmseg::fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py'
    old = read_config(name)
    write_config(old, swap_backbone(old), name, tmp_path / 'out.py')
    assert Config.fromfile(tmp_path / 'out.py').model.decode_head.in_channels == 512


def test_what_mmengine_reads_otherwise_is_not_written(tmp_path: Path) -> None:
    old = read_config(RETINANET)
    new = old.copy()
    new.pop('optim_wrapper')  # inheritance cannot take it away
    with pytest.raises(UserError, match='cannot inherit from config'):
        write_config(old, new, RETINANET, tmp_path / 'out.py')
    assert not list(tmp_path.iterdir())


def test_config_in_pure_python_style_is_refused(tmp_path: Path) -> None:
    path = tmp_path / 'pure.py'
    path.write_text('from mmengine.model import BaseModule\n'
                    'model = dict(type=BaseModule, backbone=dict(type=BaseModule))\n')
    with pytest.raises(UserError, match=r'pure.py has classes as types, in the pure Python style'):
        read_config(str(path))


@pytest.mark.parametrize(('name', 'message'), [
    ('no.py', 'config no.py does not exist: check the path'),
    ('mmdet::no/such.py', 'config mmdet::no/such.py cannot be read .*: correct its name, or name the path'),
])
def test_config_that_cannot_be_read(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_config(name)


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, there = read_config(RETINANET), tmp_path / 'there.py'
    there.write_text('mine')
    for path, words in ((there, 'there.py exists already: choose another file'),
                        (tmp_path / 'out.yaml', 'out.yaml is not a name for a config: use the suffix .py')):
        with pytest.raises(UserError, match=words):
            write_config(old, old, RETINANET, path)
    assert there.read_text() == 'mine'

    def fail(path: Path, text: str) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(Path, 'write_text', fail)
    with pytest.raises(UserError, match=r'out.py cannot be written .No space left on device.: choose another folder'):
        write_config(old, old, RETINANET, tmp_path / 'out.py')
