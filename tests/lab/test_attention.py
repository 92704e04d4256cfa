from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.models.grid import Grid
from lab import attention
from lab.attention import Overlay, collect, name_blocks, overlay_figure
from lab.equivariance import draw_weights
from openmmlab_runs.engine import load_config
from openmmlab_runs.files import write_figure
from tests.all_encodings import ENCODINGS
from tests.conftest import NARROW, ROOT, UPERNET, build_model
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
    found = collect(model, draw(), names := list(name_blocks(model))[::-1])
    assert list(found) == names
    for name, (attn, args, out) in calls.items():
        weights = found[name].weights
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
        values = attn.project(*args).v
        attended = (weights @ values).transpose(1, 2).reshape(out.shape)
        torch.testing.assert_close(attn.proj(attended), out)


def test_grids_of_the_pyramid_cover_the_image_at_odd_sizes(backbone: PyramidCPVT) -> None:
    found = collect(backbone, draw(), ['0.1', '1.0', '3.1'])
    assert [(m.grid, m.key_grid, m.stride) for m in found.values()] == [
        (Grid(18, 13), Grid(3, 2, 8, 8), 4), (Grid(9, 7), Grid(3, 2, 4, 4), 8), (Grid(3, 2), Grid(3, 2), 32)]
    assert {m.key_cell for m in found.values()} == {(32, 32)}
    assert [tuple(m.weights.shape) for m in found.values()] == [(1, 234, 6), (2, 63, 6), (8, 6, 6)]
    assert [tuple(m.of_query((49, 69)).shape) for m in found.values()] == [(1, 3, 2), (2, 3, 2), (8, 3, 2)]


@pytest.mark.parametrize('extra', [dict(cls_token=False), dict(), dict(dist_token=True)])
def test_a_pixel_asks_for_its_own_cell(extra: dict[str, bool]) -> None:
    model = CPVT(dict(PLAIN, num_heads=1), position_encoding=None, **extra).eval()
    # Queries and keys are the normed tokens, times a factor: each token attends to itself.
    for weight in (model.blocks[0].attn.q.weight, model.blocks[0].attn.kv.weight[:24]):
        weight.data.copy_(10 * torch.eye(24))
    found = collect(model, draw(), ['0'])['0']
    for x, y in [(0, 0), (15, 16), (49, 0), (0, 69), (32, 47), (49, 69)]:
        keys = found.of_query((x, y))[0]
        assert keys.shape == (5, 4)
        assert (keys == keys.max()).nonzero().tolist() == [[y // 16, x // 16]]
        assert keys.max() > 0.99


def test_class_tokens_are_no_keys_and_can_be_asked() -> None:
    model = CPVT(PLAIN, dist_token=True).eval()
    draw_weights(model, seed=0)
    found = collect(model, draw(), ['1'])['1']
    assert found.weights.shape == (2, 22, 22)
    torch.testing.assert_close(found.of_query('cls'), found.weights[:, 0, 2:].unflatten(1, (5, 4)))
    assert found.of_query('cls').sum() < 1.99
    torch.testing.assert_close(found.of_all(), found.weights[:, 2:, 2:].mean(dim=0))


def test_averages_over_images_and_heads(backbone: PyramidCPVT) -> None:
    images, blocks = [draw(), draw(), draw()], ['1.1', '3.1']
    found = attention.average(backbone, iter(images), blocks)
    assert list(found) == blocks
    for name, mean in found.items():
        maps = [collect(backbone, one, [name])[name].weights.mean(dim=0) for one in images]
        torch.testing.assert_close(mean, torch.stack(maps).mean(dim=0))


def test_nothing_stays_on_the_backbone(backbone: PyramidCPVT) -> None:
    collect(backbone, draw(), ['0.0'])
    assert not any(module._forward_pre_hooks for module in backbone.modules())
    with pytest.raises(ValueError, match=r'images have shape \(1, 4, 32, 32\)'):
        collect(backbone, torch.randn(1, 4, 32, 32), ['0.0'])
    assert not any(module._forward_pre_hooks for module in backbone.modules())


def test_default_blocks_are_the_second_of_each_stage(backbone: PyramidCPVT) -> None:
    assert attention.default_blocks(backbone) == ['0.1', '1.1', '2.1', '3.1']
    assert attention.default_blocks(PyramidCPVT(dict(NARROW, depths=(1, 12, 1, 1)))) == ['0.0', '1.1', '2.0', '3.0']
    assert attention.default_blocks(CPVT(dict(PLAIN, depth=12))) == ['1']
    assert attention.default_blocks(CPVT(dict(PLAIN, depth=1))) == ['0']


def test_overlays_lie_on_the_image_cell_by_cell() -> None:
    image = np.zeros((70, 50, 3), np.uint8)
    rows = [[Overlay('block 0', torch.rand(3, 2), (32, 32))], [Overlay('block 1', torch.rand(18, 13), (4, 4))] * 2]
    figure = overlay_figure(image, rows, mark=(10, 20), title='a title')
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == ['block 0', 'block 1', 'block 1']
    for axes, extent in zip(drawn, [(0, 64, 96, 0), (0, 52, 72, 0), (0, 52, 72, 0)], strict=True):
        assert tuple(axes.images[1].get_extent()) == extent
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 50), (70, 0))  # nothing of it beyond the image
        assert axes.lines[0].get_xydata().tolist() == [[10.5, 20.5]]
    assert not any(axes.lines for axes in overlay_figure(image, rows, mark=None, title='').axes)


