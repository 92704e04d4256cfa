"""Large images in tiles: what each tile answers for, and how objects at borders are joined."""
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from openmmlab_tools.pictures.prediction import Prediction
from openmmlab_tools.predict.tiles import Tile, Tiling, join, move_mask


@pytest.mark.parametrize('size', [(1, 65), (64, 64), (65, 200), (999, 100)])
def test_tiles_are_in_the_image_overlap_enough_and_their_cores_are_the_image(size: tuple[int, int]) -> None:
    times = np.zeros(size, int)
    for tile in Tiling(64, 24).tiles(size):
        times[tile.core_rows, tile.core_columns] += 1
        for part, core, length in zip(tile[:2], tile[2:], size, strict=True):
            assert 0 <= part.start <= core.start < core.stop <= part.stop <= length
            assert part.stop - part.start == min(64, length)
            # An object of 24 pixels whose centre is in the core is in the tile.
            assert part.start == 0 or part.start <= core.start - 12
            assert part.stop == length or part.stop >= core.stop + 12
    assert (times == 1).all()


def found_in(tile: Tile, boxes: Sequence, scores: Sequence[float]) -> Prediction:
    """Returns the prediction of a tile, from boxes in pixels of the image."""
    moved = np.float32(boxes).reshape(-1, 4) - np.float32([tile.columns.start, tile.rows.start] * 2)
    return Prediction((64, 64), ('a', 'b'), moved, np.zeros(len(moved), np.int64), np.float32(scores))


def join_seen(objects: list[tuple], tiling: Tiling, size: tuple[int, int], jitter: float, seed: int) -> Prediction:
    """Joins what a detector finds in all tiles: each object, and each piece of one, with its mask; edges are wrong."""
    random, tiles, parts = np.random.default_rng(seed), tiling.tiles(size), []
    for tile in tiles:
        rows, columns = tile.rows, tile.columns
        frame = np.array([columns.start, rows.start] * 2), np.array([columns.stop, rows.stop] * 2)
        seen = np.array(objects).reshape(-1, 4).clip(*frame)
        seen = seen[(seen[:, 2:] - seen[:, :2]).min(axis=1, initial=9) > 0]
        wrong = (seen + random.uniform(-jitter, jitter, seen.shape)).clip(*frame)
        wrong[:, 2:] = np.maximum(wrong[:, 2:], wrong[:, :2])
        masks = np.zeros((len(seen), rows.stop - rows.start, columns.stop - columns.start), np.uint8)
        for mask, (left, top, right, bottom) in zip(masks, seen - frame[0], strict=True):
            mask[top:bottom, left:right] = 1
        parts.append(replace(found_in(tile, wrong, random.random(len(seen))), size=masks.shape[1:],
                             masks=[coco_mask.encode(np.asfortranarray(mask)) for mask in masks]))
    return join(parts, tiles, size)


def corners(masks: list[dict]) -> list[list[int]]:
    return (coco_mask.toBbox(masks).reshape(-1, 4) @ (np.eye(4) + np.eye(4, k=2))).astype(int).tolist()


def test_objects_beside_each_other_are_found_once_and_whole() -> None:
    objects = [(x, y, x + 1 + (x * y) % 22, y + 1 + (x + y) % 24) for y in range(3, 270, 27) for x in range(3, 200, 25)]
    found = join_seen(objects, Tiling(64, 24), (300, 230), 0, 0)
    assert sorted(map(tuple, found.boxes)) == sorted(map(tuple, corners(found.masks))) == sorted(objects)
    assert len(join_seen([], Tiling(64, 24), (300, 230), 0, 0).boxes) == 0


@settings(max_examples=40)
@given(st.integers(0, 2 ** 32), st.integers(90, 300), st.floats(0, 0.6), st.sampled_from([20, 60, 400]))
def test_each_object_is_found_once_in_tiles_of_any_size_with_jitter(seed: int, side: int, share: float, largest: int
                                                                    ) -> None:
    random = np.random.default_rng(seed)
    height, width = size = tuple(random.integers(60, 700, 2).tolist())
    canvas, objects = np.zeros((height, width), bool), []
    for _ in range(60):
        (y, x), (h, w) = random.integers(0, size), random.integers(5, 6 + largest, 2)
        # At a border of tiles without overlap, two objects look like one if both are nearer to it than 2 x JITTER.
        near = np.s_[max(0, y - 14):y + h + 14, max(0, x - 14):x + w + 14]
        if y + h <= height and x + w <= width and not canvas[near].any():
            canvas[y:y + h, x:x + w] = True
            objects.append((x, y, x + w, y + h))
    found = join_seen(objects, Tiling(side, int(share * side)), size, 3, seed)
    assert found.size == size and len(found.boxes) == len(found.masks) == len(objects)
    assert (np.diff(found.scores) <= 0).all()
    assert {*map(tuple, corners(found.masks))} == {*objects}
    np.testing.assert_allclose(found.boxes, np.reshape(corners(found.masks), (-1, 4)), atol=3.001)  # float32 rounds


