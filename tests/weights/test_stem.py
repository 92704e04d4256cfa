from pathlib import Path

import pytest
import torch

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.errors import UserError
from cpvt_mm.weights.stem import adapt_channels
from tests.conftest import GOLDEN, NARROW, pretrained

OFFICIAL = GOLDEN / 'official.pth'


@pytest.mark.parametrize('channels', [1, 3, 6, 9])
def test_equal_channels_give_what_they_give_as_rgb(channels: int) -> None:
    weight, grey = torch.randn(5, 3, 4, 4), torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(torch.conv2d(grey.expand(-1, channels, -1, -1), adapt_channels(weight, channels)),
                               torch.conv2d(grey.expand(-1, 3, -1, -1), weight), rtol=1e-5, atol=1e-5)


def test_further_channels_repeat_the_three_in_turn() -> None:
    weight = torch.arange(1., 4).view(1, 3, 1, 1)
    assert adapt_channels(weight, 2).flatten().tolist() == [1.5, 3]
    assert adapt_channels(weight, 4).flatten().tolist() == [.75, 1.5, 2.25, .75]


@pytest.mark.parametrize(('cls', 'path', 'name'), [
    (PyramidCPVT, OFFICIAL, 'stages.0.patch_embed.proj.weight'),
    (CPVT, GOLDEN / 'deit_timm.pth', 'patch_embed.proj.weight'),
])
@pytest.mark.parametrize('channels', [1, 4])
def test_the_stem_is_adapted_and_the_log_says_so(channels: int, cls: type, path: Path, name: str, log: list) -> None:
    kwargs = {} if cls is PyramidCPVT else dict(position_encoding=dict(type='LearnablePE'), img_size=64)
    rgb, model = pretrained(path, cls, **kwargs), pretrained(path, cls, in_channels=channels, **kwargs)
    expected = {**rgb.state_dict(), name: adapt_channels(rgb.state_dict()[name], channels)}
    assert all(torch.equal(tensor, expected[key]) for key, tensor in model.state_dict().items())
    [message] = [text for _, text in log if 'adapted' in text]
    assert "100.0 % of the backbone's" in message
    assert f'; {name} adapted from 3 input channels to {channels}; ' in message
    assert not [record for record in log if record[0] == 'WARNING']


def test_weights_of_other_channels_fit_only_these(tmp_path: Path) -> None:
    four = PyramidCPVT(NARROW, in_channels=4)
    torch.save(four.state_dict(), tmp_path / 'a.pth')
    same = pretrained(tmp_path / 'a.pth', in_channels=4)
    assert all(torch.equal(tensor, four.state_dict()[name]) for name, tensor in same.state_dict().items())
    with pytest.raises(UserError, match=r'stages\.0\.patch_embed\.proj\.weight \(16, 4, 4, 4\) instead of \(16, 3, 4'):
        pretrained(tmp_path / 'a.pth')