def test_an_overlay_alone_has_the_shape_of_the_image() -> None:
    values = torch.zeros(2, 2)
    values[0, 1] = 1
    grey = np.full((50, 100, 3), 128, np.uint8)
    picture = attention.overlay_image(grey, Overlay('', values, (25, 50)), mark=(75, 37))
    assert picture.shape == (256, 512, 3) and picture.dtype == np.uint8
    assert (picture[64, 64] == 128).all()  # grey where nothing is attended to
    red, green, blue = picture[64, 384].tolist()
    assert red > 150 and green > 150 and blue < 100  # yellow
    assert picture[192, 386].tolist() == [0, 255, 255]  # the mark


def test_an_overlay_of_a_line_has_a_row() -> None:
    image = np.zeros((1, 1500, 3), np.uint8)
    assert attention.overlay_image(image, Overlay('', torch.ones(1, 2), (1, 750)), (0, 0)).shape == (1, 512, 3)


def test_matrices_have_queries_in_rows_and_keys_in_columns() -> None:
    maps = {f'{i}.1': torch.rand(12, 4) for i in range(5)}
    figure = attention.grid_figure(maps, 'a title')
    drawn = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in drawn] == [f'block {name}' for name in maps]
    for axes, weights in zip(drawn, maps.values(), strict=True):
        assert np.array_equal(axes.images[0].get_array(), weights)
        assert (axes.get_xlabel()[:3], axes.get_ylabel()[:5]) == ('key', 'query')


@pytest.fixture
def image(toy_shapes: Path) -> Path:
    return next((toy_shapes / 'images/validation').iterdir())


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of all figures that are written."""
    found: list[str] = []
    monkeypatch.setattr('openmmlab_runs.files.write_figure',
                        lambda path, figure: found.append(figure.get_suptitle()) or write_figure(path, figure))
    return found


def test_a_figure_for_each_query(run_tool: Run, image: Path, tmp_path: Path, titles: list[str],
                                 capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/maps'
    assert run_tool(TOOL, UPERNET, '--image', image, '--query', 3, 5, '--query', 95, 63, '--blocks', '0.1', '3.1',
                    '--size', 64, 96, '--out-dir', out) == ''
    files = [out / f'{image.stem}_3_5.png', out / f'{image.stem}_95_63.png']
    assert sorted(out.iterdir()) == sorted(files)
    told = capsys.readouterr().out.splitlines()
    assert told == ['The weights are random: no --checkpoint is given.', *map(str, files)]
    assert Image.open(files[0]).size == Image.open(files[1]).size and all(map(is_drawn, files))
    assert all('64 x 96 pixels (height x width)' in title for title in titles)
    assert 'pixel x=3, y=5' in titles[0] and 'pixel x=95, y=63' in titles[1]


def test_heads_are_drawn_beside_their_mean(run_tool: Run, image: Path, tmp_path: Path) -> None:
    sizes = []
    for heads in ([], ['--heads']):
        assert run_tool(TOOL, UPERNET, '--image', image, '--blocks', '1.1', '3.0', '--out-dir', tmp_path,
                        '--size', 64, 64, *heads) == ''
        sizes.append(Image.open(tmp_path / f'{image.stem}_32_32.png').size)  # the centre, where no query is given
    (width, height), (wide, high) = sizes
    assert wide == width / 2 * 7  # two means in a row; the mean and six heads of a block in each of two rows
    assert high > 1.5 * height


def test_asks_the_class_token_or_averages_a_folder(run_tool: Run, image: Path, tmp_path: Path, titles: list) -> None:
    words, option = (TOOL, UPERNET_OF_CPVT, '--out-dir', tmp_path, '--size', 64, 96), 'model.backbone.cls_token=True'
    assert run_tool(*words, '--image', image, '--query', 'cls', '--cfg-options', option) == ''
    assert run_tool(*words, '--average', image.parent) == ''
    assert '64 x 96 pixels (height x width)' in titles[1]
    assert {path.name for path in tmp_path.iterdir()} == {f'{image.stem}_cls.png', 'validation_average.png'}


def test_weights_of_a_checkpoint(run_tool: Run, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoint, drawn = tmp_path / 'weights.pth', tmp_path / f'{image.stem}_32_32.png'
    weights = build_model(load_config(UPERNET)).state_dict()
    torch.save(weights, checkpoint)
    arguments = (TOOL, UPERNET, '--image', image, '--checkpoint', checkpoint, '--size', 64, 64, '--out-dir', tmp_path)
    assert run_tool(*arguments) == ''
    assert 'random' not in capsys.readouterr().out
    before = drawn.read_bytes()
    assert run_tool(*arguments) == ''
    assert drawn.read_bytes() == before
    del weights['backbone.stages.0.blocks.0.attn.q.weight']
    torch.save(weights, checkpoint)
    assert '1 missing (backbone.stages.0.blocks.0.attn.q.weight)' in run_tool(*arguments)