# Boxes by the left tile and by the right one; the border of their cores is at 448. What is left of them, by scores.
@pytest.mark.parametrize('left, right, expected', [
    ([[400, 9, 496.02, 40]], [[400, 9, 495.98, 40]], [.9]),  # centres at 448.01 and 447.99: no core has any
    ([[440, 9, 460, 40]], [], [.5]), ([], [[436, 9, 456, 40]], [.9]),  # only one tile finds it, beyond its core
    ([[443, 9, 449, 40]], [[449, 12, 455, 43]], [.9]),  # six pixels wide, three pixels of jitter
    ([[300, 9, 480, 40]], [[384, 12, 478, 37]], [.5]),  # a piece, which reaches the core of its tile
    ([[440, 9, 460, 40]], [[440, 90, 460, 120]], [.9, .5]),  # two objects
    ([[430, 9, 460, 40], [436, 9, 466, 40]], [], [.5, .4]),  # what one tile finds is never one object
    ([[430, 9, 460, 40], [437, 9, 467, 40]], [[437, 9, 467, 40], [430, 9, 460, 40]], [.9, .8]),
    ([[100, 9, 512, 40]], [[384, 9, 800, 40]], [.9])])  # longer than the overlap: two pieces
def test_what_two_tiles_find_at_the_border_of_their_cores_is_one_object(
        left: list, right: list, expected: list[float]) -> None:
    tiles = Tiling(512, 128).tiles((512, 896))
    parts = [found_in(tile, boxes, scores[:len(boxes)])
             for tile, boxes, scores in zip(tiles, (left, right), ([.5, .4], [.9, .8]), strict=True)]
    found = join(parts, tiles, (512, 896))
    assert found.scores.tolist() == [pytest.approx(score) for score in expected]
    if len(expected) == 1:
        assert found.boxes[0].tolist() in [*np.float32(left + right).tolist(), [100, 9, 800, 40]]
    other = [parts[0], replace(parts[1], labels=parts[1].labels + 1)]  # of another class, all are objects
    assert len(join(other, tiles, (512, 896)).boxes) >= len(expected)


def test_a_label_map_has_the_classes_of_the_cores() -> None:
    labels = np.random.default_rng(0).integers(0, 300, (150, 90))
    classes, tiles = tuple(map(str, range(300))), Tiling(64, 24).tiles((150, 90))
    parts = []
    for tile in tiles:
        of_cores = np.full_like(labels, 299)  # beside the core
        of_cores[tile.core_rows, tile.core_columns] = labels[tile.core_rows, tile.core_columns]
        parts.append(Prediction((64, 64), classes, label_map=of_cores[tile.rows, tile.columns]))
    assert np.array_equal(join(parts, tiles, (150, 90)).label_map, labels)


def test_label_maps_of_tiles_are_forgotten_once_they_are_copied() -> None:
    tiles = Tiling(64, 24).tiles((300, 90))
    label_maps: list[weakref.ref] = []

    def predictions() -> Iterator[Prediction]:
        for tile in tiles:
            # The first gives its classes to the result, and the last is replaced by this one.
            assert sum(label_map() is not None for label_map in label_maps) <= 2
            label_map = np.full((tile.rows.stop - tile.rows.start, tile.columns.stop - tile.columns.start), 1)
            label_maps.append(weakref.ref(label_map))
            yield Prediction(label_map.shape, ('a', 'b'), label_map=label_map)
            del label_map

    assert len(tiles) > 5
    assert (join(predictions(), tiles, (300, 90)).label_map == 1).all()


@pytest.mark.parametrize('place', [(0, 0), (3, 5), (7, 11)])
def test_a_mask_is_moved(place: tuple[int, int]) -> None:
    for cells in (np.random.default_rng(0).random((13, 9)) < 0.5, np.ones((13, 9), bool), np.zeros((13, 9), bool)):
        moved = move_mask(coco_mask.encode(np.asfortranarray(cells, np.uint8)), *place, (20, 20))
        expected = np.zeros((20, 20), np.uint8)
        expected[place[0]:place[0] + 13, place[1]:place[1] + 9] = cells
        assert np.array_equal(coco_mask.decode(moved), expected)
