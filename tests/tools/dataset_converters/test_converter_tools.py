"""The command lines of the converters, and the configs of what they write."""
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from converters import CAMVID_CLASSES, CAMVID_PALETTE
from tests.conftest import ROOT
from tests.tools.dataset_converters.originals import make_segnet_camvid, make_stage1_train
from toy_shapes import CLASSES, PALETTE

Run = Callable[..., str]


def times(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob('*')}


@pytest.mark.parametrize('name, make', [('nuclei', make_stage1_train), ('camvid', make_segnet_camvid)])
def test_writes_once_and_refuses_to_overwrite(name: str, make: Callable[[Path], Path], run_tool: Run, tmp_path: Path,
                                              capsys: pytest.CaptureFixture) -> None:
    tool, source, root = f'dataset_converters/{name}.py', make(tmp_path / 'source'), tmp_path / 'data' / name
    assert run_tool(tool, source, root) == ''
    assert '100%' in capsys.readouterr().out
    written = times(root)
    assert written
    assert run_tool(tool, source, root) == f'error: {root} exists already: remove it, or choose another folder.'
    assert times(root) == written


def test_toy_shapes_are_written_once_and_others_not_over_them(run_tool: Run, tmp_path: Path) -> None:
    root, numbers = tmp_path / 'toy', ('--num-train', 2, '--num-val', 1)
    assert run_tool('dataset_converters/make_toy_shapes.py', root, *numbers) == ''
    written = times(root)
    assert len(written) == 2 + 4 + 6 + 3
    assert run_tool('dataset_converters/make_toy_shapes.py', root, *numbers) == ''
    assert times(root) == written
    message = run_tool('dataset_converters/make_toy_shapes.py', root, '--num-train', 3)
    assert message.startswith(f'error: {root} exists, but is not a toy dataset of')
    assert 'remove it, or choose another folder' in message


@pytest.mark.parametrize('name, words', [
    ('nuclei', ' has no folders with images/ and masks/ inside: pass the folder'),
    ('camvid', '/train has no images (.png): pass the folder CamVid'),
])
def test_a_wrong_folder_is_one_sentence(name: str, words: str, run_tool: Run, tmp_path: Path) -> None:
    error = run_tool(f'dataset_converters/{name}.py', tmp_path, tmp_path / 'out')
    assert error.startswith(f'error: {tmp_path}{words}') and '\n' not in error
    assert not list(tmp_path.glob('out*'))


@pytest.mark.parametrize('name, classes, palette', [
    ('camvid_360x480', CAMVID_CLASSES, CAMVID_PALETTE),
    ('camvid_192x256', CAMVID_CLASSES, CAMVID_PALETTE),
    ('nuclei_instance', ('nucleus',), None),
    ('toy_shapes_instance', CLASSES, PALETTE),
    ('toy_shapes_semantic', ('background', *CLASSES), ((0, 0, 0), *PALETTE)),
])
def test_the_configs_have_their_classes(name: str, classes: tuple, palette: tuple | None) -> None:
    meta = Config.fromfile(ROOT / f'configs/_base_/datasets/{name}.py').metainfo
    assert tuple(meta.classes) == classes
    assert palette is None or tuple(map(tuple, meta.palette)) == palette
