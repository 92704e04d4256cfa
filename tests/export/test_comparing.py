from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from cpvt_mm import CPVT
from cpvt_mm.export.boxes import DETECTION_TOLERANCE
from cpvt_mm.export.comparing import SHAPES, Difference, check
from cpvt_mm.export.comparing import compare as compare_all
from cpvt_mm.export.detector import Detector
from tests.export.test_detector import detector
from tests.helpers import refusal

Outputs = list[Tensor]


def compare(model: nn.Module, run: Callable[[Tensor], Outputs]) -> Iterator[Difference]:
    """Compares one runtime."""
    yield from (one for one, in compare_all(model, dict(torch=run)))


@torch.no_grad()
@pytest.mark.parametrize('wrong, words', [
    (lambda x: x + 0.01, '1.0e-02'), (lambda x: x * torch.nan, 'nan'), (lambda x: x[..., :-1], 'inf')])
def test_one_wrong_size_is_enough(wrong: Callable[[Tensor], Tensor], words: str, small: CPVT) -> None:
    differences = list(compare(small, lambda image: [wrong(x) if len(image) == 3 else x for x in small(image)]))
    assert [difference.shape for difference in differences if not difference.is_small] == [(3, 97, 61)]
    assert f'differs by {words} on 3 x 97 x 61 in torch, and by too much in 1 of 10 comparisons' in refusal(
        check, differences)
    fails = Mock(side_effect=RuntimeError('1 is too odd\nand more'))
    assert 'does not run on 1 x 1 x 1 in torch (RuntimeError: 1 is too odd)' in refusal(list, compare(small, fails))


@torch.no_grad()
def test_the_same_is_no_difference_and_large_numbers_may_differ_more(small: CPVT) -> None:
    differences = list(compare(small, small))
    assert [difference.shape for difference in differences] == list(SHAPES)
    assert all(difference.largest == 0 and difference.scale > 1 for difference in differences)
    check(differences)
    torch.nn.init.constant_(small.norm.weight, 100.)
    [*differences] = compare(small, lambda image: [x + 1e-3 for x in small(image)])
    assert all(difference.largest == pytest.approx(1e-3, rel=0.1) for difference in differences)
    check(differences)


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> Detector:
    """A RetinaNet, to be compared at two sizes; an image has more boxes than it keeps."""
    monkeypatch.setattr('cpvt_mm.export.comparing.SHAPES', ((2, 40, 56), (1, 64, 64)))
    return detector()


def changed(model: Detector, change: Callable[[Outputs], Outputs]) -> Callable[[Tensor], Outputs]:
    """Runs the model, and changes what it finds in images of 64 x 64."""
    @torch.no_grad()
    def run(image: Tensor) -> Outputs:
        outputs = [output.clone() for output in model(image).values()]
        return change(outputs) if image.shape[2:] == (64, 64) else outputs

    return run


def added(output: int, place: int | slice | tuple[int, ...], number: float) -> Callable[[Outputs], Outputs]:
    """Adds to boxes with scores (0), labels (1) or numbers of images (2)."""
    return lambda outputs: outputs[output][place].add_(number) is None or outputs


def with_nan_below_the_threshold(outputs: Outputs) -> Outputs:
    """Adds a box without a place, of a score that need not be found, and of a class of its own."""
    box = (torch.tensor([[torch.nan, 0, 9, 9, 0]]), torch.tensor([99]), torch.tensor([0]))
    return [torch.cat([x, y]) for x, y in zip(outputs, box, strict=True)]


@pytest.mark.parametrize('change, is_fault', [
    *((change, True) for change in (
        added(0, (0, 0), 2e-3), added(0, (0, 4), 2e-3), added(1, 0, 1), added(2, slice(None), 1),
        added(0, (1, 4), torch.nan), with_nan_below_the_threshold,
        lambda outputs: [x[1:] for x in outputs], lambda outputs: [x[:0] for x in outputs],
        lambda outputs: [torch.cat([x, x[:1] + 5 * (i == 0)]) for i, x in enumerate(outputs)])),
    *((change, False) for change in (
        added(0, (0, 0), 5e-4), added(0, (0, 4), 5e-4), lambda outputs: [x.flip(0) for x in outputs]))])
def test_one_wrong_box_is_enough_but_rounding_and_another_order_are_no_fault(
        change: Callable[[Outputs], Outputs], is_fault: bool, boxes: Detector) -> None:
    differences = [first, second] = [*compare(boxes, changed(boxes, change))]
    assert [difference.shape for difference in differences] == [(2, 40, 56), (1, 64, 64)]
    assert first.is_small and first.count > 5 and second.is_small != is_fault
    if is_fault:
        assert ' on 1 x 64 x 64 in torch, and by too much in 1 of 2 comparisons' in refusal(check, differences)
    else:
        assert second.count > 5
        check(differences)


@torch.no_grad()
def test_the_last_of_many_boxes_may_be_another_and_one_at_the_threshold_missing(boxes: Detector) -> None:
    scores = boxes(torch.randn(1, 3, 64, 64))['dets'][:, 4]
    # So many that rounding decides which of two with one score is left out.
    assert len(scores) == boxes.test_cfg.max_per_img
    check(list(compare(boxes, changed(boxes, lambda outputs: [output[:-1] for output in outputs]))))
    lowest = scores.min().item()
    boxes.test_cfg.update(max_per_img=1000, score_thr=lowest)
    limit = lowest + DETECTION_TOLERANCE / 2
    strong = changed(boxes, lambda outputs: [output[outputs[0][:, 4] > limit] for output in outputs])
    check(list(compare(boxes, strong)))
    boxes.test_cfg.score_thr = 1.
    assert 'no box with a score above 1.0, so nothing could be compared: pass an --im' in refusal(
        list, compare(boxes, strong))
