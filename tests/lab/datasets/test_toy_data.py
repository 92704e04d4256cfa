import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, DefaultScope
from mmengine.structures import InstanceData
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

import lab.datasets.toy_video as video
from lab.datasets.toy_shapes import CLASSES, LOWER, UPPER, make_image, write_toy_shapes
from lab.datasets.toy_video import (
    CIRCLE,
    HEIGHT,
    NUM_FRAMES,
    SPEEDS,
    WIDTH,
    Mover,
    make_mover,
    make_video,
    write_toy_video,
)
from openmmlab_runs.engine import load_config
from tests.conftest import MASK2FORMER_VIS, ROOT, refusal
from tests.tools.conftest import Run, contents, times

SEEDS = range(12)


def test_the_same_seed_gives_the_same_images_however_many_there_are(toy_shapes: Path, tmp_path: Path) -> None:
    roots = dict(again=(8, 4, 0), fewer=(2, 1, 0), other=(2, 1, 1))
    assert all(list(write_toy_shapes(tmp_path / name, *numbers)) for name, numbers in roots.items())
    first, again, fewer, other = map(contents, (toy_shapes, *map(tmp_path.joinpath, roots)))
    assert first == again
    pictures = [name for name in fewer if not name.endswith('.json')]
    assert len(pictures) == 6
    assert all(first[name] == fewer[name] != other[name] for name in pictures)


def test_instances_and_label_maps_agree(toy_shapes: Path) -> None:
    for split, count in (('training', 8), ('validation', 4)):
        coco = COCO(str(toy_shapes / f'instances_{split}.json'))
        assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == list(CLASSES)
        assert len(coco.imgs) == count
        for image in coco.imgs.values():
            pixels = cv2.imread(str(toy_shapes / 'images' / split / image['file_name']))
            assert pixels.shape == (image['height'], image['width'], 3)
            assert all(64 <= side <= 256 for side in pixels.shape[:2])
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
    seen = Counter()
    for seed in range(60):
        image, _, instances = make_image(np.random.default_rng(seed))
        for label, mask in instances:
            name, middle = CLASSES[label], image.shape[0] / 2
            seen[name] += 1
            rows = np.nonzero(mask)[0]
            assert name not in UPPER or rows.min() < middle
            assert name not in LOWER or rows.max() > middle
            if name in UPPER + LOWER:
                assert mask[[0, -1]].sum() < 0.02 * mask.sum()  # not cut by the border, which would be a hint
    assert len(seen) == len(CLASSES) and min(seen.values()) > 10


def test_an_interrupted_run_leaves_no_dataset_and_the_next_one_is_whole(tmp_path: Path) -> None:
    root = tmp_path / 'toy'
    assert next(written for written in write_toy_shapes(root, num_train=3, num_val=1) if written == 2)
    assert not root.exists()
    assert list(write_toy_shapes(root, num_train=3, num_val=1)) == [1, 2, 3, 4]
    assert json.loads((root / 'made_from.json').read_text()) == dict(num_train=3, num_val=1, seed=0)
    assert not root.with_name('toy.unfinished').exists()


