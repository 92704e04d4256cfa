import re
from collections.abc import Callable

import pytest
import torch

from cpvt_mm import create_backbone

ADAPTED = re.compile(r'stages\.\d\.blocks\.\d\.attn\.(q|kv|proj)\.weight')


@pytest.mark.usefixtures('float64')
def test_adapters_learn_alone_and_merge_into_the_weights(run_example: Callable[..., dict], capsys: pytest.CaptureFixture
                                                         ) -> None:
    found = run_example('peft_lora.py')
    torch.manual_seed(0)
    before, after = create_backbone(found['NAME']).state_dict(), found['backbone'].state_dict()
    assert before.keys() == after.keys()
    # Of each of its 8 blocks the three weights, to which two matrices belong each.
    learnt = {name for name in found['learnt'] if re.search(r'\.lora_[AB]\.', name)}
    assert learnt == set(found['learnt']) and len(learnt) == 8 * 3 * 2
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ADAPTED.fullmatch(name)} and len(changed) == 8 * 3
    torch.testing.assert_close(found['merged'], found['adapted'])
    losses = re.findall(r'^loss (.+)$', capsys.readouterr().out, re.MULTILINE)
    assert float(losses[-1]) < float(losses[0]) / 2
