"""Checkpoints fit a model or are refused; what nothing would read may be left over."""
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from openmmlab_runs.checkpoints.fitting import check_fits, check_load_from, load_weights
from openmmlab_runs.checkpoints.reading import Checkpoint, open_checkpoint
from openmmlab_runs.errors import UserError
from tests.conftest import refusal


def save(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_what_does_not_fit_is_counted_and_named(tmp_path: Path) -> None:
    path = save(tmp_path / 'other.pth', nn.Sequential(nn.Linear(2, 4), nn.Identity(), nn.Linear(2, 3)).state_dict())
    assert ('2 missing (1.weight, 1.bias); 2 left over (2.weight, 2.bias); 2 of another shape (0.weight (4, 2) '
            'instead of (3, 2), 0.bias (4,) instead of (3,))') in (
        refusal(check_fits, nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), open_checkpoint(path)))
    # What mmengine would not load does not fit, either.
    for content, words in ((dict(model=nn.Linear(2, 3).state_dict()), '2 missing'),
                           (dict(state_dict=None), 'has a NoneType for its state dict'),
                           ({0: torch.ones(1)}, 'has keys that are no names for its state dict')):
        assert words in refusal(check_fits, nn.Linear(2, 3), Checkpoint(str(path), content))


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
    path = save(tmp_path / 'a.pth', dict(weight=torch.zeros(3, 2)))
    with pytest.raises(UserError, match=r'a\.pth does not fit the Linear it is for.* 1 missing \(bias\)'):
        load_weights(model, path)
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


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns copies, as of weights that were moved from a GPU: nothing tells which of them were one tensor."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_copies_of_what_the_model_has_and_counters_may_be_left_over_and_are_told(log: list, tmp_path: Path) -> None:
    path = save(tmp_path / 'a.pth', dict(state_dict=weights_of(Decoder(is_doubled=True))))
    model = Decoder()
    for check in (lambda: check_fits(model, open_checkpoint(path)), lambda: load_weights(model, path)):
        log.clear()
        check()
        (level, told), = log
        assert level == 'WARNING'
        assert 'are copies of others or counters: 8 left over (decoder.branches.0.0.weight, ' in told
    assert torch.equal(model.head.branches[1][0].weight, torch.load(path)['state_dict']['decoder.branches.1.0.weight'])
    log.clear()
    weights = {**weights_of(Decoder()), 'head.norm.num_batches_tracked': torch.tensor(3)}
    check_fits(Decoder(), Checkpoint('a.pth', weights))
    assert 'counters: 1 left over (head.norm.num_batches_tracked)' in log[0][1]


@pytest.mark.parametrize(('change', 'told'), [
    (lambda weights: None, None),
    (lambda weights: weights.pop('decoder.last.bias'), '1 missing (decoder.last.bias)'),
    (lambda weights: weights.pop('stem.1.num_batches_tracked'), None),
    (lambda weights: weights.update(a=torch.ones(1)), '1 left over (a)'),
    (lambda weights: weights.update({'decoder.last.bias': torch.ones(7)}),
     '1 of another shape (decoder.last.bias (7,) instead of (4,))')])
def test_what_a_runner_does_not_load_is_shown(change: Callable, told: str | None) -> None:
    weights = weights_of(Decoder())
    change(weights)
    assert check_load_from(Decoder(), Checkpoint('a.pth', weights)) == ('' if told is None else (
        f'load_from is a.pth, which fills {20 if "left" in told else 19} of the 20 tensors of the model; not loaded '
        f'are {told}, as is normal for heads of other classes.'))


@pytest.mark.parametrize(('content', 'words'), [
    (dict(a=torch.ones(1)), 'load_from is a.pth, which has none of the 20 tensors of the model'),
    (dict(model=weights_of(Decoder())), 'load_from is a.pth, which has none of the 20 tensors of the model'),
    ({'0.weight': torch.ones(3, 2), '0.bias': torch.ones(3), 'backbone.weight': torch.ones(4)},
     'load_from (a.pth) does not fit the backbone of the model: 1 missing (backbone.bias); use a checkpoint of such')])
def test_load_from_without_tensors_that_mmengine_loads_or_a_whole_backbone_is_refused(content: dict, words: str
                                                                                    ) -> None:
    model = nn.ModuleDict({'0': nn.Linear(2, 3), 'backbone': nn.BatchNorm1d(4, track_running_stats=False)})
    assert words in refusal(check_load_from, model if 'backbone.weight' in content else Decoder(),
                            Checkpoint('a.pth', content))


def tied() -> dict[str, Tensor]:
    model = Decoder(3)
    model.decoder.blocks[2] = model.decoder.blocks[1]
    return weights_of(model)


def other_bias() -> dict[str, Tensor]:
    weights = weights_of(Decoder())
    return {**weights, 'decoder.extra.bias': weights['decoder.last.bias'], 'decoder.extra.weight': torch.rand(4, 4)}


@pytest.mark.parametrize(('weights', 'words'), [
    (lambda: weights_of(Decoder(3)), '2 left over (decoder.blocks.2.weight, decoder.blocks.2.bias)'),
    (tied, '2 left over (decoder.blocks.2.weight, decoder.blocks.2.bias)'),  # one more block, of the same weights
    (lambda: weights_of(Decoder(is_normed=True)), '2 left over (decoder.norm.weight, decoder.norm.bias)'),  # as others
    (other_bias, '2 left over (decoder.extra.bias, decoder.extra.weight)'),
    (lambda: {**weights_of(Decoder()), 'decoder.last.gain': torch.rand(4)}, '1 left over (decoder.last.gain)'),
    (lambda: {**weights_of(Decoder()), 'decoder.extra.weight': torch.rand(1).expand(1 << 45)},  # in no memory
     '1 left over (decoder.extra.weight)'),
    (lambda: {**weights_of(Decoder(is_doubled=True)), 'decoder.branches.1.0.bias': torch.ones(4)},
     '8 left over (decoder.branches.0.0.weight, decoder.branches.0.0.bias, '),
    (lambda: {**weights_of(Decoder()), 'stem.0.weight': torch.ones(4, 3, 1, 1).int()}, '1 of whole numbers (stem.0.w')])
def test_what_computes_otherwise_is_refused(weights: Callable, words: str) -> None:
    assert words in refusal(check_fits, Decoder(), Checkpoint('a.pth', weights()))


def test_a_parameter_that_equals_another_is_no_copy_if_its_module_is_there() -> None:
    weights = weights_of(Decoder())
    weights['decoder.last.bias'] = weights['decoder.blocks.0.bias']
    assert '1 left over (decoder.last.bias)' in refusal(
        check_fits, Decoder(has_bias=False), Checkpoint('a.pth', weights))
