"""Modules of OpenMMLab import packages when they use them, and then work as if they had imported them at once."""
import ast
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from openmmlab_tools.compat.late_imports import IMPORTERS
from tests.helpers import with_forks

Run = Callable[[str], CompletedProcess]
PACKAGES = sorted({*IMPORTERS.values()})  # dots only in names of torch
LIBRARIES = ('mmengine', 'mmdet', 'mmseg')
pytestmark = pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason=f'needs {", ".join(PACKAGES)}')

IMPORTS = """
import builtins, sys
from contextlib import nullcontext
from openmmlab_tools.compat.late_imports import LateImports, late_imports
before = builtins.__import__
with {context}():
    import mmengine.optim, mmdet.models, mmdet.datasets, mmdet.evaluation, mmseg.models, mmseg.datasets
assert builtins.__import__ is before and LateImports not in sys.meta_path
"""
# Where mmdet expects it; newer versions have moved it.
CHUNKING = """
import transformers.modeling_utils, transformers.pytorch_utils
transformers.modeling_utils.apply_chunking_to_forward = transformers.pytorch_utils.apply_chunking_to_forward
"""
# What each module does with its package.
USES = """
import inspect, json, pickle
import numpy as np, torch
from mmengine.registry import OPTIMIZERS
from mmdet.models.data_preprocessors import reid_data_preprocessor
from mmdet.models.dense_heads import atss_vlfusion_head, paa_head
from mmdet.models.language_models import bert
from mmdet.models.utils import BertEncoderLayer, vlfuse_helper
from mmdet.registry import MODELS, TASK_UTILS, TRANSFORMS

weight = torch.nn.Parameter(torch.ones(3, 3))
optimizer = OPTIMIZERS.build(dict(type='Adafactor', params=[weight], lr=.1, relative_step=False))
weight.square().sum().backward()
optimizer.step()

torch.manual_seed(0)
small = dict(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
layer = BertEncoderLayer(vlfuse_helper.BertConfig(**small, attn_implementation='eager')).eval()
hidden = torch.randn(1, 4, 8)
fused = layer.feed_forward_chunk(layer.attention.self(hidden)[0])
copied = pickle.loads(pickle.dumps(layer))

open('vocab.txt', 'w').write('\\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'cat', 'dog', '.', 'a']))
import transformers
transformers.BertModel(bert.BertConfig(**small)).save_pretrained('.')
transformers.BertTokenizerFast('vocab.txt').save_pretrained('.')
language = MODELS.build(dict(type='BertModel', name='.', max_tokens=6)).eval()
embedded = language(['a cat . a dog'])['embedded']
sampled = TRANSFORMS.build(dict(type='RandomSamplingNegPos', tokenizer_name='.')).tokenizer.tokenize('a cat')

from mmdet.models.task_modules.tracking.kalman_filter import KalmanFilter
filtered = KalmanFilter().update(np.ones(8), np.eye(8), np.ones(4))[0]
from mmdet.models.task_modules.assigners import hungarian_assigner
pairs = hungarian_assigner.linear_sum_assignment([[1, 2], [0, 5]])
from mmseg.models.backbones import beit
between = beit.interpolate.interp1d([0, 1], [0., 2.])(.5)
from mmseg.models.backbones.timm_backbone import TIMMBackbone
features = type(TIMMBackbone('resnet18', pretrained=False).timm_model).__name__
from torchvision.ops import roi_align
pooled = roi_align(torch.arange(16.).view(1, 1, 4, 4), [torch.tensor([[0., 0, 4, 4]])], 2)

track = np.array([[frame, 0, frame, frame, frame + 2, frame + 3, 1] for frame in (0., 1, 2, 5, 6)])
tracks = TASK_UTILS.build(dict(type='InterpolateTracklets', min_num_frames=2, use_gsi=True)).forward(track)
mixture = paa_head.skm.GaussianMixture(2, random_state=0).fit([[0.], [.1], [5.], [5.1]])

reid = MODELS.build(dict(type='BaseReID', backbone=dict(type='ResNet', depth=18), head=dict(
    type='mmdet.LinearReIDHead', num_fcs=0, in_channels=512, fc_channels=4, out_channels=4, num_classes=2,
    loss_cls=dict(type='mmpretrain.CrossEntropyLoss'), norm_cfg=None, act_cfg=None)))
hot = reid_data_preprocessor.batch_label_to_onehot(torch.tensor([1]), [1], 2)
head = MODELS.get('ATSSVLFusionHead')

import mmpretrain.models, sklearn.gaussian_process
print(json.dumps(dict(
    numbers=[x.tolist() for x in (
        weight, fused, embedded, tracks, mixture.means_, hot, filtered, *pairs, between, pooled)],
    texts=[*sampled, features],
    types=[type(x).__module__ + '.' + type(x).__qualname__ for x in (optimizer, layer, copied, layer.attention, reid)],
    bases=[[base.__name__ for base in type(x).__mro__] for x in (layer, layer.attention, reid)],
    same=[vlfuse_helper.BertPreTrainedModel.__name__, str(inspect.signature(OPTIMIZERS.get('Adafactor'))),
          *(isinstance(*pair) for pair in (
              (optimizer, transformers.Adafactor), (optimizer, OPTIMIZERS.get('Adafactor')),
              (layer, transformers.BertPreTrainedModel), (layer, BertEncoderLayer),
              (layer, vlfuse_helper.BertPreTrainedModel), (layer, vlfuse_helper.HFBertAttention),
              (reid, MODELS.get('BaseReID')), (reid, mmpretrain.models.ImageClassifier))),
          issubclass(BertEncoderLayer, vlfuse_helper.BertPreTrainedModel),
          issubclass(type(layer), BertEncoderLayer), head.__name__])))
"""


