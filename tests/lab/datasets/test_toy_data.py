"""The toy datasets: pictures and annotations agree, and are the same for a seed."""
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

import lab.datasets.toy_video as video
from lab.datasets.toy_shapes import CLASSES, LOWER, UPPER, make_image, write_toy_shapes
from lab.datasets.toy_video import HEIGHT, NUM_FRAMES, WIDTH, make_video, write_toy_video
from tests.conftest import ROOT
from tests.tools.conftest import Run, contents, times


@pytest.mark.parametrize('name, write', [('toy_shapes', write_toy_shapes), ('toy_video', write_toy_video)])
def test_the_same_seed_gives_the_same_images_however_many_there_are(
        name: str, write: type, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for seed in (0, 1):
        assert list(write(tmp_path / str(seed), num_train=2, num_val=1, seed=seed)) == [1, 2, 3]
    first, fewer, other = map(contents, (request.getfixturevalue(name), tmp_path / '0', tmp_path / '1'))
    pictures = [name for name in fewer if not name.endswith('.json')]
    assert len(pictures) == (6 if name == 'toy_shapes' else 3 * NUM_FRAMES)
    assert all(first[name] == fewer[name] != other[name] for name in pictures)


def test_instances_and_label_maps_agree(toy_shapes: Path) -> None:
    for split, count in (('training', 8), ('validation', 4)):
        coco = COCO(str(toy_shapes / f'instances_{split}.json'))
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CLASSES)
        assert len(coco.imgs) == count
        for image in coco.imgs.values():
            pixels = cv2.imread(str(toy_shapes / 'images' / split / image['file_name']))
            assert pixels.shape == (image['height'], image['width'], 3)
            labels = np.zeros(pixels.shape[:2], np.uint8)
            for annotation in coco.imgToAnns[image['id']]:
                mask = coco.annToMask(annotation).astype(bool)
                assert mask.sum() == annotation['area'] > 0
                assert not labels[mask].any()  # what is hidden belongs to what hides it
                labels[mask] = annotation['category_id']
                rows, columns = np.nonzero(mask)
                x, y, width, height = annotation['bbox']
                assert (x, y, x + width, y + height) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            written = toy_shapes / 'annotations' / split / f'{image["id"]:06d}.png'
            assert np.array_equal(cv2.imread(str(written), cv2.IMREAD_UNCHANGED), labels)


def test_twins_are_told_apart_by_their_half_alone() -> None:
    for seed in range(30):
        image, _, instances = make_image(np.random.default_rng(seed))
        for label, mask in instances:
            rows, middle = np.nonzero(mask)[0], image.shape[0] / 2
            assert CLASSES[label] not in UPPER or rows.min() < middle
            assert CLASSES[label] not in LOWER or rows.max() > middle
            if CLASSES[label] in UPPER + LOWER:
                assert mask[[0, -1]].sum() < 0.02 * mask.sum()  # not cut by the border, which would be a hint


def test_toy_shapes_are_written_once_by_one_process_and_others_not_over_them(run_tool: Run, tmp_path: Path) -> None:
    root = tmp_path / 'toy'
    writing = write_toy_shapes(root, num_train=2, num_val=1)
    assert next(writing) == 1 and not root.exists()
    command = [sys.executable, ROOT / 'tools/dataset_converters/make_toy_shapes.py', root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert f'toy.unfinished is in use by process {os.getpid()} on ' in done.stderr
    writing.close()
    arguments = ('dataset_converters/make_toy_shapes.py', root, '--num-val', 1, '--num-train')
    assert run_tool(*arguments, 2) == ''
    written = times(root)
    assert len(written) == 2 + 4 + 6 + 3 and run_tool(*arguments, 2) == '' and times(root) == written
    told = run_tool(*arguments, 3)
    assert told.startswith(f'error: {root} exists, but is not a toy dataset of') and 'choose another folder' in told


@pytest.mark.parametrize('seed', range(4))
def test_one_frame_is_the_same_if_all_move_the_other_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, movers, masks = make_video(np.random.default_rng(seed))
    square = list(video.CLASSES).index('square')
    monkeypatch.setattr(video, 'CLASSES', {name: (shape, -way) for name, (shape, way) in video.CLASSES.items()})
    others, mirrored, other_masks = make_video(np.random.default_rng(seed))
    assert np.array_equal(frames[0], others[0]) and np.array_equal(masks[0], other_masks[0])
    assert any(mover.velocity != other.velocity for mover, other in zip(movers, mirrored, strict=True)) == any(
        mover.label != square for mover in movers)


def test_annotations_are_of_what_is_visible_and_count_from_one(toy_video: Path) -> None:
    coco = COCO(str(toy_video / 'instances_training.json'))
    assert [category['name'] for category in coco.loadCats(coco.getCatIds())] == list(video.CLASSES)
    frames = Counter((image['video_id'], image['frame_id']) for image in coco.imgs.values())
    assert frames == Counter((number, frame) for number in range(1, 5) for frame in range(NUM_FRAMES))
    instances: dict[int, set] = {}
    for image in coco.imgs.values():
        assert (toy_video / 'images/training' / image['file_name']).is_file()
        covered = np.zeros((HEIGHT, WIDTH), int)
        for annotation in coco.imgToAnns[image['id']]:
            instances.setdefault(annotation['instance_id'], set()).add((image['video_id'], annotation['category_id']))
            covered += coco.annToMask(annotation)
        assert covered.max(initial=0) <= 1
    assert min(instances) == 1 and all(len(of) == 1 for of in instances.values())
