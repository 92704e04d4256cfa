"""The benchmark: its candidates, what it measures and counts, and its command line, tables and plots."""
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lab.arguments import MODES
from lab.backbones import Backbones, Setting, Step
from lab.benchmarking import to_markdown
from lab.candidates import PEERS, Candidate, CannotMeasure
from lab.counting import count_flops, count_work
from lab.running import COLUMNS, measure_group
from tests.helpers import ROOT
from tests.tools.conftest import Run, read_rows

MB = 10**6
SETTING = Setting('forward', 64, 96, 2, 'fp32', 1)
BACKBONES = Backbones('nano')
OURS = Candidate('cpvt_mm')


class Told:
    """A subject whose candidates are named for what they do, or else add some megabytes in a call."""
    device = 'cpu'

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        if candidate.name == 'missing':
            raise CannotMeasure('missing cannot be built.')
        does = dict(fails=self.fail, dies=lambda: os._exit(3), huge=lambda: torch.ones(1 << 50),
                    plain=lambda: torch.ones(MB // 4))
        return Step(nn.Linear(MB, 2, bias=False), does[candidate.name])  # of 8 MB

    def flops(self, candidate: Candidate, setting: Setting) -> int:
        return 6 * MB

    def max_abs_diff(self, step: Step, setting: Setting) -> float:
        return 0.25

    @staticmethod
    def fail() -> None:
        raise ValueError('it is told to\nand does so')


@pytest.mark.parametrize('name', ['mmseg', 'mmpretrain', 'timm'])
def test_other_implementations_do_the_same(name: str) -> None:
    try:
        PEERS[name].load()
    except ImportError as error:
        pytest.skip(f'{name}: {error}')
    for setting in (SETTING, replace(SETTING, mode='train')):
        step = BACKBONES.step(Candidate(name), setting)
        assert BACKBONES.max_abs_diff(step, setting) < 1e-4
        # An eps that differs would be hidden by rounding.
        assert {norm.eps for norm in step.model.modules() if isinstance(norm, nn.LayerNorm)} == {1e-5, 1e-6}
        assert BACKBONES.flops(Candidate(name), setting) == BACKBONES.flops(OURS, setting)
    other = BACKBONES.step(Candidate('cpvt_mm', dict(norm_eps=0.1)), SETTING)
    other.model.stages[2].blocks[0].norm1.eps = 0.1
    assert BACKBONES.max_abs_diff(other, SETTING) > 1e-5


@pytest.mark.parametrize('mode', MODES)
def test_packed_images_are_compared_with_a_pass_for_each_size(mode: str) -> None:
    setting = Setting(mode, 64, 96, 3, 'fp32', 1, ((64, 96), (32, 40), (64, 96)))
    candidates = OURS, Candidate('cpvt_mm', dict(padding='exact')), Candidate('grouped')
    padded, packed, grouped = (BACKBONES.step(candidate, setting) for candidate in candidates)
    assert BACKBONES.max_abs_diff(padded, setting) == BACKBONES.max_abs_diff(grouped, setting) == 0
    assert 0 < BACKBONES.max_abs_diff(packed, setting) < 1e-4
    of_padded, of_packed, of_grouped = (BACKBONES.flops(candidate, setting) for candidate in candidates)
    assert of_grouped < of_packed < of_padded


@pytest.mark.slow
def test_a_row_for_each_candidate_or_why_there_is_none() -> None:
    failures = dict(plain=None, missing='missing cannot be built.', huge='out of memory',
                    fails='fails does not run (ValueError: it is told to).',
                    dies='out of memory, or another reason for which its process was killed')
    rows = measure_group(Told(), list(map(Candidate, failures)), SETTING, 3, 1)
    assert {name: row['failure'] for name, row in rows.items()} == failures
    assert all(tuple(row) == COLUMNS and (row['min_s'] is None) == (name != 'plain') for name, row in rows.items())
    plain = rows['plain']
    assert 0 < plain['min_s'] <= plain['median_s'] and plain['memory_mb'] == pytest.approx(9, abs=2)
    assert (plain['gflops'], plain['max_abs_diff']) == (0.006, 0.25)


def test_the_flops_of_a_classifier(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    path = ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py'
    assert run_tool('lab get_flops', path) == ''
    # The backbone, and a linear layer of 193 x 1000.
    assert '| 224 x 224 | 5.49 | 5.68 | 2.5 | 2.5 |' in capsys.readouterr().out


@pytest.mark.parametrize('device', ['cpu', 'meta'])
def test_counts_backwards_the_groups_of_a_convolution_and_attention(device: str) -> None:
    heads, queries, keys, channels = 2, 300, 100, 8
    with torch.device(device):
        conv, image = nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.zeros(2, 8, 5, 7, requires_grad=True)
        q, k, v, gradient = (torch.zeros(1, heads, length, channels, dtype=torch.bfloat16, requires_grad=True)
                             for length in (queries, keys, keys, queries))

    def attend() -> None:
        torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), gradient)

    assert count_flops(lambda: conv(image).sum().backward()) == 3 * 2 * 2 * 5 * 7 * 8 * 9
    flops = 3 * 2 * 2 * heads * queries * keys * channels
    assert count_flops(attend) == flops
    if device == 'meta':
        plain, fused = count_work(attend, fused_attention=False), count_work(attend, fused_attention=True)
        assert plain.flops.total() == fused.flops.total() == flops
        assert plain.bytes.total() > 10 * 2 * heads * queries * keys
        assert fused.bytes == {
            'scaled_dot_product_attention': heads * (2 * channels * (2 * queries + 2 * keys) + 4 * queries),
            'scaled_dot_product_attention_backward': heads * (2 * channels * (4 * queries + 4 * keys) + 4 * queries)}


def test_the_tool_prints_the_counts_of_each_candidate(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    words = 'cpvt_mm', 'mmseg:depths=3', '--arch', 'nano', '--sizes', '32x64', '--modes', 'forward', '--dtypes', 'fp16'
    assert run_tool('lab benchmark', '--count', *words) == ''
    printed = capsys.readouterr().out
    assert printed.startswith('### nano, forward, 2 x 32 x 64, fp16\n\n| candidate | GFLOP | GB |')
    assert '\n| addmm |' in printed and 'Not counted: mmseg:depths=3 cannot be built (TypeError: ' in printed


@pytest.mark.slow
def test_measures_and_goes_on(run_tool: Run, tmp_path: Path) -> None:
    command = ('lab benchmark', 'cpvt_mm:with_cp=True', 'mmseg', '--modes', 'train', '--arch', 'nano',
               '--threads', 1, '--rounds', 2, '--out-dir', tmp_path, '--sizes')
    assert run_tool(*command, '64x96') == ''
    rows = read_rows(tmp_path / 'results.csv')
    assert [(row['candidate'], row['height'], row['width']) for row in rows] == [
        ('cpvt_mm:with_cp=True', '64', '96'), ('mmseg', '64', '96')]
    assert all(float(row['memory_mb']) > 7 and float(row['gflops']) > 0.1 for row in rows)
    assert rows[0]['gflops'] == rows[1]['gflops']
    assert run_tool(*command, '64x96', 128, '64x32+32x96') == ''
    assert read_rows(tmp_path / 'results.csv')[:2] == rows
    table = (tmp_path / 'table.md').read_text()
    assert '### train, batch of 64x32+32x96, fp32, 1 thread\n' in table


def test_the_table_tells_all() -> None:
    none = {**dict.fromkeys(COLUMNS), **dict(mode='train', batch_size=2, dtype='fp32', threads=1, device='cpu',
                                             height=224, width=224)}
    rows = [dict(candidate='ours', min_s=0.05, median_s=0.1, memory_mb=50., gflops=10.),
            dict(candidate='theirs', min_s=11.2, median_s=22.5, memory_mb=100., gflops=10., max_abs_diff=1.5e-6),
            dict(candidate='large', failure='out of memory'),
            dict(candidate='absent', failure='absent cannot be built.')]
    title, *lines = to_markdown([{**none, **row} for row in rows]).splitlines()
    assert title == '### train, batch of 2, fp32, 1 thread'
    assert '| 224 x 224 | theirs | 11.2 | 22.5 | 0.0889 | 224.00x | 100 | 2.00x | 10.0 | 1.5e-06 |  |' in lines
    assert '| 224 x 224 | large | out of memory |' + 8 * '  |' in lines
    assert [line for line in lines if 'absent' in line] == ['- absent: absent cannot be built.']
