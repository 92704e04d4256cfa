import json
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cpvt_mm.models.pyramid_cpvt import PYRAMID_ARCHS
from lab.backbones import Backbones
from lab.candidates import Candidate
from lab.counting import Work, count_work, to_markdown
from lab.steps import Setting
from tests.tools.conftest import Run

META = torch.device('meta')


def test_a_linear_layer_reads_its_inputs_and_writes_its_output() -> None:
    layer, x = nn.Linear(5, 7, device=META), torch.empty(3, 5, device=META)
    work = count_work(lambda: layer(x), fused_attention=True)
    assert work == ({'addmm': 1}, {'addmm': 2 * 3 * 5 * 7}, {'addmm': 4 * (3 * 5 + 5 * 7 + 7 + 3 * 7)})


def test_views_are_free_and_repeated_memory_is_read_once() -> None:
    x = torch.empty(3, 5, device=META)
    work = count_work(lambda: x.T.unflatten(0, (5, 1)).expand(5, 100, 3) + 1, fused_attention=True)
    assert work.bytes == {'add': 4 * (3 * 5 + 100 * 3 * 5)}


@pytest.mark.parametrize('fused', [False, True])
def test_attention_with_and_without_stored_weights(fused: bool) -> None:
    heads, queries, keys, channels = 2, 300, 100, 8
    q, k, v = (torch.empty(1, heads, length, channels, device=META, dtype=torch.bfloat16, requires_grad=True)
               for length in (queries, keys, keys))
    gradient = torch.empty(1, heads, queries, channels, device=META, dtype=torch.bfloat16)
    work = count_work(lambda: F.scaled_dot_product_attention(q, k, v).backward(gradient), fused)
    assert work.flops.total() == 3 * 2 * 2 * heads * queries * keys * channels
    if fused:
        forward = heads * (2 * channels * (2 * queries + 2 * keys) + 4 * queries)
        backward = heads * (2 * channels * (4 * queries + 4 * keys) + 4 * queries)
        assert work.bytes == {'scaled_dot_product_attention': forward,
                              'scaled_dot_product_attention_backward': backward}
    else:
        assert work.bytes.total() > 10 * 2 * heads * queries * keys


@pytest.mark.parametrize('mode, rate', [('forward', 0.), ('train', 0.), ('train', 0.2)])
@pytest.mark.parametrize('arch', [pytest.param(arch, marks=[pytest.mark.slow] if arch != 'nano' else [])
                                  for arch in PYRAMID_ARCHS])
def test_there_is_at_most_as_much_work_as_in_timm(arch: str, mode: str, rate: float) -> None:
    subject, setting = Backbones(arch, rate), Setting(mode, 256, 320, 8, 'bf16', 1)
    for ours, theirs in zip(subject.count(Candidate('cpvt_mm'), setting), subject.count(Candidate('timm'), setting),
                            strict=True):
        assert ours.flops.total() <= theirs.flops.total() and ours.bytes.total() <= theirs.bytes.total()
        if rate:  # the mean rate is half of it
            assert ours.flops.total() < (1 - rate / 4) * theirs.flops.total()


def test_operators_are_listed_by_their_share() -> None:
    ours = Work(Counter(mm=2, add=1, sin=1), Counter(mm=5_000_000_000), Counter(mm=10**9, add=3 * 10**9, sin=1))
    plain = Work(ours.calls, ours.flops, Counter(mm=10 * 10**9))
    theirs = Work(Counter(mm=1), Counter(mm=5_000_000_000), Counter(mm=8 * 10**9))
    totals, operators = to_markdown(dict(ours=(ours, plain), theirs=(theirs, theirs))).split('by operator')
    assert '| ours | 5.0 | 4.00 | 1.000x | 4 | 10.00 |\n| theirs | 5.0 | 8.00 | 2.000x | 1 | 8.00 |' in totals
    rows = operators.splitlines()[4:]
    assert rows == ['| mm | 1.00 | 8.00 |', '| add | 3.00 | 0.00 |', '| others | 0.00 | 0.00 |']


def test_the_share_of_padding_by_batch(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sizes = [(640, 480), (640, 416)] * 4 + [(480, 640)] * 8
    images = [dict(width=width, height=height) for width, height in sizes]
    (tmp_path / 'a.json').write_text(json.dumps(dict(images=images)))
    tool, scale = 'analysis_tools/padding_share.py', ('--scale', 320, 240)
    assert run_tool(tool, tmp_path / 'a.json', *scale, '--batch-sizes', 8, '--epochs', 2) == ''
    grouped, mixed = (line.strip('| ').split(' | ') for line in capsys.readouterr().out.splitlines()[-2:])
    # Landscapes are 320 x 240 and 320 x 208, padded to 320 x 256 and 320 x 224; portraits are padded to 320 x 256.
    own, alone, together = 4 * 240 + 4 * 208 + 8 * 240, 4 * 256 + 4 * 224 + 8 * 256, 16 * 256
    shares = [f'{1 - a / b:.1%}' for a, b in ((own, together), (own, alone), (alone, together))]
    assert grouped == ['8', 'yes', *shares, '1.5']
    assert mixed[:2] == ['8', 'no'] and mixed[3] == grouped[3] and float(mixed[2][:-1]) > float(grouped[2][:-1])
    assert 'error: 16 images do not fill a batch of 17' in run_tool(tool, tmp_path / 'a.json', '--batch-sizes', 17)
    (tmp_path / 'b.json').write_text('{}')
    assert 'b.json has no image sizes (KeyError' in run_tool(tool, tmp_path / 'b.json')


def test_the_tool_prints_the_counts_of_each_candidate(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    words = ('cpvt_mm', 'mmseg:heads=3', 'onnxruntime', '--arch', 'nano', '--sizes', '32x64', '--modes', 'forward')
    assert run_tool('analysis_tools/benchmark.py', '--count', *words, '--dtypes', 'fp16') == ''
    printed = capsys.readouterr().out
    assert printed.startswith('### nano, forward, 2 x 32 x 64, fp16\n\n| candidate | GFLOP | GB |')
    assert printed.count('\n| cpvt_mm |') == 1 and '\n| addmm |' in printed
    assert 'Not counted: mmseg:heads=3 cannot be built' in printed and 'torch does not run onnxruntime.' in printed