def test_packages_are_not_imported_with_the_modules_that_may_use_them(run_python: Run) -> None:
    modules = f'print(sorted({{*{PACKAGES}}} & sys.modules.keys()))'
    at_once = ['mmpretrain', 'scipy'] if with_forks() else []  # they have further importers, also of data
    for context, imported in (('late_imports', at_once), ('nullcontext', PACKAGES)):
        *_, line = run_python(IMPORTS.format(context=context) + modules).stdout.splitlines()
        assert line == str(imported)


def test_what_a_package_says_about_itself_is_read_at_once(run_python: Run) -> None:
    code = ('import scipy as real; from openmmlab_tools.compat.late_imports import LateModule; '
            'late = LateModule("scipy"); print(late.__version__ == real.__version__, late.__path__ == real.__path__)')
    assert run_python(code).stdout == 'True True\n'


@pytest.mark.slow
def test_what_is_imported_late_works_as_if_it_was_imported_at_once(run_python: Run) -> None:
    results = []
    for code in (IMPORTS.format(context='late_imports') + CHUNKING, CHUNKING + IMPORTS.format(context='nullcontext')):
        done = run_python(code + USES)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout.splitlines()[-1]))
    assert results[0] == results[1]
    assert results[0]['same'].count(True) == 9


@pytest.mark.filterwarnings('ignore:invalid escape sequence')
def test_all_modules_that_import_these_packages_are_known() -> None:
    """Modules of torchvision, and functions that import what they need, do not matter here."""
    importers = {'mmengine.optim.optimizer.builder': {'transformers'}}  # in a function that it calls
    known = {module: {package} for module, package in IMPORTERS.items() if module.startswith(LIBRARIES)}
    for library in LIBRARIES:
        for root in find_spec(library).submodule_search_locations:
            for path in Path(root).rglob('*.py'):
                if '.mim' in path.parts:
                    continue
                module = '.'.join((library, *path.relative_to(root).with_suffix('').parts))
                # This module of the forks reads a list of mmpretrain when it is imported.
                if module != 'mmseg.datasets.onedl' and (used := imported({*ast.parse(path.read_text('utf-8')).body})):
                    importers[module] = used
    assert importers.items() <= known.items()  # some are modules of the other stack


def imported(nodes: set[ast.AST]) -> set[str]:
    """The packages that statements import, also below try and if, but not in functions."""
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module)
        elif isinstance(node, ast.Try | ast.If):
            names += imported({*ast.iter_child_nodes(node)})
    return {name.partition('.')[0] for name in names} & {*PACKAGES}
