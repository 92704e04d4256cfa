"""The programs that check the project and make tables of its documentation."""
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from lab.__main__ import find_commands
from lab.commands.fuzz_checkpoints import MUTATIONS, ODD, originals, use
from lab.commands.numbers_of_docs import NUMBER, tables
from lab.fuzzing import run_alone
from openmmlab_tools.errors import UserError
from tests.helpers import ROOT
from tests.tools.conftest import Run

# As good as float32.
PLAIN = {'torch.float16', 'torch.bfloat16', 'torch.float64', 'torch.float8_e4m3fn', 'torch.float8_e5m2',
         'float8_e8m0fnu', 'parameter', 'turned'}
NO_OPTIONS = {'dino_golden', 'house', 'numbers_of_docs'}


@pytest.mark.parametrize('name', sorted(find_commands().keys() - NO_OPTIONS))
def test_each_command_says_what_it_does_and_is_listed(name: str, run_tool: Run, capsys: pytest.CaptureFixture) -> None:
    assert run_tool(f'lab {name}', '--help') == '0'
    assert f'usage: python -m lab {name} ' in capsys.readouterr().out
    assert run_tool('lab --help') == '' and f'\n  {name} ' in capsys.readouterr().out
    assert run_tool(f'lab {name}x').startswith(f"error: '{name}x' is not a command: did you mean {name}; there are ")


def test_the_sources_of_all_tables_are_named_and_there() -> None:
    sources = [table.source for table in tables()]
    assert len(sources) > 15 and None not in sources
    for source in sources:
        files = re.findall(r'\b(?:tools|configs|demo|examples|projects)/[\w./-]+\.py\b', source)
        files += [f'lab/commands/{name}.py' for name in re.findall(r'-m lab (\w+)', source)]
        assert 'not measured, by' not in source
        assert source.startswith('not measured, ') or 'CONFIG' in source or ' of commit ' in source or files, source
        assert all((ROOT / file).exists() for file in files), source


@pytest.mark.parametrize('pattern', [r'\]\((docs/\S+?)\)', NUMBER.pattern], ids=['links', 'numbers'])
def test_both_readmes_have_the_same(pattern: str) -> None:
    pages = [(ROOT / name).read_text() for name in ('README.md', 'README_zh-CN.md')]
    english, chinese = (sorted(re.findall(pattern, page)) for page in pages)
    assert english and english == chinese


@pytest.mark.slow
@pytest.mark.parametrize('name, count, kinds', [
    ('fuzz_checkpoints', 56, tuple(MUTATIONS)),
    ('fuzz_data --kinds', 50, ('COCO, boxes', 'LabelMe, instances', 'Label maps, semantic', 'config',
                               'records, YOLO'))])
def test_what_is_damaged_ends_in_a_result_or_a_sentence(name: str, count: int, kinds: tuple[str, ...], run_tool: Run,
                                                        tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    name, *option = name.split()
    assert run_tool(f'lab {name}', '--count', count, '--kept', tmp_path / 'kept', *option, *kinds * len(option)) == ''
    rows = re.findall(r'^\| ([\w, ]+) \| (\d+) \| (\d+) \| 0 \| 0 \| 0 \|', capsys.readouterr().out, re.MULTILINE)
    assert [kind for kind, *_ in rows] == [*kinds] and sum(int(one) for _, *found in rows for one in found) == count
    assert sum(bool(int(result)) for _, result, _ in rows) >= 3 and not (tmp_path / 'kept').exists()


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', ODD)
def test_odd_tensors_are_read_or_refused_by_all_that_read_checkpoints(kind: str, tmp_path: Path) -> None:
    content = torch.load(io.BytesIO(originals()['backbone.pth']), weights_only=True)
    name, path = 'stages.0.blocks.0.attn.q.weight', tmp_path / 'a.pth'
    content['state_dict'][name] = ODD[kind](content['state_dict'][name])
    torch.save(content, path)
    with nullcontext() if kind in PLAIN else pytest.raises(UserError, match=r'a\.pth .*\.$'):
        use(path)


@pytest.mark.parametrize(('call', 'outcome'), [
    (lambda: None, 'result'), (lambda: sys.exit('a is 1: take 2.'), 'sentence'),
    (lambda: sys.exit('no\nsentence'), 'other error'), (lambda: 1 / 0, 'other error'),
    (lambda: time.sleep(60), 'hung'),
    (lambda: bytes(3 << 30), 'other error'), (lambda: os.kill(os.getpid(), signal.SIGKILL), 'crashed')])
def test_how_a_case_ends_is_noticed(call: Callable[[], object], outcome: str) -> None:
    assert run_alone(call, memory=1 << 30, seconds=1).outcome == outcome


@pytest.mark.slow
def test_a_killed_rank_costs_nothing_but_iterations(run_tool: Run, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture) -> None:
    assert run_tool('lab faults', '--count', 1, '--kinds', 'rank 1 killed', '--work-dir', tmp_path) == ''
    printed = capsys.readouterr().out
    assert 'survived=True' in printed and 'starts=1, equal=True)' in printed  # torchrun has started the ranks again
    assert '\n| rank 1 killed | 1 | 1 | ' in printed


def test_the_share_of_padding(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    images = [dict(width=width, height=height) for width, height in [(640, 480), (640, 416)] * 4 + [(480, 640)] * 8]
    (tmp_path / 'a.json').write_text(json.dumps(dict(images=images)))
    assert run_tool('lab padding_share', tmp_path / 'a.json', '--scale', 320, 240, '--batch-sizes', 8,
                    '--epochs', 2) == ''
    # Landscapes are 320 x 240 and 320 x 208, padded to 320 x 256 and 320 x 224; portraits are padded to 320 x 256.
    own, alone, together = 4 * 240 + 4 * 208 + 8 * 240, 4 * 256 + 4 * 224 + 8 * 256, 16 * 256
    shares = ' | '.join(f'{1 - a / b:.1%}' for a, b in ((own, together), (own, alone), (alone, together)))
    assert f'\n| 8 | yes | {shares} | 1.5 |' in capsys.readouterr().out
