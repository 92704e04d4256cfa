"""Tools that turn one thing into another: models are exported, checkpoints converted, backbones of configs swapped."""
import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch import Tensor

from cpvt_mm import PyramidCPVT
from cpvt_mm.export import exporting, load_part
from cpvt_mm.export.comparing import SHAPES
from cpvt_mm.export.description import describe, describe_classes
from lab.commands.toy_shapes import CLASSES
from openmmlab_tools.data.config_datasets import plan_checks
from openmmlab_tools.engine import load_config
from openmmlab_tools.exported.runtimes import RUNTIMES, Loaded
from openmmlab_tools.files import write_image
from openmmlab_tools.libraries import shipped_configs
from tests.backbones import GOLDEN, MASK_RCNN, UPERNET
from tests.export import test_detector as detectors
from tests.helpers import ROOT
from tests.tools.conftest import Capture, Run

EXPORT, SWAP = 'deployment/export.py', 'misc/swap_backbone.py'
CONVERT, PUBLISH = 'model_converters/convert_checkpoint.py', 'model_converters/publish_model.py'
RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'


def cells(printed: str) -> list[list[str]]:
    return [line.strip('| ').split(' | ') for line in printed.splitlines() if line.startswith('| ')]


@pytest.mark.slow
def test_export_writes_and_compares(run_tool: Run, tmp_path: Path, capsys: Capture) -> None:
    """Without a position encoding, with weights of a checkpoint."""
    option, out = 'model.backbone.position_encoding', tmp_path / 'a.pt2'
    segmentor = load_part(load_config(UPERNET, {option: None}), 'segmentor')
    torch.save(segmentor.model.state_dict(), tmp_path / 'a.pth')
    assert run_tool(EXPORT, UPERNET, out, '--checkpoint', tmp_path / 'a.pth', '--cfg-options', f'{option}=None') == ''
    printed = capsys.readouterr().out
    rows = cells(printed)[1:]
    assert [row[:2] for row in rows] == [[f'{batch}', f'{height} x {width}'] for batch, height, width in SHAPES]
    assert 0 < max(float(row[2]) for row in rows) < 1e-4
    assert f'{out}: written' in printed
    extra, image = {'description.json': ''}, torch.randn(1, 3, 65, 40)
    program = torch.export.load(out, extra_files=extra)
    description = json.loads(extra['description.json'])
    assert (description['config'], description['channels']) == (UPERNET.stem, 'RGB')
    torch.testing.assert_close(program.module()(image), segmentor.model.backbone(image), atol=1e-4, rtol=1e-4)


@pytest.fixture
def replace_export(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mock]:
    """Puts a function in the place of exported models; returns what writes them."""
    def replace(run: Callable[[Tensor], list[Tensor]]) -> Mock:
        write = Mock(side_effect=lambda path, *rest: path.write_text('half'))
        monkeypatch.setitem(exporting.WRITERS, '.onnx', write)
        monkeypatch.setitem(RUNTIMES, '.onnx', dict(onnxruntime=lambda path: Loaded(torch.no_grad()(run), [], {})))
        monkeypatch.setattr(exporting, 'export_program', lambda model: None)
        return write

    return replace


def test_a_wrong_size_is_shown(run_tool: Run, tmp_path: Path, replace_export: Callable, capsys: Capture) -> None:
    torch.manual_seed(0)  # as the tool has it
    model = load_part(load_config(UPERNET), 'segmentor')
    write = replace_export(lambda image: [model(image) + (0.5 if image.shape[2:] == (200, 333) else 0)])
    assert run_tool(EXPORT, UPERNET, tmp_path / 'a.onnx', '--part', 'segmentor').endswith(
        ' differs by 5.0e-01 on 1 x 200 x 333 in onnxruntime, and by too much in 1 of 10 comparisons: nothing is '
        'written.')
    assert ['1', '200 x 333', '5.0e-01'] in [row[:3] for row in cells(capsys.readouterr().out)]
    _, _, description, _ = write.call_args.args
    assert description['channels'] == 'RGB' and json.loads(description['classes'])[1] == 'sun'
    assert not [*tmp_path.iterdir()]


