"""Checkpoints fit a model or are refused; what nothing would read may be left over."""
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openmmlab_tools.checkpoints.fitting import check_fits, check_load_from, load_weights
from openmmlab_tools.checkpoints.reading import Checkpoint, open_checkpoint
from tests.helpers import refusal


def save(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_weights_are_loaded_whole_under_any_key_but_not_those_of_another_model(tmp_path: Path) -> None:
    weights = nn.Linear(2, 3).state_dict()
    for content in (weights, dict(state_dict=weights, meta={}), dict(model=weights, epoch=3),
                    {f'module.{name}': value for name, value in weights.items()}):
        model = nn.Linear(2, 3)
        load_weights(model, path := save(tmp_path / 'a.pth', content))
        if 'model' not in content:  # which mmengine would not load
            check_fits(model, open_checkpoint(path))
        torch.testing.assert_close(dict(model.state_dict()), dict(weights), rtol=0, atol=0)
    before = model.weight.clone()
    assert 'a.pth does not fit the Linear it is for, with 2 tensors: 1 missing (bias)' in refusal(
        load_weights, model, save(tmp_path / 'a.pth', dict(weight=torch.zeros(3, 2))))
    assert torch.equal(model.weight, before)


class Decoder(nn.Module):
    """A model of blocks, with a norm and branches that it may have under two names."""

    def __init__(self, blocks: int = 2, is_doubled: bool = False, is_normed: bool = False, has_bias: bool = True
                 ) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        self.decoder = nn.Module()
        self.decoder.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(blocks))
        self.decoder.last = nn.Linear(4, 4, bias=has_bias)
        self.head = nn.Module()
        self.head.branches = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(2))
        if is_doubled:
            self.decoder.branches = self.head.branches
        if is_normed:
            self.decoder.norm = nn.LayerNorm(4)


def weights_of(changes: dict[str, Tensor] = {}, **options: object) -> dict[str, Tensor]:
    """Copies, as of weights that were moved from a GPU: nothing tells which of them were one tensor."""
    return {**{name: tensor.clone() for name, tensor in Decoder(**options).state_dict().items()}, **changes}


def test_copies_of_what_the_model_has_and_counters_may_be_left_over_and_are_told(log: list, tmp_path: Path) -> None:
    path = save(tmp_path / 'a.pth', dict(state_dict=weights_of(is_doubled=True)))
    model = Decoder()
    for check in (lambda: check_fits(model, open_checkpoint(path)), lambda: load_weights(model, path)):
        log.clear()
        check()
        (level, told), = log
        assert level == 'WARNING'
        assert 'are copies of other tensors, or counters: 8 left over (decoder.branches.0.0.weight, ' in told
    assert torch.equal(model.head.branches[1][0].weight, torch.load(path)['state_dict']['decoder.branches.1.0.weight'])
    log.clear()
    check_fits(Decoder(), Checkpoint('a.pth', weights_of({'head.norm.num_batches_tracked': torch.tensor(3)})))
    assert 'counters: 1 left over (head.norm.num_batches_tracked)' in log[0][1]


def without(name: str) -> dict[str, Tensor]:
    return {other: tensor for other, tensor in weights_of().items() if other != name}


@pytest.mark.parametrize(('weights', 'told'), [
    (weights_of(), None), (without('stem.1.num_batches_tracked'), None),
    (without('decoder.last.bias'), '1 missing (decoder.last.bias)'),
    (weights_of(dict(a=torch.ones(1))), '1 left over (a)'),
    (weights_of({'decoder.last.bias': torch.ones(7)}), '1 of another shape (decoder.last.bias (7,) instead of (4,))')])
def test_what_a_runner_does_not_load_is_shown(weights: dict[str, Tensor], told: str | None) -> None:
    assert check_load_from(Decoder(), Checkpoint('a.pth', weights)) == ('' if told is None else (
        f'load_from is a.pth, which fills {20 if "left" in told else 19} of 20 tensors in the model. Not loaded are '
        f'{told}. This is normal for heads with other classes.'))


@pytest.mark.parametrize(('content', 'words'), [
    (dict(a=torch.ones(1)), 'load_from is a.pth, which has none of the 20 tensors of the model'),
    (dict(model=weights_of()), 'load_from is a.pth, which has none of the 20 tensors of the model'),
    ({'0.weight': torch.ones(3, 2), '0.bias': torch.ones(3), 'backbone.weight': torch.ones(4)},
     'load_from (a.pth) does not fit the backbone of the model: 1 missing (backbone.bias); use a checkpoint of such')])
def test_load_from_without_tensors_that_mmengine_loads_or_a_whole_backbone_is_refused(content: dict, words: str
                                                                                    ) -> None:
    model = nn.ModuleDict({'0': nn.Linear(2, 3), 'backbone': nn.BatchNorm1d(4, track_running_stats=False)})
    assert words in refusal(check_load_from, model if 'backbone.weight' in content else Decoder(),
                            Checkpoint('a.pth', content))


EQUAL, BLOCK = torch.rand(4), dict(weight=torch.rand(4, 4), bias=torch.rand(4))
TIED = {f'decoder.blocks.{i}.{name}': tensor for i in (1, 2) for name, tensor in BLOCK.items()}


@pytest.mark.parametrize(('weights', 'options', 'words'), [
    (weights_of({'a': EQUAL, 'decoder.last.weight': torch.ones(4, 3)}, has_bias=False), {},
     '1 missing (decoder.last.bias); 1 left over (a); 1 of another shape (decoder.last.weight (4, 3) instead of (4, 4)'
     ')'),
    (weights_of({'stem.0.weight': torch.ones(4, 3, 1, 1).int()}), {}, '1 of whole numbers (stem.0.weight)'),
    # What mmengine would not load.
    (dict(model=weights_of()), {}, '21 missing ('),
    (dict(state_dict=None), {}, 'has a NoneType in place of its state dict'),
    ({0: EQUAL}, {}, 'has keys that are no names in place of its state dict'),
    # One more block, also of the same weights as another; a norm that is like all others; copies, but for one tensor.
    (weights_of(blocks=3), {}, '2 left over (decoder.blocks.2.weight, decoder.blocks.2.bias)'),
    (weights_of(TIED), {}, '2 left over (decoder.blocks.2.weight, decoder.blocks.2.bias)'),
    (weights_of(is_normed=True), {}, '2 left over (decoder.norm.weight, decoder.norm.bias)'),
    (weights_of({'decoder.branches.1.0.bias': torch.ones(4)}, is_doubled=True), {},
     '8 left over (decoder.branches.0.0.weight, decoder.branches.0.0.bias, '),
    (weights_of({**dict.fromkeys(('decoder.last.bias', 'decoder.extra.bias'), EQUAL),
                 'decoder.extra.weight': torch.rand(4, 4)}), {}, '2 left over (decoder.extra.bias, decoder.extra.'),
    # More of a module that is there, also if it equals another.
    (weights_of({'decoder.last.gain': torch.rand(4)}), {}, '1 left over (decoder.last.gain)'),
    (weights_of({'decoder.last.bias': EQUAL, 'decoder.blocks.0.bias': EQUAL}), dict(has_bias=False),
     '1 left over (decoder.last.bias)'),
    (weights_of({'decoder.extra.weight': EQUAL[:1].expand(1 << 45)}), {}, '1 left over (decoder.extra.weight)')])
def test_what_computes_otherwise_is_refused(weights: dict, options: dict, words: str) -> None:
    assert words in refusal(check_fits, Decoder(**options), Checkpoint('a.pth', weights))
