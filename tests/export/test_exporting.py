"""Exports of backbones and segmentors, which are right at all sizes or refused in a sentence."""
import gc
import sys
from contextlib import ExitStack
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import config as fx_config

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.encodings.base import PositionEncoding, PositionEncodings, StageSpec
from cpvt_mm.export import exported, load_part
from cpvt_mm.export.comparing import check, compare
from cpvt_mm.export.exporting import WRITERS, quick_tracing
from cpvt_mm.export.program import export_program
from cpvt_mm.tokens.grid import Grid
from openmmlab_tools.engine import load_config
from openmmlab_tools.exported.runtimes import load_everywhere
from tests.all_encodings import ENCODINGS
from tests.backbones import MASK_RCNN, UPERNET
from tests.export.conftest import SMALL
from tests.export.test_detector import PYRAMID
from tests.helpers import ROOT, refusal

# An export takes long, so several encodings share one; what works together works alone.
NEWER = ['rotary-mixed', 'continuous-relative', 'fire', 'look-here', 'parabolic', 'parabolic-fixed']
TOGETHER = {
    # One for each point at which an encoding acts.
    'each point': ({}, ['peg', 'learnable-2d', 'rotary', 'relative', 'peg-qk']),
    'the others': ({}, ['learnable-1d', 'random-table', 'sinusoidal-1d', 'sinusoidal-2d', 'random-fourier',
                        'peg-first', 'peg-fixed', 'peg-3d', 'peg-separable', 'peg-zero', 'learnable-offset',
                        'rotary-dinov3', 'peg-replicate']),
    # OpenVINO 2026.4 has no circular padding, so it is left out here; it also resizes tables otherwise.
    'not in OpenVINO': ({}, ['peg-circular', 'learnable-antialiased']),
    'newer ones': ({}, NEWER), 'pooled keys': (dict(sr_mode='pool'), ['relative', *NEWER]),
    'convolutions in MLPs': (dict(mlp_mode='conv'), ['peg'])}


def assert_files_are_right(model: nn.Module, folder: Path) -> None:
    """Exports once, and compares the files of all formats with the model at the ten sizes, in all runtimes."""
    program, runs = export_program(model), {}
    for suffix, write in WRITERS.items():
        file = folder / f'model{suffix}'
        write(file, program, {}, {})
        runs.update(load_everywhere(file, suffix))
    assert {*runs} - {'openvino'} == {'onnxruntime', 'torch'}
    differences = [one for row in compare(model, runs) for one in row]
    assert len(differences) == 10 * len(runs)
    check(differences)


def refusal_of_export(model: nn.Module, path: Path) -> str:
    """Returns the message of a refused export, which leaves nothing behind."""
    told = refusal(ExitStack().enter_context, exported(model, path, {}))
    assert not any(path.parent.iterdir())
    return told


def test_all_encodings_are_tried() -> None:
    assert {name for _, names in TOGETHER.values() for name in names} == {*ENCODINGS} - {'none', 'peg-learnable'}


