"""At which scale images and tiles are shown, beside training, and what is told."""
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mmdet.datasets.transforms import PackDetInputs, RandomFlip, Resize
from mmengine.config import Config
from mmengine.dataset import Compose
from PIL import Image

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.data.scales import KEY, Scales, TileScale
from openmmlab_tools.hooks import ScaleHook
from openmmlab_tools.registry import in_scope
from tests.helpers import Models

LARGE = dict(size=[1536, 2048], scales=[0.2, 0.25])  # images of training, shown at 480 x 360


def run(resize: dict, meta: dict, scale: TileScale | None, size: tuple[int, int], cfg: dict = {},
        whole: tuple[int, int] | None = None) -> tuple[int, int]:
    """The size at which an image or a tile is shown; it is shown twice, because what is told is told once."""
    pipeline = Compose([Resize(**{'keep_ratio': True, **resize}), RandomFlip(prob=0.), PackDetInputs()])
    scales = Scales(pipeline.transforms, {KEY: meta} if meta else {}, Config(cfg))
    for _ in range(2):
        with in_scope('mmdet'), scales.of_tiles(scale, size, whole or size):
            shown = pipeline(dict(img=np.zeros((*size, 3), np.uint8), img_shape=size, ori_shape=size))
    assert len(pipeline.transforms) == 4 and pipeline.transforms[0].scale == resize.get('scale')
    return tuple(shown['inputs'].shape[1:])


def infos(log: list[tuple[str, str]]) -> list[str]:
    return [text for level, text in log if level == 'INFO']


FAR = ('note: images are shown at {} times their size, but training shows images with 2048 x 1536 pixels at 0.2 to '
       '0.25 times their size: predict in tiles, which are shown as in training, such as --tile 2048.')


@pytest.mark.parametrize('resize, meta, scale, size, expected, told', [
    (dict(scale=(480, 480)), LARGE, 'train', (512, 512), (120, 120),
     ['Tiles are shown at 0.234 times their size, as images of 2048 x 1536 pixels in training; the config would show '
      'them at 0.938 (--tile-scale config).']),
    (dict(scale=(480, 480)), LARGE, 'config', (512, 512), (480, 480),
     ['note: images are shown at 0.938 times their size, but training shows images with 2048 x 1536 pixels at 0.2 to '
      '0.25 times their size: leave out --tile-scale.']),
    (dict(scale=(480, 480)), LARGE, 0.25, (512, 400), (128, 100), ['Tiles are shown at 0.25 times']),
    (dict(scale=(960, 960)), LARGE, 'train', (512, 512), (128, 128), ['Tiles are shown at 0.25']),  # none was larger
    (dict(scale=(256, 256), keep_ratio=False), dict(LARGE, scales=[0.1, 0.2]), 'train', (512, 512), (85, 64),
     ['Tiles']),
    (dict(scale=(480, 480)), LARGE, None, (512, 512), (480, 480), [FAR.format('0.938')]),
    (dict(scale=(480, 480)), LARGE, None, (1500, 1500), (480, 480), []),  # 0.32, not beyond a factor of 1.5
    (dict(scale=(480, 480)), {}, 'train', (512, 512), (480, 480),
     ['Tiles are shown at 0.938 times their size, because neither the checkpoint nor the data of the config shows']),
    (dict(scale=(480, 480)), {}, None, (512, 512), (480, 480), []),
    (dict(scale_factor=1.5), {}, 'train', (512, 512), (768, 768), []),  # the same for all sizes
    (dict(scale_factor=1.5), LARGE, None, (512, 512), (768, 768), [FAR.format('1.5')])])
def test_tiles_are_shown_as_in_training_and_what_is_far_from_it_is_told_once(
        resize: dict, meta: dict, scale: TileScale | None, size: tuple[int, int], expected: tuple[int, int],
        told: list[str], log: list[tuple[str, str]]) -> None:
    assert run(resize, meta, scale, size) == expected
    assert [text[:len(words)] for text, words in zip(infos(log), told, strict=True)] == told


