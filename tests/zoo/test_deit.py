"""With a learnable table, CPVT is the ViT of timm and mmpretrain; and what becomes of the table in other models."""
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cpvt_mm import CPVT
from cpvt_mm.tokens.coordinates import resample
from cpvt_mm.zoo import deit
from openmmlab_runs.errors import UserError
from openmmlab_runs.libraries import require
from tests.conftest import GOLDEN, NARROW_PLAIN, pretrained
from tests.zoo.test_renaming import TABLE, shaken

DEIT = GOLDEN / 'deit_timm.pth'


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return torch.load(DEIT, weights_only=True)


@torch.no_grad()
@pytest.mark.parametrize('out_type', ['raw', 'cls_token'])
def test_a_file_of_timm_gives_its_outputs(out_type: str, weights: dict[str, Tensor]) -> None:
    arrays = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN / 'deit_timm_io.npz').items()}
    output, = pretrained(DEIT, CPVT, img_size=64, position_encoding=TABLE, out_type=out_type)(arrays['input'])
    if out_type == 'raw':
        torch.testing.assert_close(output, arrays['tokens'], atol=1e-4, rtol=0)
        output = output[:, 0]
    logits = output @ weights['head.weight'].T + weights['head.bias']
    torch.testing.assert_close(logits, arrays['logits'], atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize('distilled', [False, True])
def test_is_the_vit_of_mmpretrain(distilled: bool, tmp_path: Path) -> None:
    require('mmpretrain')
    from mmpretrain.models.backbones import DistilledVisionTransformer, VisionTransformer
    arch = dict(embed_dims=48, num_layers=4, num_heads=3, feedforward_channels=192)
    cls = DistilledVisionTransformer if distilled else VisionTransformer
    theirs = shaken(cls(arch=arch, img_size=64, patch_size=16, out_type='cls_token'))
    options = dict(img_size=64, position_encoding=TABLE, out_type='cls_token', dist_token=distilled)
    torch.save(theirs.state_dict(), tmp_path / 'a.pth')
    model, image = pretrained(tmp_path / 'a.pth', CPVT, **options), torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model(image)[0], theirs(image)[0], atol=1e-4, rtol=0)
    ours = shaken(CPVT(NARROW_PLAIN, **options))
    theirs.load_state_dict(deit.MMPRETRAIN.to_theirs(ours.state_dict()))
    torch.testing.assert_close(ours(image)[0], theirs(image)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize('encodings', [[TABLE], [dict(type='PEG'), TABLE]])
def test_a_table_is_resampled_to_the_grid_of_the_model(encodings: list, weights: dict[str, Tensor], log: list) -> None:
    model = pretrained(DEIT, CPVT, img_size=(96, 128), position_encoding=encodings,
                       init_cfg=dict(allow_missing='convs'))
    last = len(encodings) - 1
    table = weights['pos_embed'][0, 1:].view(4, 4, 48)
    assert torch.equal(model.position_encoding[last].table, resample(table, (6, 8)))
    message, = [message for _, message in log if message.startswith('checkpoint') and 'format timm' in message]
    assert f'position_encoding.{last}.table adapted from (4, 4, 48) to (6, 8, 48)' in message
    assert message.endswith('left over: head.weight, head.bias')


def test_a_table_becomes_a_sequence_or_is_dropped_with_a_note(weights: dict[str, Tensor], log: list) -> None:
    model = pretrained(DEIT, CPVT, img_size=64, position_encoding=dict(type='LearnablePE', ndim=1))
    assert torch.equal(model.position_encoding[0].table, weights['pos_embed'][0, 1:])
    log.clear()
    pretrained(DEIT, CPVT, position_encoding=None)
    message, = [message for _, message in log if 'format timm' in message]
    assert '100.0 % of' in message and 'its position table is dropped, the backbone has none' in message
    assert message.endswith('left over: pos_embed, head.weight, head.bias')


def test_a_model_with_a_peg_is_not_filled_by_deit(log: list) -> None:
    with pytest.raises(UserError, match=r'the CPVT, .* 2 missing \(position_encoding\.0\.convs\.0\.0\.weight'):
        pretrained(DEIT, CPVT)
    pretrained(DEIT, CPVT, init_cfg=dict(allow_missing='position_encoding'))
    assert [message for level, message in log if level == 'WARNING'] == [
        f'checkpoint {DEIT} lacks, as allow_missing allows: position_encoding.0.convs.0.0.weight, '
        'position_encoding.0.convs.0.0.bias']
