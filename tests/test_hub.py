"""Backbones by name, and those that are saved in a folder or pushed to the hub."""
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, RepoUrl
from torch import nn

import cpvt_mm
from cpvt_mm import CPVT, PEG, PyramidCPVT, create_backbone, list_backbones, load_pretrained
from cpvt_mm.models.create import load_backbone
from cpvt_mm.zoo.members import RELEASED, Member
from openmmlab_tools.checkpoints.loading import build
from openmmlab_tools.engine import load_config
from openmmlab_tools.errors import UserError
from tests.backbones import MASK_RCNN, NARROW, NARROW_PLAIN
from tests.helpers import refusal

# Without classifier: the papers' numbers less 1000 times the last width, plus 1000.
MILLIONS = {
    'pvt-tiny': 12.7, 'pvt-small': 24.0, 'pvt-medium': 43.7, 'pvt-large': 60.9,
    'pvtv2-b0': 3.4, 'pvtv2-b1': 13.5, 'pvtv2-b2': 24.8, 'pvtv2-b2-li': 22.0, 'pvtv2-b3': 44.7, 'pvtv2-b4': 62.0,
    'pvtv2-b5': 81.4, 'mit-b0': 3.3, 'mit-b1': 13.1, 'mit-b2': 24.2, 'mit-b3': 44.1, 'mit-b4': 60.8, 'mit-b5': 81.4}


def test_every_name_builds_its_backbone_with_the_size_of_its_paper() -> None:
    actual = {}
    for name in list_backbones():
        with torch.device('meta'):
            model = create_backbone(name, drop_path_rate=.1)
        assert type(model) is (PyramidCPVT if name.startswith(('pyramid', 'pvt', 'mit')) else CPVT)
        actual[name] = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert {name: actual[name] for name in MILLIONS} == pytest.approx(MILLIONS, abs=0.06)
    assert {*MILLIONS} == {name for name in actual if name.startswith(('pvt', 'mit'))}
    assert list_backbones(pretrained=True) == [name for name in list_backbones() if name in RELEASED]
    assert {*RELEASED} <= {*list_backbones()} and {'list_backbones', 'create_backbone'} <= {*cpvt_mm.__all__}


@pytest.mark.parametrize('name', ['deit-tiny', 'pvt-tiny', 'pvtv2-b0', 'dinov2-small-reg4', 'lingbot-small',
                                  'rope-vit-small-axial', 'rope-vit-small-mixed-ape'])
def test_pretrained_fills_the_backbone(name: str, fake_released: Callable[[str], dict]) -> None:
    weights = fake_released(f'cpvt_mm://{name}')
    model = create_backbone(name, pretrained=True)
    # A token has the sum of itself and its row of the table, which is 0 here.
    torch.testing.assert_close(dict(model.state_dict()), dict(weights), rtol=0, atol=0)


