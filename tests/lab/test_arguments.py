"""Mistakes on the command lines of the tools end with one sentence, before anything is written."""
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np
import pytest

from lab.arguments import parse_sides
from tests.conftest import MASK_RCNN, ROOT, UPERNET, refusal
from tests.tools.conftest import Run, save

STUDY = f"""
config = '{UPERNET}'
variants = dict(a=dict(options={{'model.backbone.position_encoding': None}}), b=dict())
tests = dict(test={{'test_dataloader.dataset.pipeline.1.scale': (64, 64)}})
metrics = ['mIoU']
"""
# Commands without the rest of their words.
MAPS = f'attention_maps.py {UPERNET} --size 64 64'
PLAIN_MAPS = f'attention_maps.py {ROOT}/configs/toy/upernet_cpvt_sfp_toy-shapes.py --size 64 96 --image images/a.png'
SWEEP = f'resolution_sweep.py {UPERNET} weights.pth --work-dir out --sizes 32'
SWEEP_OF_DETECTOR = f'resolution_sweep.py {MASK_RCNN} weights.pth --work-dir out --sizes 32'
COMPARE = 'compare.py study.py --work-dir out --jobs 1'
BENCHMARK = 'benchmark.py --arch nano --threads 1 --out-dir out'
TRANSLATION = 'translation_equivariance.py'
PADDING = f'padding_difference.py {MASK_RCNN}'


@pytest.mark.parametrize('command, words, error', [
    (MAPS, '--image images/a.png --blocks 2.7', 'block 2.7 does not exist: choose one of 0.0, 0.1, 1.0, '),
    (PLAIN_MAPS, '--query 96 0', '--query 96 0 is outside of the resized image of 64 x 96 pixels (height x width): '
     'choose X from 0 to 95 and Y from 0 to 63'), (PLAIN_MAPS, '--query 3', "--query is '3', but must be"),
    (PLAIN_MAPS, '--query cls --cfg-options model.backbone.dist_token=True',
     '--query cls is not possible, because the backbone has no class token'),
    (MAPS, '--image images/a.png --size 0 64', '--size is 0, but must be at least 1'),
    (SWEEP, '--mode slide', 'has no crop_size for sliding windows: pass --crop-size HEIGHT'),
    (SWEEP, '--mode slide --crop-size 8 8 --stride 8 9', '--stride is 8 9, but must be from 1 to --crop-size'),
    (SWEEP, '--crop-size 32 32', '--crop-size and --stride are for sliding windows, but no'),
    (SWEEP_OF_DETECTOR, '--mode whole', '--mode whole is for segmentors, but config'),
    (SWEEP_OF_DETECTOR, '--cfg-options test_dataloader.dataset.pipeline.1.type=Pad', 'has no Resize'),
    ('resolution_sweep.py', f'{UPERNET} no.pth --sizes 32', 'checkpoint no.pth does not exist: check the path.'),
    (COMPARE, '--only c', "'c' is not a variant of"),
    (COMPARE, '--cfg-options model.backbone.img_size=0', 'img_size is 0'),
    (BENCHMARK, '--count --compile static', '--count counts backbones alone, operator by operator: leave out --config'),
    (BENCHMARK, 'vit', "'vit' is not a candidate: choose from cpvt_mm, onnxruntime, mmseg,"),
    (BENCHMARK, 'mmseg:with_cp', "'with_cp' of candidate 'mmseg:with_cp' is not an argument"),
    (BENCHMARK, 'mmseg --drop-path-rate 1.5', '--drop-path-rate is 1.5, but must be'),
    (BENCHMARK, 'mmseg --dtypes tf32', '--dtypes has tf32, which needs a GPU: use fp32'),
    (BENCHMARK, 'mmseg --device cuda', '--device is cuda, but torch finds no GPU: use cpu'),
    (BENCHMARK, f'--study {ROOT}/configs/_base_/studies/padding_nuclei.py', '--study is '),
    (TRANSLATION, '--checkpoint a.pth', '--checkpoint and --cfg-options need a config'),
    (TRANSLATION, '--size 64 --shift 32', '--size 64 and --shift 32 leave no pixels'),
    (TRANSLATION, '--shift 24', 'the shift of 24 pixels is not a multiple of 16 pixels'),
    (TRANSLATION, '--size 160 --margin 4', 'a margin of 4 cells of 16 pixels leaves no cell to compare'),
    (TRANSLATION, '--output 2', 'output 2 does not exist: choose one from 0 to 0'),
    (TRANSLATION, f'{ROOT}/configs/cpvt/cpvt-ti-gap_16xb64_in1k.py', "out_type of the backbone is 'gap', but must"),
    (PADDING, '--image 65x60 --neighbour 64x96', '--image (65, 60) is larger than --neighbour'),
    (PADDING, '--image 32x32 --neighbour 64x64', '--image (32, 32) gives maps of one cell, which do not vary'),
    (PADDING, '--image 32x33 --neighbour 64x64 --output 4', '--output 4 does not exist: ')])
def test_one_sentence(run_tool: Run, command: str, words: str, error: str, tmp_path: Path,
                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    save(tmp_path / 'images/a.png', np.zeros((9, 9, 3), np.uint8))
    (tmp_path / 'study.py').write_text(STUDY)
    (tmp_path / 'weights.pth').write_bytes(b'weights')
    before = set(tmp_path.rglob('*'))
    found = run_tool(*f'analysis_tools/{command} {words}'.split())
    assert found.startswith('error: ') and error in found and '\n' not in found
    assert set(tmp_path.rglob('*')) == before


def test_what_is_no_size_is_refused(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    assert run_tool('analysis_tools/benchmark.py', '--sizes', '64by96') == '2'
    assert capsys.readouterr().err.splitlines()[-1].endswith(
        "error: argument --sizes: size '64by96' is not an image size: give the pixels of one side, such as 512, or of "
        'both sides, such as 800x1216.')
    for text in ('0', '640x0', '-5', '640x', '1x2x3'):
        assert f"size '{text}' is not an image size" in refusal(parse_sides, text, error=ArgumentTypeError)
