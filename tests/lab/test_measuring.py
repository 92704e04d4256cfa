import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import DefaultScope
from mmseg.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from cpvt_mm import PyramidCPVT
from lab import running
from lab.candidates import Candidate, CannotMeasure
from lab.complexity import count_flops, measure
from lab.from_config import build_plain_optim_wrapper
from lab.memory import Usage, measure_alone
from lab.running import COLUMNS, interleave, matrix_products, measure_group, peak_speed
from tests.conftest import NARROW, ROOT
from tests.tools.conftest import Run

from .subjects import MB, SETTING, Told


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group measures no memory, and the peak with small products."""
    def measure_alone(subject: Told, candidate: Candidate, setting: object, limit: int) -> Usage:
        if candidate.name == 'huge':
            raise CannotMeasure('out of memory')
        return Usage(7_500_000, 12.5)

    monkeypatch.setattr(running, 'measure_alone', measure_alone)
    monkeypatch.setattr(running, 'SIDES', dict(cpu=(64,)))


def test_a_row_for_each_candidate() -> None:
    progress, candidates = [], [Candidate('a'), Candidate('missing'), Candidate('a', shapes='static')]
    rows = measure_group(Told(), candidates, SETTING, 3, 1, lambda *state: progress.append(state))
    assert list(rows) == [row['candidate'] for row in rows.values()] == ['a', 'missing', 'a compiled static']
    plain, missing, compiled = rows.values()
    assert missing['failure'] == 'missing cannot be built.' and missing['min_s'] is plain['failure'] is None
    assert all(tuple(row) == COLUMNS for row in rows.values())
    assert all(row['height'] == 64 and row['width'] == 96 and row['device'] == 'cpu' for row in rows.values())
    assert 0 < plain['min_s'] <= plain['median_s']
    assert (plain['memory_mb'], plain['gflops'], plain['max_abs_diff']) == (7.5, 0.006, 0.25)
    assert plain['share_of_peak'] == pytest.approx(plain['gflops'] / plain['min_s'] / plain['gemm_gflops_per_s'])
    assert plain['compile_s'] is None and compiled['compile_s'] == 12.5
    assert progress == [('memory of a', 0, 6), ('memory of missing', 1, 6), ('memory of a compiled static', 2, 6),
                        ('time', 4, 6), ('time', 5, 6), ('time', 6, 6)]


def test_what_does_not_fit_is_not_run_and_memory_that_is_not_torch_s_is_not_measured() -> None:
    ran: list[str] = []
    candidates = [Candidate('huge'), Candidate('elsewhere')]
    rows = measure_group(Told(call=ran.append), candidates, SETTING, 2, 1, print)
    assert rows['huge']['failure'] == 'out of memory' and rows['elsewhere']['failure'] is None
    assert rows['elsewhere']['memory_mb'] is None and rows['elsewhere']['min_s'] > 0
    assert ran == 4 * ['elsewhere']  # warm-up, two rounds, and one that tells which attention is fused


@pytest.mark.parametrize('dtype', ['fp32', 'tf32'])
def test_tf32_is_allowed_where_it_is_asked_for_and_nowhere_else(dtype: str) -> None:
    found: list[tuple[bool, str]] = []

    def note(name: str) -> None:
        found.append((torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()))

    note('before')
    measure_group(Told(call=note), [Candidate('a')], replace(SETTING, dtype=dtype), 1, 1, print)
    note('after')
    before, *during, after = found
    assert before == after and during == 3 * [(True, 'high') if dtype == 'tf32' else (False, 'highest')]


def test_several_groups_go_on_with_the_threads_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr('torch.set_num_threads', threads.append)
    for number in (2, 1):
        measure_group(Told(), [Candidate('a')], replace(SETTING, threads=number), 1, 1, print)
    assert threads == [2, 1]


def test_calls_take_turns_in_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    called, done = [], []
    monkeypatch.setattr('lab.steps.timer', lambda: len(called)**2)
    found = interleave({name: lambda name=name: called.append(name) for name in 'abcd'}, 6, 2, done.append)
    rounds = [''.join(called[i:i + 4]) for i in range(0, len(called), 4)]
    assert len(rounds) == 8 and all(sorted(order) == list('abcd') for order in rounds)
    assert len(set(rounds)) > 3
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys('abcd', 6)
    assert min(min(values) for values in found.values()) == 9**2 - 8**2  # the first two rounds do not count
    assert done == [1, 2, 3, 4, 5, 6]


def test_products_for_the_peak_count_two_operations_for_a_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_speed({'small': 10, 'large': 100}, {'small': [1., 2.], 'large': [50., 20.]}) == 10.
    monkeypatch.setattr(running, 'SIDES', dict(cpu=(8,)))
    found = matrix_products('cpu', torch.float32)
    assert {name: operations for name, (operations, _) in found.items()} == {
        'product of 8 x 8': 2 * 8**3, 'convolution of 8 x 8': 2 * 8**3}
    product, convolved = (call() for _, call in found.values())
    torch.testing.assert_close(convolved[0, :, :, 0], product, atol=1e-5, rtol=1e-4)
    assert all(call().dtype is torch.bfloat16 for _, call in matrix_products('cpu', torch.bfloat16).values())


def test_counts_what_is_held_and_what_a_call_adds() -> None:
    usage = measure_alone(Told(), Candidate('holder', dict(megabytes=20)), SETTING)
    assert usage.bytes == pytest.approx((8 + 20) * MB, abs=2 * MB)
    assert usage.first_call > 0


def test_a_gpu_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('lab.memory._measure', lambda *_: Usage(os.getpid(), None))  # cannot be sent to another
    assert measure_alone(Told('cuda'), Candidate('a'), SETTING).bytes == os.getpid()


@pytest.mark.parametrize('candidate, limit, sentence', [
    (Candidate('holder', dict(megabytes=80)), 40 * MB, 'out of memory'),
    (Candidate('fails'), None, 'fails does not run (ValueError: it is told to).'),
    (Candidate('dies'), None, 'out of memory, or another reason for which its process was killed')])
def test_what_goes_wrong_is_told(candidate: Candidate, limit: int | None, sentence: str) -> None:
    with pytest.raises(CannotMeasure) as error:
        measure_alone(Told(), candidate, SETTING, limit)
    assert str(error.value) == sentence


def test_counts_the_backbone_with_its_attention() -> None:
    expected, channels, side = 0, 3, 64
    for i, (dims, depth, sr, ratio) in enumerate(zip(*(NARROW[key] for key in (
            'embed_dims', 'depths', 'sr_ratios', 'mlp_ratios')), strict=True)):
        patch = 2 if i else 4
        side //= patch
        tokens, keys = side**2, (side // sr)**2
        block = tokens * dims * dims * 2 + keys * dims * 2 * dims  # q and the output; k and v
        block += keys * dims * dims * sr**2 if sr > 1 else 0
        block += 2 * tokens * keys * dims  # attention: logits and weighted values
        block += 2 * tokens * dims * ratio * dims
        expected += 2 * (tokens * dims * channels * patch**2 + depth * block + tokens * dims * 9)  # 9: the PEG
        channels = dims
    model = PyramidCPVT(NARROW)
    found = measure(model, torch.zeros(1, 3, 64, 64))
    assert (found.params, found.flops) == (sum(p.numel() for p in model.parameters()), expected)


def test_counts_backwards_the_groups_of_a_convolution_and_attention() -> None:
    conv, image = nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.zeros(2, 8, 5, 7, requires_grad=True)
    forward = 2 * 2 * 5 * 7 * 8 * 9
    assert count_flops(lambda: conv(image)) == forward
    assert count_flops(lambda: conv(image).sum().backward()) == 3 * forward
    image.requires_grad_(False)
    assert count_flops(lambda: conv(image).sum().backward()) == 2 * forward
    q, k, v = (torch.randn(2, 3, tokens, 8, requires_grad=True) for tokens in (10, 6, 6))
    forward = 2 * 2 * 2 * 3 * 10 * 6 * 8
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v)) == forward
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()) == 3 * forward


def test_the_optimizer_is_built_in_the_scope_of_the_config() -> None:
    # A constructor that mmseg's scope alone knows.
    constructor = type('Frozen', (DefaultOptimWrapperConstructor,), dict(
        add_params=lambda self, params, module, **_: params.append(dict(params=[*module.parameters()], lr=0.))))
    OPTIM_WRAPPER_CONSTRUCTORS.register_module(module=constructor, force=True)
    cfg = Config(dict(default_scope='mmseg', optim_wrapper=dict(
        type='AmpOptimWrapper', constructor='Frozen', optimizer=dict(type='SGD', lr=0.1), paramwise_cfg=dict(a=1))))
    with DefaultScope.overwrite_default_scope('mmdet'):
        wrapper = build_plain_optim_wrapper(nn.Linear(1, 1), cfg, momentum=0.5)
    assert [(group['lr'], group['momentum']) for group in wrapper.optimizer.param_groups] == [(0., 0.5)]


@pytest.mark.slow
def test_flops_of_each_config(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    names = ('mask-rcnn_pyramid-cpvt-t_fpn_1x_coco', 'upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512',
             'pyramid-cpvt-s_16xb64_in1k')
    paths = [ROOT / f'configs/pyramid_cpvt/{name}.py' for name in names]
    assert run_tool('analysis_tools/get_flops.py', *paths, '--shape', 64, 96) == ''
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if line.startswith('| ')]
    assert [row[0] for row in rows] == ['| config', *(f'| {name}' for name in names)]
    assert [row[2] for row in rows[1:]] == ['12.34', '23.59', '23.59']


def test_a_teacher_is_no_part_of_a_classifier(run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    path = ROOT / 'configs/cpvt/cpvt-ti-distilled_16xb64_in1k.py'
    assert run_tool('analysis_tools/get_flops.py', path) == ''
    # The backbone, and two linear layers of 193 x 1000.
    assert '| 224 x 224 | 5.49 | 5.87 | 2.5 | 2.5 |' in capsys.readouterr().out
