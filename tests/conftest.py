"""Fixtures that several test files share."""
import gc
import inspect
import logging
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import mmengine.config.config
import numpy as np
import pytest
import torch
from hypothesis import settings
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS, DefaultScope
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_mm import CPVT, PyramidCPVT, create_backbone
from cpvt_mm.zoo.families import find_released
from cpvt_mm.zoo.members import RELEASED, SCHEME
from openmmlab_tools.checkpoints.fetching import cache_file
from openmmlab_tools.errors import UserError
from tests.pictures import random_image
from tests.state import put_back

# Property tests draw the same examples in each run, so that a change passes or fails for what it changes. Others are
# drawn with `pytest --hypothesis-profile=default`, and by the fuzzers of lab.
settings.register_profile('repeatable', derandomize=True)
settings.load_profile('repeatable')
ROOT = Path(__file__).parents[1]
# A run prints and writes its config four times; yapf's formatting would take half of the time of the run. mmengine's
# `format_python_code` has no effect on configs of the text style.
mmengine.config.config.FormatCode = lambda text, **style: (text, True)
GOLDEN = ROOT / 'tests/golden'
UPERNET = ROOT / 'configs/toy/upernet_pyramid-cpvt-nano_toy-shapes.py'
MASK_RCNN = ROOT / 'configs/toy/mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes.py'

# The backbones of the reference outputs.
NARROW = dict(embed_dims=(16, 32, 40, 64), depths=(2, 2, 3, 2), num_heads=(1, 2, 5, 8), mlp_ratios=(8, 8, 4, 4),
              sr_ratios=(8, 4, 2, 1))
NARROW_PLAIN = dict(embed_dims=48, depth=4, num_heads=3)

# A backbone of each kind, for tests that try them all.
BACKBONES = {
    'conv': partial(PyramidCPVT, NARROW), 'pool': partial(PyramidCPVT, dict(NARROW, sr_mode='pool')),
    'pvtv2': partial(PyramidCPVT, dict(NARROW, patch_mode='overlap', mlp_mode='conv', stage_norm=True)),
    'plain': partial(CPVT, NARROW_PLAIN)}
WITH_CP = (False, 'selective', True)


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


def build_model(cfg: Config, device: str = 'cpu') -> nn.Module:
    """The model of a config with random weights; on the device 'meta', weights need no memory."""
    with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.device(device):
        return MODELS.build(cfg.model)


def groups_by_name(model: nn.Module, wrapper: OptimWrapper) -> dict[str, dict[str, Any]]:
    """The settings of the optimizer for each parameter, by its name; each must be in one group."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    pairs = [(names[p], group) for group in wrapper.optimizer.param_groups for p in group['params']]
    found = {name: {key: value for key, value in group.items() if key != 'params'} for name, group in pairs}
    assert len(found) == len(pairs)
    return found


@pytest.fixture
def backbone() -> PyramidCPVT:
    """The narrow pyramid with random weights, in eval mode."""
    return PyramidCPVT(NARROW).eval()


def golden_cases(name: str) -> list[tuple[Tensor, list[Tensor]]]:
    """Pairs of an input and its four reference outputs, one for each size."""
    arrays = np.load(GOLDEN / f'{name}_io.npz')
    sizes = [key.removeprefix('input_') for key in arrays if key.startswith('input_')]
    return [(torch.from_numpy(arrays[f'input_{size}']), [torch.from_numpy(arrays[f'out{i}_{size}']) for i in range(4)])
            for size in sizes]


def pretrained(path: Path, cls: type = PyramidCPVT, init_cfg: dict[str, Any] = {},
               **kwargs: object) -> PyramidCPVT | CPVT:
    """A backbone in eval mode that `init_cfg` filled from a file; the narrow one, if no `arch` is given."""
    kwargs = {'arch': NARROW if issubclass(cls, PyramidCPVT) else NARROW_PLAIN, **kwargs}
    model = cls(**kwargs, init_cfg=dict(type='Pretrained', checkpoint=str(path), **init_cfg))
    model.init_weights()
    return model.eval()


@pytest.fixture
def log(request: pytest.FixtureRequest) -> list[tuple[str, str]]:
    """Records that mmengine's current logger gets: levels and messages."""
    records: list[tuple[str, str]] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append((record.levelname, record.getMessage()))
    MMLogger.get_instance(request.node.name, log_level='INFO').addHandler(handler)
    return records