@pytest.mark.parametrize('scale, tile, whole, expected', [
    ((360, 360), 180, 360, 180),  # as in the whole image; an image of 180 pixels would be shown at twice its size
    ((720, 720), 180, 360, 360), ((100, 100), 180, 360, 100), ((500, 500), 1000, 1000, 500),
    ((800, 800), 512, 4000, 512), ((400, 400), 512, 4000, 400)])  # in their own size, or as the config says
def test_tiles_are_not_enlarged_if_the_scale_of_training_is_unknown(
        scale: tuple[int, int], tile: int, whole: int, expected: int) -> None:
    assert run(dict(scale=scale), {}, 'train', (tile, tile), whole=(whole, whole)) == (expected, expected)


@pytest.mark.parametrize('step, expected', [
    (dict(type='RandomChoice', transforms=[[dict(type='Resize', scale_factor=factor)] for factor in (0.7, 1.5)]),
     '0.7 to 1.5'),
    (dict(type='Resize', scale=(100, 100), keep_ratio=True), '0.5'), (dict(type='Resize', scale_factor=0.25), '0.25'),
    (dict(type='RandomChoiceResize', scales=[(50, 50), (100, 100)], keep_ratio=True), '0.25 to 0.5'),
    (dict(type='RandomFlip', prob=0.5), '1')])
def test_images_and_pipeline_of_training_that_are_at_hand_tell_its_scale(step: dict, expected: str, tmp_path: Path,
                                                                         log: list[tuple[str, str]]) -> None:
    for index in range(30):
        Image.new('RGB', (200, 100)).save(tmp_path / f'{index}.png')
    cfg = dict(train_dataloader=dict(dataset=dict(
        type='mmdet.CocoDataset', data_prefix=dict(img=str(tmp_path)), pipeline=[step])))
    run(dict(scale=(2000, 2000)), {}, None, (100, 200), cfg)  # a test at another scale
    assert infos(log) == ['note: images are shown at 10 times their size, but training shows images with 200 x '
                          f'100 pixels at {expected} times their size: predict in tiles, which are shown as in '
                          'training, such as --tile 200.']
    own = float(expected.rpartition(' ')[2])
    assert run(dict(scale=(2000, 2000)), {}, 'train', (64, 64), cfg) == (64 * own, 64 * own)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_a_checkpoint_tells_the_images_of_its_training(scope: str, trained: Models, toy_shapes: Path) -> None:
    meta = read_checkpoint(trained[scope].checkpoint)['meta'][KEY]
    sizes = np.array([Image.open(path).size[::-1] for path in (toy_shapes / 'images/training').iterdir()])
    assert (sizes.min(axis=0) <= meta['size']).all() and (meta['size'] <= sizes.max(axis=0)).all()
    assert 0 < meta['scales'][0] <= meta['scales'][1]


@pytest.mark.parametrize('scale, told', [(0.5, 0), (0.7, 0), (0.8, 1), (0.3, 1)])
def test_a_test_tells_of_scales_far_from_training(scale: float, told: int, log: list[tuple[str, str]]) -> None:
    pipeline = Compose([Resize(scale=(100, 100), keep_ratio=True)])
    runner = SimpleNamespace(model=None, cfg=Config(dict(default_scope='mmdet')), test_loop=SimpleNamespace(
        dataloader=SimpleNamespace(dataset=SimpleNamespace(pipeline=pipeline))))
    hook = ScaleHook()
    hook.after_load_checkpoint(runner, dict(meta={KEY: dict(size=[200, 200], scales=[0.5, 0.5])}))
    hook.after_test_iter(runner, 0, outputs=[SimpleNamespace(metainfo=dict(scale_factor=(scale, scale)))] * 2)
    hook.after_test_epoch(runner)
    assert ['set scale or scale_factor of Resize' in text for text in infos(log)] == [True] * told
