from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from cpvt_mm.engine import load_config
from cpvt_mm.files import write_figure
from tests.conftest import ROOT, UPERNET

Run = Callable[..., str]
TOOL = 'analysis_tools/attention_maps.py'
PLAIN = ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py'


@pytest.fixture
def image(toy_shapes: Path) -> Path:
    return next((toy_shapes / 'images/validation').iterdir())


def panels(path: Path) -> tuple[int, int]:
    """Width and height, as a PNG has them."""
    with Image.open(path) as image:
        assert image.format == 'PNG'
        return image.size


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of all figures that are written."""
    found: list[str] = []
    monkeypatch.setattr('cpvt_mm.files.write_figure',
                        lambda path, figure: found.append(figure.get_suptitle()) or write_figure(path, figure))
    return found


def test_a_figure_for_each_query(run_tool: Run, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture,
                                 titles: list[str]) -> None:
    out = tmp_path / 'new/maps'
    assert run_tool(TOOL, UPERNET, '--image', image, '--query', 3, 5, '--query', 40, 30, '--blocks', '0.1', '3.1',
                    '--size', 64, 96, '--out-dir', out) == ''
    files = [out / f'{image.stem}_3_5.png', out / f'{image.stem}_40_30.png']
    assert sorted(out.iterdir()) == sorted(files)
    assert capsys.readouterr().out.splitlines() == ['The weights are random: no --checkpoint is given.',
                                                    *map(str, files)]
    assert panels(files[0]) == panels(files[1])
    assert all('64 x 96 pixels (height x width)' in title for title in titles)
    assert 'pixel x=3, y=5' in titles[0] and 'pixel x=40, y=30' in titles[1]


def test_heads_are_drawn_beside_their_mean(run_tool: Run, image: Path, tmp_path: Path) -> None:
    widths, heights = [], []
    for heads in ([], ['--heads']):
        assert run_tool(TOOL, UPERNET, '--image', image, '--blocks', '1.1', '3.0', '--out-dir', tmp_path,
                        '--size', 64, 64, *heads) == ''
        width, height = panels(tmp_path / f'{image.stem}_32_32.png')  # the centre, where no query is given
        widths.append(width)
        heights.append(height)
    assert widths[1] == widths[0] / 2 * 7  # two means in a row; the mean and six heads of a block in each of two rows
    assert heights[1] > 1.5 * heights[0]


def test_the_class_token_can_be_asked_where_there_is_one(run_tool: Run, image: Path, tmp_path: Path) -> None:
    arguments = (PLAIN, '--image', image, '--query', 'cls', '--out-dir', tmp_path, '--size', 64, 64)
    assert run_tool(TOOL, *arguments, '--cfg-options', 'model.backbone.cls_token=True') == ''
    assert [path.name for path in tmp_path.iterdir()] == [f'{image.stem}_cls.png']
    assert 'the backbone has no class token' in run_tool(TOOL, *arguments)


def test_averages_a_folder_of_images_of_any_sizes(run_tool: Run, image: Path, tmp_path: Path, titles: list[str],
                                                  ) -> None:
    assert run_tool(TOOL, PLAIN, '--average', image.parent, '--size', 64, 96, '--out-dir', tmp_path) == ''
    assert panels(tmp_path / 'validation_average.png') and '64 x 96 pixels (height x width)' in titles[0]
    assert [path.name for path in tmp_path.iterdir()] == ['validation_average.png']


def test_with_a_checkpoint_the_weights_are_not_random(run_tool: Run, image: Path, tmp_path: Path,
                                                      capsys: pytest.CaptureFixture) -> None:
    cfg, checkpoint = load_config(UPERNET), tmp_path / 'weights.pth'
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        weights = MODELS.build(cfg.model).state_dict()
    torch.save(weights, checkpoint)
    arguments = (TOOL, UPERNET, '--image', image, '--checkpoint', checkpoint, '--size', 64, 64, '--out-dir', tmp_path)
    assert run_tool(*arguments) == ''
    assert 'random' not in capsys.readouterr().out
    drawn = (tmp_path / f'{image.stem}_32_32.png').read_bytes()
    assert run_tool(*arguments) == ''
    assert (tmp_path / f'{image.stem}_32_32.png').read_bytes() == drawn
    del weights['backbone.stages.0.blocks.0.attn.q.weight']
    torch.save(weights, checkpoint)
    assert '1 missing (backbone.stages.0.blocks.0.attn.q.weight)' in run_tool(*arguments)
