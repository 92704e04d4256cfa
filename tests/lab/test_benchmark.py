"""The benchmark: its candidates, what it measures and counts, and its command line, tables and plots."""
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lab.backbones import Backbones
from lab.candidates import PEERS, Candidate, CannotMeasure
from lab.commands.benchmark import to_markdown
from lab.counting import count_flops, count_work
from lab.running import COLUMNS, measure_alone, measure_group
from lab.steps import Setting, Step
from tests.conftest import ROOT
from tests.tools.conftest import Run, read_rows

MB = 10**6
SETTING = Setting('forward', 64, 96, 2, 'fp32', 1)
TRAIN = replace(SETTING, mode='train')
BACKBONES = Backbones('nano')
OURS = Candidate('cpvt_mm')
PACKED, GROUPED = Candidate('cpvt_mm', dict(padding='exact')), Candidate('grouped')
MIXED = Setting('forward', 64, 96, 3, 'fp32', 1, ((64, 96), (32, 40), (64, 96)))


class Told:
    """A subject whose candidates are named for what they do, or else add some megabytes in a call."""
    device = 'cpu'

    def step(self, candidate: Candidate, setting: Setting) -> Step:
        if candidate.name == 'missing':
            raise CannotMeasure('missing cannot be built.')
        does = dict(fails=self.fail, dies=lambda: os._exit(3), huge=lambda: torch.ones(1 << 50))
        run = does.get(candidate.name, lambda: torch.ones(MB // 4))
        return Step(nn.Linear(MB, 2, bias=False), run)  # of 8 MB

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
    for setting in (SETTING, TRAIN):
        step = BACKBONES.step(Candidate(name), setting)
        assert BACKBONES.max_abs_diff(step, setting) < 1e-4
        assert BACKBONES.flops(Candidate(name), setting) == BACKBONES.flops(OURS, setting)
    other = BACKBONES.step(Candidate('cpvt_mm', dict(norm_eps=0.1)), SETTING)
    other.model.stages[2].blocks[0].norm1.eps = 0.1
    assert BACKBONES.max_abs_diff(other, SETTING) > 1e-5


@pytest.mark.parametrize('setting', [replace(MIXED, mode=mode) for mode in ('forward', 'train')], ids=str)
def test_packed_images_are_compared_with_a_pass_for_each_size(setting: Setting) -> None:
    padded, packed, grouped = (BACKBONES.step(one, setting) for one in (OURS, PACKED, GROUPED))
    assert BACKBONES.max_abs_diff(padded, setting) == BACKBONES.max_abs_diff(grouped, setting) == 0
    assert 0 < BACKBONES.max_abs_diff(packed, setting) < 1e-4
    assert BACKBONES.flops(GROUPED, setting) < BACKBONES.flops(PACKED, setting) < BACKBONES.flops(OURS, setting)


@pytest.mark.slow
def test_a_row_for_each_candidate() -> None:
    rows = measure_group(Told(), [Candidate('a'), Candidate('missing')], SETTING, 3, 1)
    plain, missing = rows.values()
    assert missing['failure'] == 'missing cannot be built.' and missing['min_s'] is plain['failure'] is None
    assert all(tuple(row) == COLUMNS for row in rows.values()) and 0 < plain['min_s'] <= plain['median_s']
    assert plain['memory_mb'] == pytest.approx(9, abs=2) and (plain['gflops'], plain['max_abs_diff']) == (0.006, 0.25)


@pytest.mark.slow
@pytest.mark.parametrize('name, sentence', [
    ('huge', 'out of memory'), ('fails', 'fails does not run (ValueError: it is told to).'),
    ('dies', 'out of memory, or another reason for which its process was killed')])
def test_what_goes_wrong_is_told(name: str, sentence: str) -> None:
    with pytest.raises(CannotMeasure) as error:
        measure_alone(Told(), Candidate(name), SETTING)
    assert str(error.value) == sentence


def test_counts_backwards_the_groups_of_a_convolution_and_attention() -> None:
    conv, image = nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.zeros(2, 8, 5, 7, requires_grad=True)
    assert count_flops(lambda: conv(image).sum().backward()) == 3 * 2 * 2 * 5 * 7 * 8 * 9
    q, k, v = (torch.randn(2, 3, tokens, 8, requires_grad=True) for tokens in (10, 6, 6))
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()) == (
        3 * 2 * 2 * 2 * 3 * 10 * 6 * 8)


def test_the_flops_of_a_classifier(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    path = ROOT / 'configs/cpvt/cpvt-ti_16xb64_in1k.py'
    assert run_tool('lab get_flops', path) == ''
    # The backbone, and a linear layer of 193 x 1000.
    assert '| 224 x 224 | 5.49 | 5.68 | 2.5 | 2.5 |' in capsys.readouterr().out


@pytest.mark.parametrize('fused', [False, True])
def test_attention_with_and_without_stored_weights(fused: bool) -> None:
    heads, queries, keys, channels = 2, 300, 100, 8
    q, k, v, gradient = (torch.empty(1, heads, length, channels, device='meta', dtype=torch.bfloat16,
                                     requires_grad=True) for length in (queries, keys, keys, queries))
    work = count_work(lambda: F.scaled_dot_product_attention(q, k, v).backward(gradient), fused)
    assert work.flops.total() == 3 * 2 * 2 * heads * queries * keys * channels
    if fused:
        forward = heads * (2 * channels * (2 * queries + 2 * keys) + 4 * queries)
        backward = heads * (2 * channels * (4 * queries + 4 * keys) + 4 * queries)
        assert work.bytes == {'scaled_dot_product_attention': forward,
                              'scaled_dot_product_attention_backward': backward}
    else:
        assert work.bytes.total() > 10 * 2 * heads * queries * keys


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
    common = dict(mode='train', batch_size=2, dtype='fp32', threads=1, device='cpu', height=224, width=224)
    ours = {**dict.fromkeys(COLUMNS), **common, **dict(candidate='ours', min_s=0.05, median_s=0.1, memory_mb=50.,
                                                       gflops=10.)}
    theirs = {**ours, **dict(candidate='theirs', min_s=11.2, median_s=22.5, memory_mb=100., max_abs_diff=1.5e-6)}
    none = {**dict.fromkeys(COLUMNS), **common}
    lines = to_markdown([ours, theirs, {**none, **dict(candidate='large', failure='out of memory')},
                         {**none, **dict(candidate='absent', failure='absent cannot be built.')}]).splitlines()
    assert lines[0] == '### train, batch of 2, fp32, 1 thread'
    cells = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| ')]
    assert ['224 x 224', 'theirs', '11.2', '22.5', '0.0889', '224.00x', '100', '2.00x', '10.0', '1.5e-06', ''] in cells
    assert ['224 x 224', 'large', 'out of memory', *[''] * 8] in cells
    assert not any('absent' in line for line in map(str, cells)) and '- absent: absent cannot be built.' in lines
