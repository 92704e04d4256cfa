"""Mistakes on the command lines of the lab end with one sentence, before anything is written."""
from pathlib import Path

import numpy as np
import pytest

from tests.backbones import MASK_RCNN, UPERNET
from tests.helpers import ROOT
from tests.tools.conftest import Run, save

STUDY = f"""
config = '{UPERNET}'
variants = dict(a=dict(options={{'model.backbone.position_encoding': None}}), b=dict())
tests = dict(test={{'test_dataloader.dataset.pipeline.1.scale': (64, 64)}})
metrics = ['mIoU']
"""
# Commands without the rest of their words.
MAPS = f'attention_maps {UPERNET} --size 64 64'
PLAIN_MAPS = f'attention_maps {ROOT}/configs/toy/upernet_cpvt_sfp_toy-shapes.py --size 64 96 --image images/a.png'
SWEEP = f'resolution_sweep {UPERNET} weights.pth --work-dir out --sizes 32'
SWEEP_OF_DETECTOR = f'resolution_sweep {MASK_RCNN} weights.pth --work-dir out --sizes 32'
COMPARE = 'compare study.py --work-dir out --jobs 1'
BENCHMARK = 'benchmark --arch nano --threads 1 --out-dir out'
TRANSLATION = 'translation_equivariance'
PADDING = f'padding_difference {MASK_RCNN}'
PROBE = 'position_probe --size 64'


@pytest.mark.parametrize('command, words, error', [
    (MAPS, '--image images/a.png --blocks 2.7', 'block 2.7 does not exist: choose one of 0.0, 0.1, 1.0, '),
    (PLAIN_MAPS, '--query 96 0', '--query 96 0 is outside of the resized image of 64 x 96 pixels (height x width): '
     'choose X from 0 to 95 and Y from 0 to 63'), (PLAIN_MAPS, '--query 3', "--query is '3', but must be"),
    (PLAIN_MAPS, '--query cls --cfg-options model.backbone.arch.dist_token=True',
     '--query cls is not possible, because the backbone has no class token'),
    (SWEEP, '--mode slide --crop-size 8 8 --stride 8 9', '--stride is 8 9, but must be from 1 to --crop-size'),
    (SWEEP, '--crop-size 32 32', '--crop-size and --stride are for sliding windows, but no'),
    (SWEEP_OF_DETECTOR, '--mode whole', '--mode whole is for segmentors, but config'),
    ('resolution_sweep', f'{UPERNET} no.pth --sizes 32', 'no.pth does not exist: put it there'),
    (COMPARE, '--only c', "'c' is not a variant of"),
    (BENCHMARK, '--count --compile static', '--count counts operator by operator: leave out --compile'),
    (BENCHMARK, '--sizes 64 64x32+32x96 --batch-sizes 1 2', '--batch-sizes is 1 2, but --sizes gives the sizes of all'),
    (BENCHMARK, 'vit', "'vit' is not a candidate: choose from cpvt_mm, grouped, mmseg,"),
    (TRANSLATION, '--checkpoint a.pth', '--checkpoint and --cfg-options need a config'),
    (TRANSLATION, '--shift 24', 'the shift of 24 pixels is not a multiple of 16 pixels'),
    (TRANSLATION, '--size 160 --margin 4', 'a margin of 4 cells of 16 pixels leaves no cell to compare'),
    (TRANSLATION, f'{ROOT}/configs/cpvt/cpvt-ti-gap_16xb64_in1k.py', "out_type of the backbone is 'gap', but must"),
    (PADDING, '--image 65x60 --neighbour 64x96', '--image (65, 60) is larger than --neighbour'),
    (PADDING, '--image 32x32 --neighbour 64x64', '--image (32, 32) gives maps of one cell, which do not vary'),
    (PROBE, 'cpvt-tiny --count 7', '7 images are too few'),
    (PROBE, 'cpvt-tiny --scales 0.01', 'images of 1 pixels: choose'),
    (PROBE, 'hf:vit', "'hf:vit' is not a model"), (PROBE, 'timm:vit_of_no_one', 'cannot be built')])
def test_one_sentence(run_tool: Run, command: str, words: str, error: str, tmp_path: Path,
                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / 'images/a.png', np.zeros((9, 9, 3), np.uint8))
    (tmp_path / 'study.py').write_text(STUDY)
    (tmp_path / 'weights.pth').write_bytes(b'weights')
    before = set(tmp_path.rglob('*'))
    name, *options = f'{command} {words}'.split()
    actual = run_tool(f'lab {name}', *options)
    assert actual.startswith('error: ') and error in actual and '\n' not in actual
    assert set(tmp_path.rglob('*')) == before
