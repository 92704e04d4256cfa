from collections.abc import Callable
from math import log

import pytest


def test_a_classifier_learns_from_images_of_all_sizes(run_example: Callable[..., dict], capsys: pytest.CaptureFixture
                                                      ) -> None:
    run_example('plain_pytorch.py')
    lines = capsys.readouterr().out.splitlines()
    sizes, losses = zip(*(line.split(': loss ') for line in lines), strict=True)
    assert len(set(sizes)) > 5
    assert float(losses[-1]) < log(2) / 2  # half of that of a guess