class Operators(TorchDispatchMode):
    """Records the names of all operators that run, and the memory of all tensors that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.bytes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.bytes[StorageWeakRef(storage)] = storage.nbytes()
        return result


def kept_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Bytes that live on after `run`, a forward pass of the model, beside the parameters: for the backward pass."""
    with Operators() as seen:
        outputs = run()
    parameters = {StorageWeakRef(parameter.untyped_storage()) for parameter in model.parameters()}
    assert outputs is not None  # and alive until here
    return sum(count for ref, count in seen.bytes.items() if not ref.expired() and ref not in parameters)


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
    folder = tmp_path_factory.mktemp('hub')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(folder))

    def write(address: str, **kwargs: object) -> dict[str, Tensor]:
        released = find_released(address)
        weights = create_backbone(address.removeprefix(SCHEME), **kwargs).state_dict()
        # Under a name without a checksum, which random weights do not have.
        url = f'https://example.org/{released.name}.pth'
        monkeypatch.setitem(RELEASED, address.removeprefix(SCHEME), released._replace(files={url: 'cpvt_mm'}))
        file = cache_file(url)
        file.parent.mkdir(exist_ok=True)
        torch.save(dict(model=weights), file)
        return weights

    yield write
    shutil.rmtree(folder)  # 90 MB a test


def read_anywhere(path: Path) -> dict[str, Any]:
    """Reads a checkpoint as torch does by itself, without permission for any class."""
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        return torch.load(path, weights_only=True)
    finally:
        torch.serialization.add_safe_globals(allowed)


def refusal(call: Callable[..., object], *args: object, error: type[Exception] = UserError, **kwargs: object) -> str:
    """The message of the error that a call ends with; it must be one line."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert '\n' not in message
    return message


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


def toy_overrides(toy_shapes: Path, **more: object) -> dict[str, Any]:
    """Options for both toy configs: the small dataset, two images a batch, every iteration logged, no slow workers."""
    options = {'train_dataloader.batch_size': 2, 'default_hooks.logger.interval': 1, 'log_level': 'WARNING'}
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        options.update({f'{loader}.dataset.data_root': f'{toy_shapes}/', f'{loader}.num_workers': 0,
                        f'{loader}.persistent_workers': False})
    return {**options, **more}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image of 200 x 100 pixels (width x height)."""
    random_image(tmp_path / 'image.png', 100, 200)
    return tmp_path / 'image.png'


class Trained(NamedTuple):
    """Files that training leaves: the config as it was written to the work dir, and the last checkpoint."""
    config: Path
    checkpoint: Path


# The two toy models after training, by the library.
Models = dict[str, Trained]


@pytest.fixture(scope='session')
def trained(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The toy detector ('mmdet') and segmentor ('mmseg') after two iterations."""
    from openmmlab_tools.engine import load_config, train
    annotations = f'{toy_shapes}/instances_validation.json'
    metrics = {'val_evaluator.ann_file': annotations, 'test_evaluator.ann_file': annotations}
    found = {}
    for scope, config, more in (('mmdet', MASK_RCNN, metrics), ('mmseg', UPERNET, {})):
        folder = tmp_path_factory.mktemp(f'trained_{scope}')
        options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 100}, **more)
        train(load_config(config, options, str(folder)))
        found[scope] = Trained(folder / config.name, folder / 'iter_2.pth')
    return found
