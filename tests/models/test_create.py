from collections.abc import Callable

import pytest
import torch

import cpvt_mm
from cpvt_mm import CPVT, PyramidCPVT, create_backbone, list_backbones
from cpvt_mm.errors import UserError
from cpvt_mm.weights.formats import TABLE
from cpvt_mm.weights.released import RELEASED


@pytest.fixture
def weights(fake_released: Callable[[str], dict]) -> dict[str, torch.Tensor]:
    return fake_released('cpvt_mm://deit-tiny')


def test_every_name_builds_its_backbone() -> None:
    for name in list_backbones():
        with torch.device('meta'):
            model = create_backbone(name, drop_path_rate=.1)
        assert type(model) is (PyramidCPVT if name.startswith('pyramid') else CPVT)
    assert list_backbones(pretrained=True) == [name for name in list_backbones() if name in RELEASED]
    assert set(list_backbones(pretrained=True)) == set(RELEASED)
    assert {'list_backbones', 'create_backbone'} <= set(cpvt_mm.__all__)


@pytest.mark.parametrize('name', RELEASED)
def test_released_weights_are_for_the_backbone_of_their_name(name: str) -> None:
    with torch.device('meta'):
        model, other = create_backbone(name), getattr(cpvt_mm, RELEASED[name].backbone)(RELEASED[name].arch)
    assert type(model) is type(other)
    assert model.out_channels == other.out_channels and model.num_blocks == other.num_blocks


def test_pretrained_fills_the_backbone(weights: dict) -> None:
    model = create_backbone('deit-tiny', pretrained=True)
    assert model.state_dict().keys() == weights.keys()
    for name, tensor in model.state_dict().items():
        # A token has the sum of itself and its row of the table, which is 0 here.
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)


def test_another_position_encoding_stays_random_with_a_warning(weights: dict, log: list) -> None:
    model = create_backbone('deit-tiny', pretrained=True, position_encoding=dict(type='PEG'))
    assert TABLE not in model.state_dict()
    assert torch.equal(model.state_dict()['blocks.0.attn.q.weight'], weights['blocks.0.attn.q.weight'])
    assert any('lacks, as allow_missing allows: position_encoding.0' in text for _, text in log)


@pytest.mark.parametrize('norm_eps', [None, 1e-4])
def test_norm_eps_follows_the_weights_if_it_is_not_given(norm_eps: float | None, monkeypatch: pytest.MonkeyPatch
                                                         ) -> None:
    name = 'pyramid-cpvt-small'
    monkeypatch.setitem(RELEASED, name, RELEASED[name]._replace(norm_eps=1e-3))
    monkeypatch.setattr(PyramidCPVT, 'init_weights', lambda self: None)
    with torch.device('meta'):
        model = create_backbone(name, pretrained=True, **({} if norm_eps is None else dict(norm_eps=norm_eps)))
    assert model.norm_eps == (norm_eps or 1e-3)
    assert model.init_cfg == dict(type='Pretrained', checkpoint=f'cpvt_mm://{name}')


@pytest.mark.parametrize(('args', 'error', 'words'), [
    (dict(name='pyramid-cpvt-smal'), UserError, "'pyramid-cpvt-smal' is not a backbone: did you mean pyramid-cpvt-sm"),
    (dict(name='cpvt-tiny', pretrained=True), UserError, "create_backbone.'deit-tiny', pretrained=True. is "),
    (dict(name='pyramid-cpvt-tiny', pretrained=True), UserError, 'no released weights of .*: set pretrained=False'),
    (dict(name='deit-tiny', pretrained='a.pth'), TypeError, "pretrained is 'a.pth', but must be .* init_cfg"),
    (dict(name='deit-tiny', drop_pathrate=.1), TypeError, "unexpected keyword argument 'drop_pathrate'"),
    (dict(name='deit-tiny', arch='small'), TypeError, "multiple values for keyword argument 'arch'"),
    (dict(name='deit-tiny', pretrained=True, init_cfg=None), TypeError, "multiple values for keyword argument 'init"),
])
def test_mistakes_are_told_in_a_sentence(args: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        create_backbone(**args)
