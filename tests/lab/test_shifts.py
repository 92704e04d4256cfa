"""Predictions before and after shifts of the image, and toy tasks in which the position matters."""
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.commands import corner_classifier
from lab.commands.corner_classifier import PLACES, Classifier, accuracy, draw
from lab.commands.image_shifts import SHIFTS, canvas, compare_boxes, compare_maps, measure
from lab.commands.toy_quarters import quarters, write_toy_quarters
from openmmlab_tools.pictures.prediction import Prediction
from tests.backbones import UPERNET
from tests.helpers import Models, refusal
from tests.pictures import is_drawn, random_image
from tests.tools.conftest import Run, read_rows

SIZE = (64, 64)


def detections(boxes: list[list[float]], labels: list[int], scores: list[float]) -> Prediction:
    return Prediction(SIZE, ('a', 'b'), boxes=np.array(boxes, np.float32).reshape(-1, 4), labels=np.array(labels),
                      scores=np.array(scores))


def test_a_detection_is_kept_if_one_has_its_class_and_its_moved_box_to_a_pixel() -> None:
    before = detections([[0, 0, 9, 9], [10, 10, 20, 20], [30, 30, 40, 40]], [0, 1, 1], [0.9, 0.8, 0.5])
    after = detections([[5, 5, 14, 15], [15, 15, 25, 25], [35, 35, 45, 46.5]], [0, 0, 1], [0.7, 0.8, 0.5])
    assert compare_boxes([(before, after)], 5).kept == pytest.approx(1 / 3)  # the others: a class, and 1.5 pixels
    assert compare_boxes([(before, after)], 5).score_change == pytest.approx(0.2)
    assert compare_boxes([(before, detections([], [], []))], 5).kept == 0
    assert 'finds nothing' in refusal(compare_boxes, [(detections([], [], []), before)], 5)


def test_one_detection_is_the_partner_of_one() -> None:
    twins, single = detections([[0, 0, 9, 9], [0, 0, 9, 9]], [0, 0], [0.9, 0.8]), detections([[1, 1, 10, 10]], [0], [1])
    assert compare_boxes([(twins, single)], 1).kept == 0.5


def test_label_maps_are_compared_by_the_classes_that_are_there() -> None:
    before, after = np.array([[0, 0, 2, 2]]), np.array([[0, 2, 2, 2]])
    assert compare_maps([(before, after)], 4).kept == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert compare_maps([(before, before), (after, after)], 3).kept == 1


@pytest.mark.parametrize(('is_detector', 'moves'), [(True, True), (True, False), (False, True), (False, False)])
def test_what_moves_with_the_picture_agrees_at_all_shifts(is_detector: bool, moves: bool) -> None:
    picture = np.zeros((20, 30, 3), np.uint8)
    picture[4:9, 6:20] = 255

    def predict(pixels: np.ndarray) -> Prediction:
        bright = pixels[..., 0] == 255 if moves else np.pad(picture[..., 0] == 255, ((0, 32), (0, 32)))
        if not is_detector:
            return Prediction(bright.shape, ('a', 'b'), label_map=bright.astype(np.uint8))
        y, x = (np.nonzero(bright.any(axis=axis))[0] for axis in (1, 0))
        return detections([[x[0], y[0], x[-1], y[-1]]], [0], [0.5])

    results = measure(predict, [picture, picture], [0, 0, 0])
    assert [*results] == [*SHIFTS] == [*range(1, 32)]
    assert all(agreement.kept == 1 for agreement in results.values()) == moves
    assert all(agreement.score_change in (None, 0) for agreement in results.values())


def test_a_picture_stays_whole_at_the_largest_shift() -> None:
    picture = random_picture(20, 30)
    pixels = canvas(picture, max(SHIFTS), [1.4, 2, 3])
    assert pixels.shape == (52, 62, 3) and (pixels[0, 0] == (1, 2, 3)).all()
    assert (pixels[31:51, 31:61] == picture).all() and (pixels[51:] == (1, 2, 3)).all()


def random_picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_models_of_both_libraries_are_measured(scope: str, trained: Models, run_tool: Run, tmp_path: Path) -> None:
    (tmp_path / 'images').mkdir()
    random_image(tmp_path / 'images/a.png', 40, 50)
    model = trained[scope]
    assert run_tool('lab image_shifts', tmp_path / 'images', '--model', 'toy', model.config, model.checkpoint,
                    '--score-thr', 0, '--out', tmp_path / 'shifts.png') == ''
    rows = read_rows(tmp_path / 'shifts.csv')
    assert [int(row['shift']) for row in rows] == [*SHIFTS] and is_drawn(tmp_path / 'shifts.png')
    assert all(0 <= float(row['kept']) <= 1 for row in rows)


def test_each_quarter_has_its_class(tmp_path: Path) -> None:
    assert quarters(4, 6).tolist() == 2 * [[0, 0, 0, 1, 1, 1]] + 2 * [[2, 2, 2, 3, 3, 3]]
    assert list(write_toy_quarters(tmp_path / 'toy', num_train=2, num_val=1)) == [1, 2, 3]
    files = sorted(str(path.relative_to(tmp_path / 'toy')) for path in (tmp_path / 'toy').rglob('*.*'))
    assert files == ['annotations/training/000000.png', 'annotations/training/000001.png',
                     'annotations/validation/000000.png', 'images/training/000000.jpg', 'images/training/000001.jpg',
                     'images/validation/000000.jpg', 'made_from.json']


@pytest.mark.parametrize('place', PLACES)
def test_a_shape_lies_in_its_quarter(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corner_classifier, 'background', lambda rng, height, width: np.zeros((height, width, 3)))
    monkeypatch.setattr(corner_classifier, 'add_noise', lambda rng, pixels: pixels)
    images, labels = draw(PLACES[place], 20, seed=0)
    assert images.shape == (20, 3, 96, 96) and set(labels.tolist()) == {0, 1, 2}
    _, rows, columns = torch.nonzero((images != images.min()).any(dim=1), as_tuple=True)
    assert {(2 * row // 96, 2 * column // 96) for row, column in zip(rows.tolist(), columns.tolist(), strict=True)} == {
        PLACES[place]}


def test_gap_without_positions_does_not_depend_on_the_place_of_cells() -> None:
    """Circular shifts by whole cells only change the order of the tokens."""
    torch.manual_seed(0)
    images, labels = draw(PLACES['upper left'], 4, seed=0)
    model = Classifier('gap', None).eval().double()
    moved = images.double().roll((8, 40), dims=(2, 3))
    torch.testing.assert_close(model(moved), model(images.double()), rtol=0, atol=1e-9)
    zeros = Classifier('gap', dict(type='PEG')).eval().double()
    assert (zeros(moved) - zeros(images.double())).abs().max() > 1e-6
    assert accuracy(model.float(), images, model(images).argmax(dim=1)) == 100 and len(labels) == 4


def test_another_library_is_refused(run_tool: Run, tmp_path: Path) -> None:
    (tmp_path / 'config.py').write_text("default_scope = 'mmpretrain'\nmodel = dict()\n")
    random_image(tmp_path / 'a.png', 8, 8)
    assert 'is for mmpretrain, but must be for mmdet or mmseg' in run_tool(
        'lab image_shifts', tmp_path, '--model', 'a', tmp_path / 'config.py', UPERNET)