def test_a_detector_is_compared_on_an_image(run_tool: Run, tmp_path: Path, replace_export: Callable, capsys: Capture,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = detectors.detector(), []
    detectors.config(detectors.RETINA).dump(tmp_path / 'config.py')
    torch.save(model.model.state_dict(), tmp_path / 'a.pth')
    write_image(tmp_path / 'a.png', np.random.default_rng(0).integers(0, 255, (90, 70, 3), np.uint8))
    monkeypatch.setattr('cpvt_mm.export.comparing.SHAPES', ((1, 64, 48), (2, 33, 47)))
    replace_export(lambda image: seen.append(image) or [*model(image).values()])
    assert run_tool(EXPORT, tmp_path / 'config.py', tmp_path / 'a.onnx', '--part', 'detector', '--checkpoint',
                    tmp_path / 'a.pth', '--image', tmp_path / 'a.png') == ''
    head, *rows = cells(capsys.readouterr().out)
    assert head == ['batch', 'height x width', 'difference, onnxruntime', 'boxes']
    assert [row[:2] for row in rows] == [['1', '64 x 48'], ['2', '33 x 47']]
    assert all(int(row[3]) > 0 for row in rows)
    assert seen[0].min() >= 0 and 100 < seen[0].mean() < 150  # the config does not normalize pixels
    assert (tmp_path / 'a.onnx').exists()


def test_a_description_says_how_images_are_prepared_and_which_classes_there_are(tmp_path: Path) -> None:
    cfg = load_config(UPERNET, {'model.data_preprocessor.bgr_to_rgb': False, 'model.data_preprocessor.mean': None})
    assert describe(cfg)['channels'] == 'BGR' and describe(cfg)['mean'] == '[0.0, 0.0, 0.0]'
    cfg = load_config(UPERNET)
    description = describe(cfg)
    assert description == {'config': UPERNET.stem, 'version': description['version'],
                           'layout': 'float32, (batch, channel, height, width)', 'channels': 'RGB',
                           'mean': '[123.675, 116.28, 103.53]', 'std': '[58.395, 57.12, 57.375]'}
    actual = {key: json.loads(value) for key, value in describe_classes(cfg).items()}
    assert actual['classes'] == ['background', 'sun', 'ball', 'kite', 'boat', 'square']
    assert actual['palette'][1] == [230, 60, 60]
    trained, bare = tmp_path / 'trained.pth', tmp_path / 'bare.pth'
    torch.save(dict(meta=dict(dataset_meta=dict(classes=('a', 'b'), palette=[(1, 2, 3), (4, 5, 6)]))), trained)
    torch.save(dict(state_dict={}, meta={}), bare)
    assert describe_classes(cfg, bare) == describe_classes(cfg)
    assert describe_classes(cfg, trained) == {'classes': '["a", "b"]', 'palette': '[[1, 2, 3], [4, 5, 6]]'}
    assert describe_classes(Config(dict(default_scope='mmseg')), bare) == {}
    assert json.loads(describe_classes(load_config(MASK_RCNN))['classes']) == actual['classes'][1:]


def test_convert_and_publish(run_tool: Run, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict=torch.load(GOLDEN / 'mmseg.pth', weights_only=True), optimizer={}), 'a.pth')
    assert run_tool(CONVERT, 'a.pth', 'b.pth') == ''
    assert capsys.readouterr().out.splitlines() == [
        'a.pth: a PyramidCPVT of format mmseg',
        'a.pth: models of its format have a norm_eps of 1e-05, which b.pth does not contain: set it in the new model',
        'b.pth: written; left out: optimizer']
    assert run_tool(PUBLISH, 'b.pth', 'model') == ''
    [path] = tmp_path.glob('model-*.pth')
    assert capsys.readouterr().out == f'{path.name}: written; left out: nothing\n'
    assert 'stages.0.position_encoding.0.convs.0.0.weight' in torch.load(path, weights_only=True)['state_dict']


def test_swap_backbone_writes_the_config_and_prints_changes(run_tool: Run, tmp_path: Path, capsys: Capture) -> None:
    out, weights = tmp_path / 'swapped.py', tmp_path / 'nano.pth'
    torch.save(PyramidCPVT('nano').state_dict(), weights)
    assert run_tool(SWAP, RETINANET, out, '--arch', 'nano', '--optimizer', '--checkpoint', weights) == ''
    printed = capsys.readouterr().out.splitlines()
    assert '- model.neck.in_channels = [256, 512, 1024, 2048]' in printed
    assert '+ model.neck.in_channels = [32, 64, 128, 192]' in printed
    assert printed[-2] == ('The optimizer is AdamW with lr 0.0002 and weight_decay 0.0001, for 16 images a step: train '
                           'with --auto-scale-lr for another batch size.')
    assert printed[-1] == f'Wrote {out}. Next: cpvt_mm train {out}'
    cfg = Config.fromfile(out)
    assert (cfg.model.backbone.type, cfg.model.backbone.arch) == ('cpvt_mm.PyramidCPVT', 'nano')
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=str(weights))
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'


