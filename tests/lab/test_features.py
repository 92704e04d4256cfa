"""Attention maps of backbones, features of shifted images, and differences by padding."""
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.models.create import load_backbone
from cpvt_mm.tokens.grid import Grid
from lab.attention import AttentionMap, average, collect, name_blocks
from lab.commands.translation_equivariance import measure, measure_backbone, remove_attention
from lab.features import ENCODINGS as COMPARED
from lab.features import draw_weights, smooth_noise
from lab.shown_model import ShownModel
from openmmlab_tools.checkpoints.loading import to_input
from openmmlab_tools.engine import load_config
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.predict.predicting import build_inferencer, infer, predict
from tests.all_encodings import ENCODINGS
from tests.backbones import MASK_RCNN, NARROW, UPERNET
from tests.helpers import ROOT, Models, build_model, refusal
from tests.pictures import is_drawn, random_image
from tests.tools.conftest import Run, read_rows

PLAIN = dict(embed_dims=24, depth=3, num_heads=2)
SIZE, SHIFT = 160, 32
BACKBONES = {'plain': lambda encoding: CPVT(PLAIN, img_size=SIZE, position_encoding=encoding),
             'pyramid': lambda encoding: PyramidCPVT(NARROW, img_size=SIZE, position_encoding=encoding)}
# One for each point at which an encoding acts: after a block, before the first, queries and keys, logits (and factors
# of them), the tokens of queries and keys.
HOOKS = ('none', 'peg', 'learnable-2d', 'rotary', 'relative', 'look-here', 'parabolic', 'peg-qk')
# The first two know no position at all; the others show it in attention only.
EXACT, ATTENTION_ONLY = {'none', 'PEG, k = 1'}, {'rotary', 'relative', 'PEG'}
# All encodings in the plain backbone; in the pyramid one of each kind.
CASES = [*(('plain', encoding) for encoding in COMPARED),
         *(('pyramid', encoding) for encoding in ('none', 'learnable 2-D', 'rotary', 'relative', 'PEG'))]


@pytest.mark.parametrize('encoding', HOOKS)
@pytest.mark.parametrize('backbone', BACKBONES)
@torch.no_grad()
@pytest.mark.usefixtures('float64')
def test_weights_are_those_that_the_block_attended_with(backbone: str, encoding: str) -> None:
    model = BACKBONES[backbone](ENCODINGS[encoding]).eval()
    draw_weights(model, seed=0)
    calls, blocks = {}, name_blocks(model)
    for name, (block, _) in blocks.items():
        block.attn.register_forward_hook(lambda attn, args, out, name=name: calls.update({name: (attn, args, out)}))
    image = torch.randn(1, 3, 70, 50)  # its sides fill neither patches nor the cells of reduced keys
    actual, means = collect(model, image, list(blocks)), average(model, [image, image], list(blocks))
    for name, (attn, args, out) in calls.items():
        weights = actual[name].weights
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
        attended = (weights @ attn.project(*args)[2][..., :attn.head_dims]).transpose(1, 2).reshape(out.shape)
        torch.testing.assert_close(attn.proj(attended), out)
        torch.testing.assert_close(means[name].weights, actual[name].of_all())
        assert means[name].distance == pytest.approx(actual[name].distance())


