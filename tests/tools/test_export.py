import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch import Tensor

from cpvt_mm.deployment import SHAPES, load_part
from cpvt_mm.deployment.exporting import FORMATS, Format
from cpvt_mm.engine import load_config
from cpvt_mm.files import write_image
from description import describe, describe_classes
from tests.conftest import MASK_RCNN, UPERNET
from tests.deployment import detectors

TOOL = 'deployment/export.py'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A segmentor with one block in each of the four stages."""
    path = tmp_path / 'config.py'
    path.write_text(f'_base_ = {str(UPERNET)!r}\n'
                    'model = dict(backbone=dict(arch=dict(_delete_=True,\n'
                    '    embed_dims=(32, 64, 128, 192), depths=(1,) * 4, num_heads=(1, 2, 4, 6), mlp_ratios=(1,) * 4,\n'
                    '    sr_ratios=(8, 4, 2, 1))))\n')
    return path


@pytest.mark.slow
def test_a_file_is_written_and_compared(run_tool: Callable[..., str], config: Path, tmp_path: Path,
                                        capsys: pytest.CaptureFixture) -> None:
    """All four stages, without a position encoding, with weights of a checkpoint."""
    option = 'model.backbone.position_encoding'
    segmentor = load_part(load_config(config, {option: None}), 'segmentor')
    torch.save(segmentor.model.state_dict(), tmp_path / 'a.pth')
    out = tmp_path / 'a.pt2'
    assert run_tool(TOOL, config, out, '--checkpoint', tmp_path / 'a.pth', '--cfg-options', f'{option}=None') == ''
    printed = capsys.readouterr().out
    rows = [line.split(' | ') for line in printed.splitlines() if line.startswith('| ')][1:]
    assert [(row[0], row[1]) for row in rows] == [(f'| {b}', f'{h} x {w}') for b, h, w in SHAPES]
    assert all(0 < float(row[2]) < 1e-4 for row in rows)
    assert f'{out}: written' in printed
    extra, image = {'description.json': ''}, torch.randn(1, 3, 65, 40)
    program = torch.export.load(out, extra_files=extra)
    description = json.loads(extra['description.json'])
    assert (description['config'], description['channels']) == ('config', 'RGB')
    for output, expected in zip(program.module()(image), segmentor.model.backbone(image), strict=True):
        torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)


def test_a_wrong_size_is_shown_and_nothing_written(run_tool: Callable[..., str], config: Path, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch,
                                                   ) -> None:
    def run(image: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [model(image) + (0.5 if image.shape[2:] == (200, 333) else 0)]

    torch.manual_seed(0)  # as the tool has it
    model = load_part(load_config(config), 'segmentor')

    def write(path: Path, program: object, description: Mapping[str, str]) -> None:
        path.write_text('half')
        descriptions.append(description)

    descriptions: list[Mapping[str, str]] = []
    monkeypatch.setitem(FORMATS, '.onnx', Format(write, lambda path: run))
    monkeypatch.setattr('cpvt_mm.deployment.exporting.export_program', lambda model: None)
    error = run_tool(TOOL, config, tmp_path / 'a.onnx', '--part', 'segmentor')
    assert error == ('error: the exported model differs by 5.0e-01 on 1 x 200 x 333, and by too much at 1 of 10 sizes: '
                     'nothing is written.')
    assert '| 1 | 200 x 333 | 5.0e-01 |' in capsys.readouterr().out
    assert descriptions[0]['channels'] == 'RGB' and json.loads(descriptions[0]['classes'])[1] == 'sun'
    assert list(tmp_path.iterdir()) == [config]


def test_a_detector_is_compared_on_an_image(run_tool: Callable[..., str], tmp_path: Path,
                                            capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the export itself."""
    model = detectors.detector(detectors.RETINA)
    detectors.config(detectors.RETINA).dump(tmp_path / 'config.py')
    write_image(tmp_path / 'a.png', np.random.default_rng(0).integers(0, 255, (90, 70, 3), np.uint8))

    def run(image: Tensor) -> list[Tensor]:
        seen.append(image)
        with torch.no_grad():
            return [*model(image).values()]

    seen: list[Tensor] = []
    monkeypatch.setattr('cpvt_mm.deployment.comparing.SHAPES', ((1, 64, 48), (2, 33, 47)))
    monkeypatch.setitem(FORMATS, '.onnx', Format(lambda path, program, description: path.write_text('whole'),
                                                 lambda path: run))
    monkeypatch.setattr('cpvt_mm.deployment.exporting.export_program', lambda model: None)
    assert run_tool(TOOL, tmp_path / 'config.py', tmp_path / 'a.onnx', '--part', 'detector', '--checkpoint',
                    detectors.save(model, tmp_path / 'a.pth'), '--image', tmp_path / 'a.png') == ''
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
    assert rows[0] == ['| batch', 'height x width', 'largest difference', 'boxes |']
    assert [row[:2] for row in rows[1:]] == [['| 1', '64 x 48'], ['| 2', '33 x 47']]
    assert all(int(row[3].removesuffix(' |')) > 0 for row in rows[1:])
    assert seen[0].min() >= 0 and 100 < seen[0].mean() < 150  # the config does not normalize pixels
    assert (tmp_path / 'a.onnx').exists()


def test_what_cannot_be_exported_is_a_sentence(run_tool: Callable[..., str], tmp_path: Path) -> None:
    assert 'is of mmdet, but segmentors are of mmseg' in run_tool(TOOL, MASK_RCNN, tmp_path / 'a.onnx', '--part',
                                                                  'segmentor')
    assert 'use .pt2 or .onnx' in run_tool(TOOL, MASK_RCNN, tmp_path / 'a.pth')


def test_the_description_says_how_images_are_prepared() -> None:
    description = describe(load_config(UPERNET))
    assert description == {
        'config': UPERNET.stem, 'version': description['version'],
        'layout': 'float32, (batch, channel, height, width)', 'channels': 'RGB',
        'mean': '[123.675, 116.28, 103.53]', 'std': '[58.395, 57.12, 57.375]'}
    cfg = load_config(UPERNET, {'model.data_preprocessor.bgr_to_rgb': False, 'model.data_preprocessor.mean': None})
    assert describe(cfg)['channels'] == 'BGR' and describe(cfg)['mean'] == '[0.0, 0.0, 0.0]'


def test_the_classes_are_those_of_the_checkpoint_or_else_of_the_test_data(tmp_path: Path) -> None:
    cfg = load_config(UPERNET)
    found = {key: json.loads(value) for key, value in describe_classes(cfg).items()}
    assert found['classes'] == ['background', 'sun', 'ball', 'kite', 'boat', 'square']
    assert found['palette'][1] == [230, 60, 60]
    for name, meta in (('trained', dict(dataset_meta=dict(classes=('a', 'b'), palette=[(1, 2, 3), (4, 5, 6)]))),
                       ('bare', {})):
        torch.save(dict(state_dict={}, meta=meta), tmp_path / f'{name}.pth')
    assert describe_classes(cfg, tmp_path / 'bare.pth') == describe_classes(cfg)
    expected = {'classes': '["a", "b"]', 'palette': '[[1, 2, 3], [4, 5, 6]]'}
    assert describe_classes(cfg, tmp_path / 'trained.pth') == expected
    assert describe_classes(Config(dict(default_scope='mmseg')), tmp_path / 'bare.pth') == {}
    assert json.loads(describe_classes(load_config(MASK_RCNN))['classes']) == found['classes'][1:]
