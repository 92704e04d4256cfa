from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpvt_mm import CPVT
from cpvt_mm.deployment import SHAPES, check, compare
from cpvt_mm.errors import UserError


def at(*shape: int) -> Callable[[Tensor], bool]:
    return lambda image: (len(image), *image.shape[2:]) == shape


def test_sizes_are_of_all_kinds() -> None:
    assert len(SHAPES) == len(set(SHAPES)) == 10
    assert {batch for batch, *_ in SHAPES} == {1, 2, 3}
    sides = [side for _, *sides in SHAPES for side in sides]
    assert {side % 32 == 0 for side in sides} == {side % 2 == 0 for side in sides} == {True, False}
    assert min(sides) == 1
    assert {(height > width) - (height < width) for _, height, width in SHAPES} == {-1, 0, 1}


@torch.no_grad()
def test_the_same_is_no_difference(small: CPVT) -> None:
    differences = list(compare(small, small))
    assert [difference.shape for difference in differences] == list(SHAPES)
    assert all(difference.largest == 0 and difference.scale > 1 for difference in differences)
    check(differences)


@torch.no_grad()
@pytest.mark.parametrize('wrong, words', [
    (lambda output: output + 0.01, '1.0e-02'),
    (lambda output: output * torch.nan, 'nan'),
    (lambda output: output[..., :-1], 'inf'),
], ids=['other values', 'no numbers', 'another shape'])
def test_one_wrong_size_is_enough(wrong: Callable[[Tensor], Tensor], words: str, small: CPVT) -> None:
    is_wrong = at(3, 97, 61)
    differences = list(compare(small, lambda image: [wrong(x) if is_wrong(image) else x for x in small(image)]))
    assert [difference.shape for difference in differences if not difference.is_small] == [(3, 97, 61)]
    with pytest.raises(UserError, match=rf'differs by {words} on 3 x 97 x 61, and by too much at 1 of 10 sizes'):
        check(differences)


@torch.no_grad()
def test_what_does_not_run_at_a_size_is_an_error(small: CPVT) -> None:
    def run(image: Tensor) -> list[Tensor]:
        if at(1, 33, 47)(image):
            raise RuntimeError('33 is too odd\nand more')
        return small(image)

    with pytest.raises(UserError, match=r'does not run on 1 x 33 x 47 \(33 is too odd\)'):
        list(compare(small, run))


@torch.no_grad()
def test_large_numbers_may_differ_more(small: CPVT) -> None:
    torch.nn.init.constant_(small.norm.weight, 100.)
    [*differences] = compare(small, lambda image: [x + 1e-3 for x in small(image)])
    assert all(difference.largest == pytest.approx(1e-3, rel=0.1) for difference in differences)
    check(differences)