@pytest.mark.parametrize('extra', [dict(cls_token=False), dict(arch=dict(PLAIN, num_heads=1, dist_token=True))])
def test_a_pixel_asks_for_its_own_cell(extra: dict[str, Any]) -> None:
    model = CPVT(**{'arch': dict(PLAIN, num_heads=1), 'position_encoding': None, **extra}).eval()
    # Queries and keys are the normed tokens, times a factor: each token attends to itself.
    for weight in (model.blocks[0].attn.q.weight, model.blocks[0].attn.kv.weight[:24]):
        weight.data.copy_(10 * torch.eye(24))
    actual = collect(model, torch.randn(1, 3, 70, 50), ['0'])['0']
    for x, y in [(0, 0), (15, 16), (49, 0), (0, 69), (32, 47), (49, 69)]:
        keys = actual.of_query((x, y))[0]
        assert keys.shape == (5, 4) and keys.max() > 0.99
        assert (keys == keys.max()).nonzero().tolist() == [[y // 16, x // 16]]


def test_the_distance_to_the_most_attended_key_is_from_centre_to_centre() -> None:
    weights = torch.full((1, 1 + 6, 1 + 2), 0.1)  # a class token, 2 x 3 queries of 8 pixels, and 1 x 2 keys
    weights[0, 1:, 2] = 0.8
    keys = Grid(1, 2, cell_height=2, cell_width=1.5)
    right = AttentionMap(weights, Grid(2, 3), keys, stride=8)
    # The key's centre is at x = 18 and y = 8; centres of queries are at x = 4, 12, 20 and y = 4, 12.
    assert right.distance() == pytest.approx(sum(math.hypot(18 - x, 8 - y) for x in (4, 12, 20) for y in (4, 12)) / 6)


def test_figures_for_each_query_with_heads_and_of_a_folder(run_tool: Run, image: Path, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture) -> None:
    out, widths = tmp_path / 'new/maps', {}
    plain = ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py'
    for config, words, names in (
            (UPERNET, f'--image {image} --query 3 5 --query 95 63 --blocks 0.1 3.1', ('image_3_5', 'image_95_63')),
            (UPERNET, f'--image {image} --query 1 2 --blocks 1.1 3.0 --heads', ('image_1_2',)),
            (plain, f'--image {image} --query cls --cfg-options model.backbone.cls_token=True', ('image_cls',)),
            (plain, f'--average {image.parent}', (f'{image.parent.name}_average',))):
        files = [out / f'{name}.png' for name in names]
        assert run_tool('lab attention_maps', config, '--size', 64, 96, '--out-dir', out, *words.split()) == ''
        printed = capsys.readouterr().out.splitlines()
        assert printed[-len(files):] == [*map(str, files)] and all(map(is_drawn, files))
        assert any('pixels from its query' in line for line in printed) == ('--average' in words)
        assert 'The weights are random: no --checkpoint is given.' in printed
        widths |= {file.stem: Image.open(file).size[0] for file in files}
    assert widths['image_1_2'] == widths['image_3_5'] / 2 * 7  # the mean and six heads beside each other


@pytest.mark.slow
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_a_shown_model_paints_as_in_tests_and_at_other_sizes(scope: str, image: Path, trained: Models) -> None:
    model = ShownModel(trained[scope].checkpoint)
    assert (model.side, model.block, model.is_detector) == (160, '2.1', scope == 'mmdet')
    at_home, small = (model.paint(image, side, score_thr=0) for side in (model.side, 64))
    np.random.seed(0)  # of the colours
    actual, = infer(build_inferencer(load_config(trained[scope].config), trained[scope].checkpoint), image)
    assert np.array_equal(at_home, actual.plot(0))
    assert small.shape == at_home.shape and not np.array_equal(small, at_home)


def test_a_shown_model_draws_the_attention_of_a_pixel_of_the_file(image: Path, trained: Models) -> None:
    picture, sentence = ShownModel(trained['mmseg'].checkpoint).draw_attention(image, 160, '1.1', (150, 99))
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


@pytest.mark.parametrize('scale, offset', [(1, 0), (5, 100)])
def test_the_error_is_in_units_of_the_variation_between_places(scale: int, offset: int) -> None:
    # The features are the column's number, whatever the image: six moves change it by one, the two along a column do
    # not. Of the 8 x 8 cells those count that stay on the canvas.
    column = torch.arange(8.)
    changed, unchanged = 2 * 7 * (7 + 8 + 7), 2 * 7 * 8
    found = measure(lambda image: scale * column.expand(1, 2, 8, 8) + offset, torch.zeros(1, 3, 32, 32), 4, 4, margin=0)
    share = changed / (changed + unchanged)
    assert found.error == pytest.approx((share / column.var(correction=0).item())**0.5, rel=1e-5)


@pytest.mark.parametrize('backbone, encoding', CASES)
def test_attention_makes_positions_inexact_and_tables_are_so_without(backbone: str, encoding: str) -> None:
    model = BACKBONES[backbone](COMPARED[encoding]).eval()
    draw_weights(model, seed=0)
    canvas = F.pad(smooth_noise(SIZE - 2 * SHIFT, seed=0), (SHIFT,) * 4)
    error = measure_backbone(model, canvas, SHIFT, margin=2).error
    assert error <= 1e-4 if encoding in EXACT else error > 1e-2
    remove_attention(model)
    error = measure_backbone(model, canvas, SHIFT, margin=2).error
    assert error <= 1e-5 if encoding in EXACT | ATTENTION_ONLY else error > 0.1


@pytest.fixture
def few_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools compare these only, to save time."""
    for name in COMPARED.keys() - {'none', 'PEG'}:
        monkeypatch.delitem(COMPARED, name)


@pytest.mark.usefixtures('few_encodings')
def test_equivariance_of_encodings_and_of_a_checkpoint_on_a_photograph(run_tool: Run, tmp_path: Path) -> None:
    out, weights = tmp_path / 'new/figure.png', tmp_path / 'weights.pth'
    words = 'lab translation_equivariance', UPERNET, '--size', 128, '--shift', 32, '--out', out
    assert run_tool(*words, '--cfg-options', 'model.backbone.position_encoding.type=PEG',
                    'model.backbone.position_encoding.kernel_size=5') == ''
    assert [row['encoding'] for row in read_rows(out.with_suffix('.csv'))] == ['of the config', 'none', 'PEG']
    torch.save(build_model(load_config(UPERNET)).state_dict(), weights)
    random_image(tmp_path / 'image.png', 90, 130)
    assert run_tool(*words, '--checkpoint', weights, '--image', tmp_path / 'image.png') == ''
    row, = read_rows(out.with_suffix('.csv'))
    assert row['encoding'] == 'of the checkpoint' and float(row['error_without_attention']) <= 1e-5
    assert is_drawn(out) and '| of the checkpoint |' in out.with_suffix('.md').read_text()


@pytest.mark.usefixtures('few_encodings')
def test_padding_of_ours_with_each_encoding(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/padding.png'
    assert run_tool('lab padding_difference', MASK_RCNN, '--encodings', '--image', '33x60', '--neighbour',
                    '64x96', '--rounds', 1, '--out', out) == ''
    rows = read_rows(out.with_suffix('.csv'))
    exact = [row for row in rows if row['backbone'].endswith("padding='exact'")]
    assert [row['backbone'] for row in rows] == [
        f'PyramidCPVT, {name}{option}' for name in ('none', 'PEG') for option in ('', ", padding='exact'")]
    assert all(float(row['max_abs']) < 1e-4 for row in exact)
    assert all(float(row['error_3']) > 0.05 for row in rows if row not in exact)
    assert all(float(row['forward_s']) > 0 and float(row['step_s']) > 0 for row in rows)
    assert is_drawn(out) and out.with_suffix('.md').read_text() in capsys.readouterr().out
