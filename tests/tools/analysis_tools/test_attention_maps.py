from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope
from PIL import Image

from cpvt_mm.engine import load_config
from tests.conftest import ROOT, UPERNET

Run = Callable[..., str]
TOOL = 'analysis_tools/attention_maps.py'
PLAIN = ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py'


@pytest.fixture
def image(toy_shapes: Path) -> Path:
    return next((toy_shapes / 'images/validation').iterdir())


def panels(path: Path) -> tuple[int, int]:
    """Width and height, as a PNG has them."""
    image = Image.open(path)
    assert image.format == 'PNG'
    return image.size


def test_a_figure_for_each_query(run_tool: Run, image: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/maps'
    assert run_tool(TOOL, UPERNET, '--image', image, '--query', 3, 5, '--query', 40, 30, '--blocks', '0.1', '3.1',
                    '--size', 64, 96, '--out-dir', out) == ''
    files = [out / f'{image.stem}_3_5.png', out / f'{image.stem}_40_30.png']
    assert sorted(out.iterdir()) == sorted(files)
    assert capsys.readouterr().out.splitlines() == ['The weights are random: no --checkpoint is given.',
                                                    *map(str, files)]
    assert panels(files[0]) == panels(files[1])


@pytest.mark.parametrize('source', ['--image', '--average'])
def test_titles_say_height_x_width_of_the_input(source: str, run_tool: Run, image: Path, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    titles = []
    monkeypatch.setattr('cpvt_mm.files.write_figure', lambda path, figure: titles.append(figure.get_suptitle()))
    path = image if source == '--image' else image.parent
    assert run_tool(TOOL, UPERNET, source, path, '--size', 64, 96, '--out-dir', tmp_path) == ''
    assert len(titles) == 1 and '64 x 96 pixels (height x width)' in titles[0]
    assert source == '--average' or 'pixel x=48, y=32' in titles[0]


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


def test_averages_a_folder_of_images_of_any_sizes(run_tool: Run, image: Path, tmp_path: Path) -> None:
    assert run_tool(TOOL, PLAIN, '--average', image.parent, '--size', 64, 64, '--out-dir', tmp_path) == ''
    assert panels(tmp_path / 'validation_average.png')
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


@pytest.mark.parametrize(('arguments', 'message'), [
    (['--image', 'IMAGE', '--blocks', '2.7'], 'block 2.7 does not exist: choose one of 0.0, 0.1, 1.0, 1.1, 2.0, '),
    (['--image', 'IMAGE', '--query', 64, 0], '--query 64 0 is outside of the resized image of 64 x 64 pixels'),
    (['--image', 'no.jpg'], 'image no.jpg cannot be read'),
    (['--image', 'IMAGE', '--size', 0, 64], '--size is 0, but must be at least 1'),
    (['--average', 'no'], 'folder no does not exist'),
    (['--average', '.'], 'folder . has no image'),
])
def test_errors_are_a_sentence(arguments: list, message: str, run_tool: Run, image: Path, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = run_tool(TOOL, UPERNET, '--size', 64, 64, *[image if a == 'IMAGE' else a for a in arguments])
    assert answer.startswith(f'error: {message}')
    assert list(tmp_path.iterdir()) == []