@pytest.mark.slow
@pytest.mark.parametrize('together', TOGETHER)
def test_encodings_are_right_at_all_sizes(together: str, tmp_path: Path) -> None:
    parts, names = TOGETHER[together]
    # One stage is used; its keys lie on a coarser grid, and 'peg-qk' feeds a second block.
    arch = dict(embed_dims=(12,) * 4, depths=(1 + ('peg-qk' in names), 1, 1, 1), num_heads=(3,) * 4,
                mlp_ratios=(2,) * 4, sr_ratios=(2,) * 4, **parts)
    model = PyramidCPVT(arch, img_size=64, out_indices=(0,), position_encoding=[ENCODINGS[name] for name in names])
    assert_files_are_right(model.eval(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('parts, options', [
    (dict(dist_token=True), dict(out_type='cls_token', position_encoding=[ENCODINGS['peg'], ENCODINGS['rotary']])),
    ({}, dict(padding='exact')),
    (dict(patch_size=14, num_register_tokens=2, layer_scale=0.1, mlp_mode='swiglu'),
     dict(padding='exact', img_size=64, position_encoding=[ENCODINGS['learnable-offset'], ENCODINGS['rotary-dinov3']]))
    ], ids=['class tokens stand beside any grid', 'images are completed', 'parts of DINOv2 and DINOv3'])
def test_plain_backbones_are_right_at_all_sizes(parts: dict, options: dict, tmp_path: Path) -> None:
    assert_files_are_right(CPVT(dict(SMALL, embed_dims=12, **parts), **options).eval(), tmp_path)


@pytest.mark.slow
def test_axes_and_outputs_of_onnx_have_names(small: CPVT, tmp_path: Path) -> None:
    path = tmp_path / 'a.onnx'
    with exported(small, path, dict(channels='RGB')) as runs:
        assert runs['onnxruntime'](torch.zeros(1, 3, 8, 8))[0].shape == (1, 24, 1, 1)
        assert not path.exists()
    model = onnx.load(path)
    onnx.checker.check_model(model)
    shapes = {value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
              for value in (*model.graph.input, *model.graph.output)}
    assert shapes == {'image': ['batch', 3, 'height', 'width'],
                      'output0': ['batch', 24, '((height + 7)//8)', '((width + 7)//8)']}
    assert [(entry.key, entry.value) for entry in model.metadata_props] == [('channels', 'RGB')]
    assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()


def test_dynamic_sizes_work_with_torch_alone(small: CPVT) -> None:
    """The example of docs/guides/deployment.md."""
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    program = torch.export.export(small, (torch.zeros(2, 3, 64, 96),), dynamic_shapes=(sizes,))
    image = torch.randn(1, 3, 70, 33)
    torch.testing.assert_close(program.module()(image), small(image), atol=1e-5, rtol=1e-5)


class Branching(PositionEncoding):
    """Treats large images otherwise."""

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        return x + 1 if x.shape[1] > 20 else x


@pytest.mark.parametrize('suffix', ['.pt2', '.onnx'])
def test_an_encoding_that_asks_for_the_size_and_a_missing_package_are_named(
        suffix: str, small: CPVT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = StageSpec(embed_dims=24, num_heads=3, depth=1, grid=(8, 8))
    small.position_encoding = PositionEncodings([Branching(stage)])
    told = refusal_of_export(small, tmp_path / f'a{suffix}')
    line = "because of 'return x + 1 if x.shape[1] > 20 else x' (test_exporting.py:"
    assert all(word in told for word in ('the CPVT cannot', suffix, line, 'in tokens): ', ': replace that part'))
    monkeypatch.setitem(sys.modules, 'onnxscript', None)
    assert 'pip install onnx onnxscript onnxruntime.' in refusal_of_export(small, tmp_path / 'a.onnx')


class AsksForNumber(PositionEncoding):
    """Has code that works for any size, but that only the compiler can read."""

    def tokens(self, x: Tensor, position: int, grid: Grid) -> Tensor:
        return x + x.new_ones(len(x), 1, 1)


def test_code_that_needs_a_number_for_a_size_is_read_by_the_compiler(small: CPVT) -> None:
    stage = StageSpec(embed_dims=24, num_heads=3, depth=1, grid=(8, 8))
    small.position_encoding = PositionEncodings([AsksForNumber(stage)])
    program, image = export_program(small), torch.randn(3, 3, 70, 33)
    torch.testing.assert_close(program.module()(image), small(image), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_file_has_its_name_only_when_all_is_well_and_predicts_as_in_eval_mode(tmp_path: Path) -> None:
    path, x = tmp_path / 'a.pt2', torch.randn(1, 3, 40, 60)
    model = CPVT(SMALL, drop_path_rate=0.9, drop_rate=0.5).train()
    assert '.pt2 or .onnx' in refusal_of_export(model, tmp_path / 'a.pth')
    with pytest.raises(ArithmeticError), exported(model, path, {}) as runs:
        torch.testing.assert_close(runs['torch'](x)[0], model.eval()(x)[0], rtol=1e-4, atol=1e-5)
        assert not path.exists()
        raise ArithmeticError
    assert not any(tmp_path.iterdir())


PLAIN = dict(backbone=dict(type='cpvt_mm.CPVT', arch=dict(embed_dims=24, depth=1, num_heads=3), cls_token=False),
             neck=dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=24, out_channels=8, strides=(8, 32)))
SEGMENTORS = {
    'UPerHead': dict(pool_scales=(1, 6)), 'FPNHead': dict(feature_strides=(4, 8)), 'SegformerHead': {},
    'binary SegformerHead': dict(num_classes=2, out_channels=1, threshold=0.3)}


def config(name: str, **options: object) -> Config:
    """Makes the config of a small segmentor with such a head."""
    head = name.rpartition(' ')[2]
    decode_head = dict(type=head, in_channels=(8, 8), in_index=(0, 1), channels=8, num_classes=5, align_corners=False,
                       norm_cfg=dict(type='GN', num_groups=4))
    return Config(dict(default_scope='mmseg', model=dict(
        **(PYRAMID if head == 'FPNHead' else PLAIN), type='EncoderDecoder', test_cfg=dict(mode='whole'),
        decode_head={**decode_head, **SEGMENTORS[name], **options})))


@pytest.mark.slow
@pytest.mark.parametrize('name', SEGMENTORS)
def test_segmentors_are_right_at_all_sizes(name: str, tmp_path: Path) -> None:
    assert_files_are_right(load_part(config(name), 'segmentor'), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['camvid/mask2former_pyramid-cpvt-nano', 'eomt/eomt_cpvt-ti'])
def test_mask_queries_are_right_at_all_sizes(name: str, tmp_path: Path) -> None:
    cfg = load_config(ROOT / f'configs/{name}_camvid-192x256.py')
    backbone, head = cfg.model.backbone, cfg.model.decode_head
    if 'eomt' in name:
        backbone.update(arch=dict(embed_dims=24, depth=2, num_heads=3), num_query_blocks=1)
        head.in_channels = 24
    else:
        backbone.arch = dict(embed_dims=(32, 64, 128, 192), depths=(1,) * 4, num_heads=(1, 2, 4, 6),
                             mlp_ratios=(1,) * 4, sr_ratios=(8, 4, 2, 1))
        head.num_queries = 5  # few masks, so that rounding decides of no cell whether a query sees it
        head.transformer_decoder.num_layers = 1
    model = load_part(cfg, 'segmentor')
    with torch.no_grad():
        for parameter in model.parameters():  # deformable attention begins with offsets that depend on nothing
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    assert_files_are_right(model, tmp_path)


@torch.no_grad()
def test_a_segmentor_gives_the_logits_of_every_pixel() -> None:
    segmentor, image = load_part(config('SegformerHead'), 'segmentor'), torch.randn(2, 3, 33, 50)
    assert not segmentor.training
    logits = segmentor.model(image, mode='tensor')
    assert logits.shape == (2, 5, 6, 8)
    torch.testing.assert_close(segmentor(image), F.interpolate(logits, (33, 50), mode='bilinear'))


@torch.no_grad()
@pytest.mark.filterwarnings('ignore:.*binary segmentation:UserWarning', 'ignore:threshold is not defined:UserWarning')
@pytest.mark.parametrize('threshold', [None, 0.2, 0.55])
def test_the_larger_channel_of_a_binary_segmentor_is_what_mmseg_predicts(threshold: float | None) -> None:
    segmentor = load_part(config('binary SegformerHead', threshold=threshold), 'segmentor')
    nn.init.normal_(segmentor.model.decode_head.conv_seg.weight, std=2.)  # logits lie on both sides of the threshold
    for size in ((33, 50), (64, 40)):
        image = torch.randn(2, 3, *size)
        logits, actual = segmentor(image), segmentor.model.predict(image)
        classes = torch.cat([sample.pred_sem_seg.data for sample in actual])
        assert logits.shape == (2, 2, *size) and {*classes.unique().tolist()} == {0, 1}
        # What rounding can change lies at the threshold.
        is_clear = (logits[:, 1] - logits[:, 0]).abs() > 1e-4
        assert is_clear.float().mean() > 0.9 and torch.equal(logits.argmax(1)[is_clear], classes.long()[is_clear])


def test_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    first = load_part(config('SegformerHead'), 'segmentor')
    torch.save(first.model.state_dict(), tmp_path / 'a.pth')
    for part, expected in (('segmentor', first), ('backbone', first.model.backbone)):
        weights = load_part(config('SegformerHead'), part, tmp_path / 'a.pth').state_dict()
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.state_dict().items())
    assert 'does not fit the EncoderDecoder' in refusal(load_part, config('FPNHead'), 'segmentor', tmp_path / 'a.pth')


def test_a_part_that_a_config_does_not_have_is_named() -> None:
    for cfg, part, words in (
            (load_config(MASK_RCNN), 'segmentor', 'is of mmdet, but segmentors are of mmseg: export the backbone al'),
            (load_config(UPERNET), 'detector', 'is of mmseg, but detectors are of mmdet: export the backbone alone'),
            (config('SegformerHead', in_index=(0, 1, 2)), 'segmentor', 'cannot be built')):
        assert words in refusal(load_part, cfg, part)


def test_garbage_collection_and_stack_traces_are_as_before_an_export_that_fails() -> None:
    before = gc.isenabled(), fx_config.do_not_emit_stack_traces
    with pytest.raises(RuntimeError), quick_tracing():
        assert (gc.isenabled(), fx_config.do_not_emit_stack_traces) == (False, True)
        raise RuntimeError
    assert (gc.isenabled(), fx_config.do_not_emit_stack_traces) == before == (True, False)