def test_a_peg_from_zero_beside_the_encoding_changes_nothing(fake_released: Callable[[str], dict]) -> None:
    fake_released('cpvt_mm://dinov3-small')
    rotary = dict(type='RotaryPE', form='dinov3')
    image, results = torch.randn(1, 3, 64, 48), []
    for encoding in (rotary, [rotary, dict(type='PEG', init='zero')]):
        model = create_backbone('dinov3-small', pretrained=True, position_encoding=encoding, out_type='raw')
        results.append(model.eval()(image)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize('kwargs', [{}, dict(norm_eps=1e-4)])
def test_norm_eps_follows_the_weights_if_it_is_not_given(kwargs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    name = 'pyramid-cpvt-small'
    monkeypatch.setitem(RELEASED, name, Member('PyramidCPVT', 'small', norm_eps=1e-3))
    monkeypatch.setattr(PyramidCPVT, 'init_weights', lambda self: None)
    with torch.device('meta'):
        model = create_backbone(name, pretrained=True, **kwargs)
    assert model.norm_eps == kwargs.get('norm_eps', 1e-3)
    assert model.init_cfg == dict(type='Pretrained', checkpoint=f'cpvt_mm://{name}')


@pytest.mark.parametrize(('args', 'error', 'words'), [
    (dict(name='pyramid-cpvt-smal'), UserError, "'pyramid-cpvt-smal' is not a backbone: did you mean pyramid-cpvt-sm"),
    (dict(name='pyramid-cpvt-tiny', pretrained=True), UserError, 'no released weights of .*: set pretrained=False'),
    (dict(name='deit-tiny', pretrained='a.pth'), TypeError, "pretrained is 'a.pth', but must be .* init_cfg"),
    (dict(name='deit-tiny', arch='small'), TypeError, 'arch of deit-tiny is set by its name')])
def test_mistakes_are_told_in_a_sentence(args: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        create_backbone(**args)


BACKBONES = {
    'PyramidCPVT': partial(PyramidCPVT, dict(NARROW, sr_mode='pool', mlp_mode='conv'), 160, out_indices=(1, 3),
                           position_encoding=[dict(type='PEG', positions=(-1, 0)), dict(type='LearnablePE')]),
    'CPVT': partial(CPVT, NARROW_PLAIN, cls_token=False, position_encoding=None, drop_path_rate=.1)}


def assert_same(a: nn.Module, b: nn.Module) -> None:
    assert type(a) is type(b)
    torch.testing.assert_close(a.state_dict(), b.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize('init_cfg', [
    dict(type='Pretrained', checkpoint='a.pth'), [dict(type='Constant', layer='Linear', val=9.),
                                                  dict(type='Pretrained', checkpoint='a.pth')]])
def test_init_cfg_is_loaded_at_once(init_cfg: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(create_backbone('pvtv2-b0').state_dict(), 'a.pth')
    assert_same(create_backbone('pvtv2-b0', init_cfg=init_cfg), create_backbone('pvtv2-b0', init_cfg=init_cfg))
    constant = create_backbone('pvtv2-b0', init_cfg=dict(type='Constant', layer='Linear', val=9.))
    assert all((part.weight == 9).all() for part in constant.modules() if isinstance(part, nn.Linear))
    Path('a.pth').unlink()
    with pytest.raises(UserError, match=r'a\.pth does not exist'):
        create_backbone('pvtv2-b0', init_cfg=init_cfg)
    with pytest.raises(UserError, match='loads the weights of folder: leave init_cfg out'):
        PyramidCPVT.from_pretrained('folder', init_cfg=init_cfg)


@pytest.mark.parametrize('name', BACKBONES)
def test_a_folder_gives_the_same_backbone(name: str, tmp_path: Path) -> None:
    model = BACKBONES[name]()
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {'config.json', 'model.safetensors', 'README.md'}
    again = type(model).from_pretrained(tmp_path)
    assert not again.training
    assert_same(model.eval(), again)
    assert str(model) == str(again)  # with its rates
    image = torch.rand(1, 3, 50, 70)
    assert all(torch.equal(*pair) for pair in zip(model(image), again(image), strict=True))


def test_the_backbone_of_a_detectors_checkpoint_travels_as_well(tmp_path: Path) -> None:
    cfg = load_config(MASK_RCNN)
    weights = build(cfg, cfg.model).state_dict()
    torch.save(dict(state_dict=weights, meta={}), tmp_path / 'epoch_12.pth')
    load_backbone(cfg, tmp_path / 'epoch_12.pth').save_pretrained(tmp_path)
    again = PyramidCPVT.from_pretrained(tmp_path)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, weights[f'backbone.{name}'])
    other = PyramidCPVT('nano')
    load_pretrained(other, tmp_path / 'model.safetensors')  # which is a checkpoint like others
    assert_same(again, other.eval())


class Named(PyramidCPVT):
    """A subclass that passes arguments on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


def test_arguments_that_a_subclass_passes_on_are_kept_by_name(tmp_path: Path) -> None:
    model = Named(arch=NARROW, out_indices=(3,), init_cfg=None).eval()
    model.save_pretrained(tmp_path)
    assert {'arch', 'out_indices'} == json.loads((tmp_path / 'config.json').read_text()).keys()
    file, known = tmp_path / 'config.json', dict(model_type='cpvt', tags=['a'], architectures=['CPVT'])
    file.write_text(json.dumps(json.loads(file.read_text()) | known))  # keys that the hub knows are no arguments
    assert_same(model, Named.from_pretrained(tmp_path))
    with pytest.raises(UserError, match=r'position_encoding of the CPVT is .*PEG.*pass the name of a class'):
        CPVT(NARROW_PLAIN, position_encoding=dict(type=PEG)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"Named was built with \('nano',\) without names, .*: pass these arguments as "
                                        r"name=value\."):
        Named('nano').save_pretrained(tmp_path)


@pytest.mark.parametrize(('change', 'words'), [
    (dict(clstoken=True), "does not fit a CPVT (CPVT.__init__() got an unexpected keyword argument 'clstoken')"),
    (dict(cls_token='false'), "(cls_token is 'false', but must be False or True)"),
    ('[]', 'does not fit a CPVT ('), ('{"arch": ', 'does not fit a CPVT (Expecting value')])
def test_what_config_json_has_is_read_or_refused(change: dict | str, words: str, tmp_path: Path) -> None:
    BACKBONES['CPVT']().save_pretrained(tmp_path)
    file = tmp_path / 'config.json'
    file.write_text(change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change))
    told = refusal(CPVT.from_pretrained, tmp_path)
    assert str(tmp_path) in told and words in told


def test_what_is_pushed_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder stands in for the repository; test_fetching.py asks a server for `hf://owner/name`."""
    model = CPVT(NARROW_PLAIN, cls_token=False)
    monkeypatch.setattr(HfApi, 'create_repo', lambda *_, repo_id, **__: RepoUrl(f'https://huggingface.co/{repo_id}'))
    monkeypatch.setattr(HfApi, 'upload_folder', lambda *_, folder_path, repo_id, **__: copytree(
        folder_path, tmp_path / repo_id))
    for module in ('huggingface_hub.hub_mixin', 'openmmlab_tools.hub_files'):
        monkeypatch.setattr(f'{module}.hf_hub_download', lambda repo_id, filename, **_: str(
            tmp_path / repo_id / filename))
    model.push_to_hub('me/narrow')
    assert {path.name for path in (tmp_path / 'me/narrow').iterdir()} == {
        'config.json', 'model.safetensors', 'README.md'}
    for away in ('', 'the hub does not answer'):
        monkeypatch.setattr('openmmlab_tools.hub_files.unreachable', lambda place, away=away: away)
        assert_same(CPVT.from_pretrained('me/narrow'), model)
