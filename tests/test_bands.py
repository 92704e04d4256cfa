"""Four channels of 16 bits on their whole way: from a folder to a config, a model, predictions and pictures."""
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from mmengine.config import Config
from PIL import Image

from cpvt_mm.data_config import new_config
from openmmlab_tools.checkpoints.loading import build_model as build_checked
from openmmlab_tools.data.config_datasets import plan_checks
from openmmlab_tools.data.findings import Kind
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.engine import test as run_test
from openmmlab_tools.own_data.checking import try_sample
from openmmlab_tools.own_data.file_checks import check_files
from openmmlab_tools.predict.predicting import build_inferencer, infer, predict
from tests.backbones import MASK_RCNN, UPERNET
from tests.helpers import ROOT, build_model, refusal, toy_overrides
from tests.made_configs import made
from tests.openmmlab_tools.readers.layouts import dataset
from tests.tools.conftest import Run

SIZE = 64, 80  # height and width


def write_planes(path: Path, values: np.ndarray) -> None:
    tifffile.imwrite(path, values, photometric='minisblack', planarconfig='separate')


def write(root: Path) -> None:
    """Images with a bright square, stored channel by channel, and label maps with the square as an object."""
    rng = np.random.default_rng(0)
    for split in ('train', 'val'):
        for folder in ('images', 'masks'):
            (root / split / folder).mkdir(parents=True)
        for index in range(2):
            top, left = rng.integers(5, 30, 2)
            labels = np.zeros(SIZE, np.uint8)
            labels[top:top + 25, left:left + 40] = 1
            values = rng.normal(1000, 50, (4, *SIZE)) + 3000. * labels
            write_planes(root / split / f'images/{split}{index}.tif', values.astype(np.uint16))
            Image.fromarray(labels).save(root / split / f'masks/{split}{index}.png')


@pytest.mark.slow
@pytest.mark.parametrize('task', ['instances', 'semantic'])
def test_the_whole_way(task: str, tmp_path: Path, run_tool: Run) -> None:
    cfg, lines = made(write, tmp_path, task, iters=2, batch=2, masks='instances' if task == 'instances' else None)
    assert any(line.startswith('Images are loaded whole, with 4 channels of uint16') for line in lines)
    sample = dataset(cfg, 'val')[0]['inputs']
    assert sample.shape == (4, *SIZE) and sample.dtype == torch.float32 and abs(sample.mean()) < 0.5
    assert not run_tool('misc/check_dataset.py', tmp_path / 'my.py', '--out', tmp_path / 'checked')
    channels = json.loads((tmp_path / 'checked/statistics.json').read_text())['datasets'][0]['channels']
    np.testing.assert_allclose([channel['mean'] for channel in channels], cfg.mean, rtol=1e-5)
    assert (tmp_path / 'checked/samples.png').exists()
    train(cfg)
    config, checkpoint = tmp_path / 'work/my.py', tmp_path / 'work/iter_2.pth'
    assert [*tmp_path.glob('work/best_*.pth')]
    assert torch.load(checkpoint, weights_only=False)['state_dict'][
        'backbone.stages.0.patch_embed.proj.weight'].shape[1] == 4
    image = tmp_path / 'data/val/images/val0.tif'
    pixels = np.moveaxis(tifffile.imread(image), 0, -1)
    actual = predict([image, pixels, torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)], config, checkpoint,
                     'cpu')
    for one in actual:
        assert one.size == SIZE and one.plot().shape == (*SIZE, 3)
        for part in ('label_map', 'boxes'):
            np.testing.assert_array_equal(getattr(one, part), getattr(actual[0], part))
    painted = actual[0].plot(labels=False)
    assert painted.dtype == np.uint8 and painted.std() > 10
    inferencer = build_inferencer(load_config(config), checkpoint, 'cpu')
    assert 'has shape (64, 80, 3) (height, width, channels), but' in refusal(
        lambda: list(infer(inferencer, pixels[..., :3])))
    tiled, = infer(inferencer, image, tile=48)
    assert tiled.size == SIZE
    run_test(load_config(config, work_dir=str(tmp_path / 'tested')), checkpoint, tmp_path / 'painted')
    assert Image.open(tmp_path / 'painted/val0.png').size == (2 * SIZE[1], SIZE[0])


@pytest.mark.parametrize('config', [MASK_RCNN, UPERNET])
def test_the_advice_for_images_with_alpha_works(config: Path, data: Path) -> None:
    for path in (data / 'images').rglob('*.*'):
        with Image.open(path) as image:
            image.convert('RGBA').save(path, 'png')

    def read(**preprocessor: Any) -> Config:
        return load_config(config, toy_overrides(data, **{'model.backbone.in_channels': 4, **{
            f'model.data_preprocessor.{key}': value for key, value in preprocessor.items()}}))

    told = refusal(build_checked, read())
    assert 'data_preprocessor.mean has 3 values, but backbone.in_channels is 4: set in_channels=3, or' in told
    assert 'mean=None, std=None and bgr_to_rgb=False' in told
    cfg = read(mean=None, std=None, bgr_to_rgb=False)
    for split in ('train', 'val'):
        pipeline = cfg[f'{split}_dataloader'].dataset.pipeline
        pipeline[:] = [dict(type='openmmlab_tools.LoadBandsFromFile', channels=4), *(
            step for step in pipeline[1:-1] if step.type != 'PhotoMetricDistortion'),
            dict(type='Normalize', mean=[99.] * 4, std=[9.] * 4, to_rgb=False), pipeline[-1]]
        assert not [*try_sample(f'{split}_dataloader', cfg[f'{split}_dataloader'], cfg.default_scope)]


@pytest.mark.parametrize('channels, options, words', [
    (5, {}, 'have 4 or 5 channels, but all images must have the same number'),
    (200, {}, 'have 200 channels, but OpenCV'),
    (4, dict(base=str(ROOT / 'demo/nuclei'), arch=None), 'have 4 channels and are no RGB images with 8 bits, but')])
def test_images_that_no_model_takes_are_refused(channels: int, options: dict[str, Any], words: str, tmp_path: Path
                                                ) -> None:
    write(tmp_path / 'data')
    paths = [*(tmp_path / 'data').rglob('*.tif')]
    for path in paths if channels == 200 else paths[:1]:
        write_planes(path, np.ones((channels, *SIZE), np.uint16))
    assert words in refusal(new_config, tmp_path / 'data', tmp_path / 'my.py', 'instances', masks='instances', **{
        'arch': 'nano', **options})


def test_other_types_and_channels_are_found(tmp_path: Path) -> None:
    cfg, _ = made(write, tmp_path, 'semantic')
    for name, values in (('train1', np.ones((4, *SIZE), np.float32)), ('train0', np.ones((3, *SIZE), np.uint16))):
        write_planes(tmp_path / f'data/train/images/{name}.tif', values)
    plan = plan_checks(cfg, ['train'])[0]
    actual = {(finding.kind, Path(finding.file).stem) for checked in check_files(plan) for finding in checked.findings}
    assert actual == {(Kind.CHANNELS, 'train0'), (Kind.TYPE, 'train1')}


def test_weights_for_colours_are_spread_over_the_channels(tmp_path: Path, fake_released: Callable) -> None:
    weights = fake_released('cpvt_mm://pvtv2-b0')['stages.0.patch_embed.proj.weight']
    cfg, _ = made(write, tmp_path, 'semantic', arch=None)
    backbone = build_model(cfg).backbone
    backbone.init_weights()
    torch.testing.assert_close(backbone.stages[0].patch_embed.proj.weight, weights[:, [0, 1, 2, 0]] * 3 / 4)