def test_one_process_at_a_time_writes_a_dataset(tmp_path: Path) -> None:
    root = tmp_path / 'toy'
    writing = write_toy_shapes(root, num_train=2, num_val=1)
    assert next(writing) == 1
    command = [sys.executable, ROOT / 'tools/dataset_converters/make_toy_shapes.py', root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert f'toy.unfinished is in use by process {os.getpid()} on ' in done.stderr
    assert list(writing) == [2, 3] and not (root / '.lock').exists()


def test_what_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('cv2.imwrite', lambda *args: False)
    assert '000000.jpg cannot be written' in refusal(next, write_toy_shapes(tmp_path / 'toy'))
    assert not (tmp_path / 'toy').exists()


def test_toy_shapes_are_written_once_and_others_not_over_them(run_tool: Run, tmp_path: Path) -> None:
    root, arguments = tmp_path / 'toy', ('dataset_converters/make_toy_shapes.py', tmp_path / 'toy', '--num-train')
    assert run_tool(*arguments, 2, '--num-val', 1) == ''
    written = times(root)
    assert len(written) == 2 + 4 + 6 + 3
    assert run_tool(*arguments, 2, '--num-val', 1) == ''
    assert times(root) == written
    told = run_tool(*arguments, 3)
    assert told.startswith(f'error: {root} exists, but is not a toy dataset of') and 'choose another folder' in told


def mask_of(mover: Mover, frame: int) -> np.ndarray:
    return mover.at(frame).paint(np.zeros((HEIGHT, WIDTH, 3)))


def test_the_same_seed_gives_the_same_frames_however_many_videos_there_are(toy_video: Path, tmp_path: Path) -> None:
    for name, seed in (('again', 0), ('other', 1)):
        assert list(write_toy_video(tmp_path / name, num_train=1, num_val=1, seed=seed)) == [1, 2]
    first, again, other = map(contents, (toy_video, tmp_path / 'again', tmp_path / 'other'))
    frames = [name for name in again if name.endswith('.jpg')]
    assert len(frames) == 2 * NUM_FRAMES
    assert all(first[name] == again[name] != other[name] for name in frames)


@pytest.mark.parametrize('seed', SEEDS)
def test_one_frame_is_the_same_if_all_move_the_other_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, movers, masks = make_video(np.random.default_rng(seed))
    square = list(video.CLASSES).index('square')
    monkeypatch.setattr(video, 'CLASSES', {name: (shape, -way) for name, (shape, way) in video.CLASSES.items()})
    others, mirrored, other_masks = make_video(np.random.default_rng(seed))
    assert np.array_equal(frames[0], others[0]) and np.array_equal(masks[0], other_masks[0])
    assert any(mover.velocity != other.velocity for mover, other in zip(movers, mirrored, strict=True)) == any(
        mover.label != square for mover in movers)


def test_any_frame_has_shapes_in_all_places_whatever_their_direction() -> None:
    mover = make_mover(np.random.default_rng(0))
    places = {tuple(sorted(replace(mover, sprite=replace(mover.sprite, x=x), velocity=velocity).at(frame).x
                           for x in range(CIRCLE))) for velocity in (7, -7) for frame in range(NUM_FRAMES)}
    assert len(places) == 1


@pytest.mark.parametrize('seed', SEEDS)
def test_masks_move_by_the_velocity_in_the_direction_of_the_class_or_backwards_in_the_other(seed: int) -> None:
    mover = make_mover(np.random.default_rng(seed))
    end = mover.sprite.x + mover.velocity * (NUM_FRAMES - 1)
    other = replace(mover, sprite=replace(mover.sprite, x=end), velocity=-mover.velocity)
    for frame in range(NUM_FRAMES):
        assert mover.at(frame).x == pytest.approx(other.at(NUM_FRAMES - 1 - frame).x)
    direction = list(video.CLASSES.values())[mover.label][1]
    assert SPEEDS[0] <= abs(mover.velocity) <= SPEEDS[1] and mover.velocity * direction >= 0
    mover = replace(mover, sprite=replace(mover.sprite, x=CIRCLE / 2))
    before, after = mask_of(mover, 0), mask_of(mover, 1)
    assert before.sum() > 60 and np.array_equal(after, np.roll(before, mover.velocity, axis=1))


def test_what_leaves_comes_back_after_a_frame_out_of_sight() -> None:
    mover = replace(make_mover(np.random.default_rng(3)), velocity=SPEEDS[1])
    seen = [mask_of(mover, frame) for frame in range(CIRCLE)]
    assert sum(was.any() and not now.any() for was, now in pairwise(seen)) >= SPEEDS[1] - 1  # so many rounds
    assert not any(was[:, -1].any() and now[:, 0].any() for was, now in pairwise(seen))


def test_annotations_are_of_what_is_visible_and_count_from_one(toy_video: Path) -> None:
    coco = COCO(str(toy_video / 'instances_training.json'))
    assert [category['name'] for category in coco.loadCats(coco.getCatIds())] == list(video.CLASSES)
    assert [one['id'] for one in coco.dataset['videos']] == [1, 2, 3, 4]
    frames = Counter((image['video_id'], image['frame_id']) for image in coco.imgs.values())
    assert frames == Counter((number, frame) for number in range(1, 5) for frame in range(NUM_FRAMES))
    instances: dict[int, set] = {}
    for image in coco.imgs.values():
        assert (toy_video / 'images/training' / image['file_name']).is_file()
        covered = np.zeros((HEIGHT, WIDTH), int)
        for annotation in coco.imgToAnns[image['id']]:
            assert annotation['video_id'] == image['video_id'] and annotation['area'] > 0
            instances.setdefault(annotation['instance_id'], set()).add((image['video_id'], annotation['category_id']))
            covered += coco.annToMask(annotation)
        assert covered.max(initial=0) <= 1
    assert min(instances) == 1 and all(len(of) == 1 for of in instances.values())


def test_a_dataset_that_is_there_stays(tmp_path: Path) -> None:
    root = tmp_path / 'toy'
    assert list(write_toy_video(root, num_train=1, num_val=1)) == [1, 2]
    assert not list(write_toy_video(root, num_train=1, num_val=1))
    assert 'remove it, or choose another folder' in refusal(next, write_toy_shapes(root, num_train=1, num_val=1))


@pytest.mark.parametrize('swapped', [False, True])
def test_mmdets_metric_is_of_these_classes_and_sees_directions(swapped: bool, toy_video: Path) -> None:
    """The ground truth as a prediction, as it is and with directions swapped."""
    cfg = load_config(MASK2FORMER_VIS)
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(dict(cfg.val_dataloader.dataset, data_root=f'{toy_video}/'))
    assert dataset.metainfo['classes'] == tuple(video.CLASSES)
    evaluator = Evaluator(dict(cfg.val_evaluator, metric_items=['mAP']))
    evaluator.dataset_meta = dataset.metainfo
    labels = set()
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        assert len(sample) == NUM_FRAMES
        for frame in sample:
            found = frame.instances
            labels |= {one['bbox_label'] for one in found}
            predicted = [(1, 0, 3, 2, 4)[one['bbox_label']] if swapped else one['bbox_label'] for one in found]
            masks = [coco_mask.decode(one['mask']) for one in found]
            frame.pred_track_instances = InstanceData(
                labels=torch.tensor(predicted, dtype=torch.long), scores=torch.ones(len(found)),
                masks=torch.from_numpy(np.array(masks, bool).reshape(-1, HEIGHT, WIDTH)),
                bboxes=torch.tensor([one['bbox'] for one in found]).reshape(-1, 4),
                instances_id=torch.tensor([one['instance_id'] for one in found], dtype=torch.long))
        evaluator.process([sample])
    assert labels == set(range(len(video.CLASSES)))
    ap = evaluator.evaluate(len(dataset))['youtube_vis/segm_mAP']
    assert ap == pytest.approx(1 / len(labels) if swapped else 1, abs=1e-3)