def test_swap_backbone_puts_the_plain_one_or_random_weights_in(run_tool: Run, tmp_path: Path, capsys: Capture) -> None:
    assert run_tool(SWAP, ROOT / 'configs/cpvt/upernet_cpvt-ti_sfp_8xb2-160k_ade20k-512x512.py', tmp_path / 'dino.py',
                    '--backbone', 'dinov3-small') == ''
    model = Config.fromfile(tmp_path / 'dino.py').model
    assert (model.backbone.init_cfg.checkpoint, model.neck.in_channels) == ('cpvt_mm://dinov3-small', 384)
    assert 'random weights' not in capsys.readouterr().out
    assert run_tool(SWAP, RETINANET, tmp_path / 'out.py') == ''
    printed = capsys.readouterr().out
    assert 'The backbone starts from random weights.\nThe optimizer stays SGD with lr 0.01, which suits ' in printed


@pytest.mark.parametrize('option, stays', [('drop_rate=0.1', True), ('qkv_bias=False', False)])
def test_swap_backbone_says_that_a_backbone_is_the_same_only_if_it_is(
        option: str, stays: bool, run_tool: Run, tmp_path: Path, capsys: Capture) -> None:
    segformer = shipped_configs('mmseg') / 'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
    (tmp_path / 'old.py').write_text(
        f'_base_ = {str(segformer)!r}\n'
        f'model = dict(backbone=dict({option}))\n')
    assert run_tool(SWAP, tmp_path / 'old.py', tmp_path / 'out.py') == ''
    printed = capsys.readouterr().out
    assert ('The backbone is the same.' in printed, 'The backbone starts from random weights.' in printed) == (
        stays, not stays)


@pytest.mark.slow
def test_swap_backbone_takes_the_data_of_another_config(run_tool: Run, data: Path, tmp_path: Path) -> None:
    own = tmp_path / 'own.py'
    assert run_tool('misc/new_config.py', data, own, '--task', 'boxes', '--arch', 'nano', '--iters', 40) == ''
    assert run_tool(SWAP, RETINANET, tmp_path / 'out.py', '--arch', 'nano', '--optimizer', '--data', own) == ''
    cfg = load_config(tmp_path / 'out.py')
    assert cfg.model.bbox_head.num_classes == len(CLASSES) and cfg.model.backbone.arch == 'nano'
    assert Path(cfg.train_dataloader.dataset.data_root) == data
    assert cfg.train_cfg.max_iters == 40 and 'max_epochs' not in cfg.train_cfg
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'
    assert not [finding for plan in plan_checks(cfg) for finding in plan.findings if finding.is_error]


@pytest.mark.parametrize('words, error', [
    (f'{EXPORT} {MASK_RCNN} a.onnx --part segmentor', 'is of mmdet, but segmentors are of mmseg'),
    (f'{SWAP} mmdet::misc/d2_retinanet_r50-caffe_fpn_ms-90k_coco.py out.py', 'error: the config has no backbone'),
    (f'{SWAP} {RETINANET} out.py --data {MASK_RCNN}', f'error: the model is for boxes, but the data of {MASK_RCNN} is '
     'for instances: name data for the same task.'),
    (f'{SWAP} {RETINANET} out.py --data {GOLDEN}', f'error: config {GOLDEN} is a folder: name a file.'),
    (f'{SWAP} {RETINANET} out.py --backbone CPVT --arch nano',
     "error: 'nano' is not an arch of CPVT; allowed are tiny, small, base, large, giant, small-plus, huge-plus."),
    (f'{SWAP} {RETINANET} out.py --checkpoint {GOLDEN}/deit_timm.pth',
     'deit_timm.pth holds a CPVT (format timm), but the backbone is a PyramidCPVT: use')])
def test_nothing_is_written_after_a_mistake(words: str, error: str, run_tool: Run, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = run_tool(*words.split())
    assert message.startswith('error: ') and error in message and '\n' not in message
    assert not [*tmp_path.iterdir()]
