"""Attention maps: their weights and queries, the tool, and what the demo shows of a trained model."""
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.loading import load_backbone
from lab.attention import average, collect, name_blocks
from lab.equivariance import draw_weights
from lab.shown_model import ShownModel
from openmmlab_runs.engine import load_config
from openmmlab_runs.images import read_image
from openmmlab_runs.loading import to_input
from openmmlab_runs.predicting import build_inferencer, paint, predict
from tests.all_encodings import ENCODINGS
from tests.conftest import NARROW, ROOT, UPERNET, Models, refusal
from tests.pictures import is_drawn
from tests.tools.conftest import Run

TOOL = 'analysis_tools/attention_maps.py'
UPERNET_OF_CPVT = ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py'
PLAIN = dict(embed_dims=24, depth=3, num_heads=2)
BACKBONES = {'plain': lambda encoding: CPVT(PLAIN, position_encoding=encoding),
             'pyramid': lambda encoding: PyramidCPVT(NARROW, position_encoding=encoding)}
# One for each point at which an encoding acts: after a block, before the first, queries and keys, logits, their tokens.
HOOKS = ('none', 'peg', 'learnable-2d', 'rotary', 'relative', 'look-here', 'peg-qk')


def draw() -> Tensor:
    """An image whose sides fill neither patches nor the cells of reduced keys."""
    return torch.randn(1, 3, 70, 50)


@pytest.mark.parametrize('encoding', HOOKS)
@pytest.mark.parametrize('backbone', BACKBONES)
@torch.no_grad()
@pytest.mark.usefixtures('float64')
def test_weights_are_those_that_the_block_attended_with(backbone: str, encoding: str) -> None:
    model = BACKBONES[backbone](ENCODINGS[encoding]).eval()
    draw_weights(model, seed=0)
    calls = {}
    for name, (block, _) in name_blocks(model).items():
        block.attn.register_forward_hook(lambda attn, args, out, name=name: calls.update({name: (attn, args, out)}))
    image = draw()
    found, means = (run(model, images, list(name_blocks(model))) for run, images in (
        (collect, image), (average, [image, image])))
    for name, (attn, args, out) in calls.items():
        weights = found[name].weights
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
        attended = (weights @ attn.project(*args).v).transpose(1, 2).reshape(out.shape)
        torch.testing.assert_close(attn.proj(attended), out)
        torch.testing.assert_close(means[name], found[name].of_all())


@pytest.mark.parametrize('extra', [dict(cls_token=False), dict(dist_token=True)])
def test_a_pixel_asks_for_its_own_cell(extra: dict[str, bool]) -> None:
    model = CPVT(dict(PLAIN, num_heads=1), position_encoding=None, **extra).eval()
    # Queries and keys are the normed tokens, times a factor: each token attends to itself.
    for weight in (model.blocks[0].attn.q.weight, model.blocks[0].attn.kv.weight[:24]):
        weight.data.copy_(10 * torch.eye(24))
    found = collect(model, draw(), ['0'])['0']
    for x, y in [(0, 0), (15, 16), (49, 0), (0, 69), (32, 47), (49, 69)]:
        keys = found.of_query((x, y))[0]
        assert keys.shape == (5, 4) and keys.max() > 0.99
        assert (keys == keys.max()).nonzero().tolist() == [[y // 16, x // 16]]


def test_figures_for_each_query_with_heads_and_of_a_folder(run_tool: Run, image: Path, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/maps'
    words, one = ('--size', 64, 96, '--out-dir', out), ('--image', image, '--query', 3, 5)
    assert run_tool(TOOL, UPERNET, *one, '--query', 95, 63, '--blocks', '0.1', '3.1', *words) == ''
    files = [out / f'{image.stem}_3_5.png', out / f'{image.stem}_95_63.png']
    assert capsys.readouterr().out.splitlines() == [
        'The weights are random: no --checkpoint is given.', *map(str, files)]
    assert all(map(is_drawn, files))
    width, _ = Image.open(files[0]).size
    assert run_tool(TOOL, UPERNET, *one, '--blocks', '1.1', '3.0', '--heads', *words) == ''
    assert Image.open(files[0]).size[0] == width / 2 * 7  # the mean and six heads beside each other
    option = 'model.backbone.cls_token=True'
    assert run_tool(TOOL, UPERNET_OF_CPVT, '--image', image, '--query', 'cls', *words, '--cfg-options', option) == ''
    assert run_tool(TOOL, UPERNET_OF_CPVT, '--average', image.parent, *words) == ''
    assert sorted(out.iterdir()) == sorted([*files, out / f'{image.stem}_cls.png',
                                            out / f'{image.parent.name}_average.png'])


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_a_shown_model_paints_as_in_tests_and_at_other_sizes(scope: str, image: Path, trained: Models) -> None:
    model = ShownModel(trained[scope].checkpoint)
    assert (model.side, model.block, model.is_detector) == (160, '2.1', scope == 'mmdet')
    at_home = model.paint(image, model.side, score_thr=0)
    inferencer = build_inferencer(load_config(trained[scope].config), trained[scope].checkpoint)
    np.random.seed(0)  # of the colours
    assert np.array_equal(at_home, paint(inferencer, image, score_thr=0)[0])
    small = model.paint(image, 64, score_thr=0)
    assert small.shape == at_home.shape and not np.array_equal(small, at_home)


def test_a_shown_model_draws_the_attention_of_a_pixel_of_the_file(image: Path, trained: Models) -> None:
    model = ShownModel(trained['mmseg'].checkpoint)
    picture, sentence = model.draw_attention(image, 160, '1.1', (150, 99))
    assert picture.shape == (256, 512, 3) and picture.dtype == np.uint8
    cfg = load_config(trained['mmseg'].config)
    seen = to_input(read_image(image, (80, 160)), cfg)
    weights = collect(load_backbone(cfg, trained['mmseg'].checkpoint), seen, ['1.1'])['1.1'].of_query((120, 79))
    assert sentence == ('The model sees 160 x 80 pixels (width x height). In block 1.1, the query at x=120, y=79 gives '
                        f'{weights.mean(dim=0).max():.1%} of its attention to the brightest cell.')


def test_a_shown_model_is_stopped_that_takes_too_long(image: Path, trained: Models) -> None:
    model = ShownModel(trained['mmdet'].checkpoint, seconds=0)
    for call, options in ((model.paint, (0.3,)), (model.draw_attention, (model.block, (0, 0)))):
        assert refusal(call, image, 64, *options) == (
            'the model takes over 0 seconds and is stopped: choose a smaller test size.')
    # Only there: other models of the process compute on.
    assert predict(image, *trained['mmdet'], device='cpu')
