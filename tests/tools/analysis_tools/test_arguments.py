from argparse import ArgumentTypeError, Namespace

import pytest

from cpvt_lab.arguments import check_least, parse_sides
from cpvt_mm.errors import UserError


def test_a_size_is_one_side_or_two() -> None:
    assert parse_sides('512') == (512, 512) and parse_sides('1333x800') == (1333, 800)


@pytest.mark.parametrize('text', ['0', '640x0', '-5', '1.5', '640x', 'x640', '1x2x3', ''])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"size '{text}' is not an image size"):
        parse_sides(text)


def test_numbers_must_be_large_enough() -> None:
    args = Namespace(num_jobs=1, sizes=[3, 0])
    check_least(args, 0, 'num_jobs', 'sizes')
    with pytest.raises(UserError, match='--sizes is 0, but must be at least 1'):
        check_least(args, 1, 'num_jobs', 'sizes')
    with pytest.raises(UserError, match='--num-jobs is 1, but must be at least 2'):
        check_least(args, 2, 'num_jobs')
