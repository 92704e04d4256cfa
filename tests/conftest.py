"""Fixtures that several test files share.

The tests of `openmmlab_tools` run without `cpvt_mm` and `lab`. So fixtures import these only when a test asks for them.
`tests/openmmlab_tools/conftest.py` has its own `toy_shapes` and `trained`.
"""
import gc
import inspect
import logging
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import mmengine.config.config
import pytest
import torch
from hypothesis import settings
from mmengine.logging import MMLogger
from torch import Tensor, nn

from openmmlab_tools.checkpoints.fetching import cache_file
from tests.helpers import ROOT, Models, train_toys
from tests.pictures import random_image
from tests.state import put_back

# Property tests draw the same examples in each run, so that a change passes or fails for what it changes. Others are
# drawn with `pytest --hypothesis-profile=default`, and by the fuzzers of lab.
settings.register_profile('repeatable', derandomize=True)
settings.load_profile('repeatable')
# A run prints and writes its config four times; yapf's formatting would take half of the time of the run. mmengine's
# `format_python_code` has no effect on configs of the text style.
mmengine.config.config.FormatCode = lambda text, **style: (text, True)


def pytest_collection_finish() -> None:
    # mmengine searches for garbage with each dataset; the imported libraries have none.
    gc.freeze()


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    """A test leaves nothing to the next one, and begins with seeded generators; so do the fixtures of a test."""
    with put_back():
        yield


class SharedFixtures:
    """A fixture that several tests share leaves nothing, either, unless it yields and puts things back by itself."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Generator[None, object, object]:
        if fixturedef.scope == 'function' or inspect.isgeneratorfunction(fixturedef.func):
            return (yield)
        with put_back():
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    # pytest does not call hooks of this file for fixtures of the session, whose folder is the one above.
    config.pluginmanager.register(SharedFixtures())
    hypothesis.settings.register_profile('no times', deadline=None)  # tests never assert a time
    hypothesis.settings.load_profile('no times')


@pytest.fixture
def float64() -> None:
    """Modules and tensors are of float64, for tests of equality: what differs by rounding alone is equal to 1e-7."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def backbone() -> nn.Module:
    """The narrow pyramid with random weights, in eval mode."""
    from tests.backbones import NARROW, PyramidCPVT
    return PyramidCPVT(NARROW).eval()


@pytest.fixture
def log(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Records that mmengine's current logger gets: levels and messages."""
    records: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
    MMLogger.get_instance(request.node.name, log_level='INFO').addHandler(handler)
    return records


@pytest.fixture(scope='session')
def toy_shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small toy dataset: 8 images to train on, 4 to validate."""
    from lab.commands.toy_shapes import write_toy_shapes
    root = tmp_path_factory.mktemp('data') / 'toy_shapes'
    assert list(write_toy_shapes(root, num_train=8, num_val=4)) == list(range(1, 13))
    return root


@pytest.fixture
def data(toy_shapes: Path, tmp_path: Path) -> Path:
    """A copy of the toy dataset to damage."""
    return shutil.copytree(toy_shapes, tmp_path / 'data')


@pytest.fixture
def fake_released(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
                  ) -> Iterator[Callable[..., dict[str, Tensor]]]:
    """Puts random weights where torch's cache has released ones; returns them under the names here."""
    from cpvt_mm import create_backbone
    from cpvt_mm.zoo.families import find_released
    from cpvt_mm.zoo.members import RELEASED, SCHEME
    folder = tmp_path_factory.mktemp('hub')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(folder))

    def write(address: str, **kwargs: object) -> dict[str, Tensor]:
        released = find_released(address)
        weights = create_backbone(address.removeprefix(SCHEME), **kwargs).state_dict()
        # Under a name without a checksum, which random weights do not have.
        url = f'https://example.org/{released.name}.pth'
        monkeypatch.setitem(RELEASED, address.removeprefix(SCHEME), released._replace(files=(url,)))
        file = cache_file(url)
        file.parent.mkdir(exist_ok=True)
        torch.save(dict(model=weights), file)
        return weights

    yield write
    shutil.rmtree(folder)  # 90 MB a test


@pytest.fixture
def run_tool(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a tool, or 'lab NAME', in this process; returns what it exits with: '' or an error's sentence."""

    def run(tool: str, *args: object) -> str:
        tool, *name = tool.split(' ')
        monkeypatch.setattr(sys, 'argv', [tool, *name, *map(str, args)])
        try:
            if tool == 'lab':
                runpy.run_path(str(ROOT / 'lab/__main__.py'), run_name='__main__')
            else:
                runpy.run_path(str(ROOT / 'tools' / tool), run_name='__main__')
        except SystemExit as end:
            return str(end.code)
        return ''

    return run


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess]:
    """Runs code in a new interpreter, in an empty folder."""
    folder = tmp_path / 'empty'
    folder.mkdir()
    return lambda code: subprocess.run([sys.executable, '-c', code], cwd=folder, capture_output=True, text=True,
                                       timeout=300)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of 200 x 100 pixels (width x height)."""
    random_image(tmp_path / 'image.png', 100, 200)
    return tmp_path / 'image.png'


@pytest.fixture(scope='session')
def trained(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The toy detector ('mmdet') and segmentor ('mmseg') after two iterations."""
    from tests.backbones import MASK_RCNN, UPERNET
    return train_toys(MASK_RCNN, UPERNET, toy_shapes, tmp_path_factory.mktemp)


@pytest.fixture(scope='session')
def teacher_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with random weights of the smallest teacher of a distillation."""
    import timm
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp('teacher') / 'lite0.pth'
    torch.save(timm.create_model('tf_efficientnet_lite0').state_dict(), path)
    return path


@pytest.fixture
def random_teacher(teacher_weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the weights of the teachers from pip."""
    monkeypatch.setattr('cpvt_mm.teachers.find_weights', lambda name: teacher_weights)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with ten images, five of them in a subfolder."""
    (tmp_path / 'pictures/more').mkdir(parents=True)
    for number in range(10):
        random_image(tmp_path / 'pictures' / ('more' if number % 2 else '') / f'{number}.png', 130 + number, 140)
    return tmp_path / 'pictures'
