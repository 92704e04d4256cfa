"""Every shipped config builds, and says what its name, its sources and its neighbours do; classifiers train, too."""
import copy
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmseg.models.backbones import MixVisionTransformer
from torch import nn

from cpvt_mm.models.create import create_backbone
from cpvt_mm.zoo.members import RELEASED, SCHEME
from openmmlab_tools import engine
from openmmlab_tools.config_walk import arch_of
from openmmlab_tools.engine import load_config, train
from tests.all_encodings import ENCODINGS
from tests.helpers import ROOT, build_model, groups_by_name
from tests.pictures import random_image

# Those of mmpretrain, and all others.
CLASSIFIERS = {path.stem.removesuffix('_16xb64_in1k'): path for path in sorted(ROOT.glob('configs/[!_]*/*_in1k.py'))}
CONFIGS = sorted(path for path in (ROOT / 'configs').glob('[!_]*/*.py') if 'in1k' not in path.stem)
EXAMPLES = [path for path in CONFIGS if path.parent.name == 'position_encodings']
TOYS = [path for path in CONFIGS if path.parent.name == 'toy']
REAL = [path for path in CONFIGS if path.parent.name in ('boxes', 'nuclei', 'camvid') or 'eomt_cpvt' in path.stem]
BASELINES = [path for path in REAL if re.search('r18|mit-b0|(rcnn|upernet)_pvtv2-b0_.*(nuclei|camvid)', path.stem)]
DINO = [path for path in CONFIGS if path.parent.name == 'dino']
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d, nn.SyncBatchNorm)
# How names tell the arch, from the smallest to the largest.
ARCHS = dict(nano='nano', ti='tiny', t='tiny', s='small', b='base', l='large')
ARCH_IN_NAME = re.compile(f'(?:(?:cpvt|dinov[23]|lingbot)-({"|".join(ARCHS)})|(pvtv2-b[02])(?:-pretrained)?)_')
SIZE = 64
TOKENS = ('cls_token', 'dist_token', 'register_tokens')


@cache
def read(path: Path) -> Config:
    """Reads a config for tests that do not change it."""
    return Config.fromfile(path)


@pytest.mark.slow
def test_each_has_the_arch_of_its_name_and_the_guard_against_losses_that_are_not_finite() -> None:
    for path in CONFIGS:
        match, cfg = ARCH_IN_NAME.search(path.stem), read(path)
        arch = match and path not in BASELINES and (match[2] or ARCHS[match[1]])
        assert arch_of(cfg.model.backbone) == (arch or None) or path in TOYS, path
        assert cfg.default_hooks.non_finite_loss == dict(type='openmmlab_tools.NonFiniteLossHook'), path


@pytest.mark.parametrize('path', BASELINES, ids=lambda path: path.stem)
def test_a_baseline_has_another_backbone_and_no_other_difference(path: Path) -> None:
    head, _, *rest = path.stem.split('_')
    cfg, ours = copy.deepcopy(read(path)), copy.deepcopy(read(path.with_name(
        f'{"_".join([head, "pyramid-cpvt-nano", *rest])}.py')))
    assert ours.optim_wrapper.paramwise_cfg.custom_keys.pop('position_encoding') == dict(decay_mult=0.)
    for config in (cfg, ours):
        backbone = config.model.pop('backbone')
        assert not backbone.get('init_cfg') and not backbone.get('drop_path_rate')
        for part in ('neck', 'decode_head', 'auxiliary_head'):
            config.model.get(part, {}).pop('in_channels', None)
    assert cfg.to_dict() == ours.to_dict()


def test_mit_b0_of_mmdet_is_that_of_mmseg_but_for_maps_that_roi_align_can_read() -> None:
    with DefaultScope.overwrite_default_scope('mmdet'):
        backbone = MODELS.build(read(ROOT / 'configs/nuclei/mask-rcnn_mit-b0_fpn_nuclei.py').model.backbone)
    original = MixVisionTransformer(embed_dims=32, num_layers=[2, 2, 2, 2], num_heads=[1, 2, 5, 8]).double().eval()
    original.load_state_dict(dict(zip(original.state_dict(), backbone.state_dict().values(), strict=True)))
    image = torch.rand(1, 3, 70, 100, dtype=torch.float64)
    maps = backbone.double().eval()(image)
    torch.testing.assert_close(list(maps), list(original(image)))
    assert all(map_.is_contiguous() for map_ in maps)


@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.stem)
def test_an_example_switches_the_encoding_and_no_other_key(path: Path) -> None:
    head, arch, encoding, *rest = path.stem.split('_')
    cfg = copy.deepcopy(read(path))
    base = copy.deepcopy(read(ROOT / 'configs/pyramid_cpvt' / f'{"_".join([head, arch, *rest])}.py'))
    assert 'position_encoding' not in base.model.backbone
    expected = {'learnable': 'learnable-2d', 'sinusoidal': 'sinusoidal-2d'}.get(encoding, encoding)
    assert cfg.model.backbone.pop('position_encoding') == ENCODINGS[expected]
    assert cfg.model.backbone.pop('init_cfg') is None and base.model.backbone.pop('init_cfg')
    build_model(load_config(path), 'meta')
    if 'learnable' in encoding and head == 'upernet':  # the table is for the crops
        assert cfg.model.backbone.pop('img_size') == cfg.crop_size[0] == 512
    assert cfg.to_dict() == base.to_dict()


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_those_of_coco_and_ade20k_start_from_released_weights_or_say_why_not(path: Path) -> None:
    backbone = read(path).model.backbone
    family = re.search(r'pyramid-cpvt|dinov\d|lingbot|pvtv2|$', path.stem)[0] or 'deit'  # of CPVT
    arch = arch_of(backbone)
    names = [name for name in RELEASED if name in (f'{family}-{arch}', arch)]
    is_benchmark = ((re.search('coco|ade20k|boxes|pretrained', path.stem) and 'nano' not in path.stem)
                    or 'distilled' in path.stem)
    if is_benchmark and names and path not in EXAMPLES:
        assert [backbone.init_cfg.checkpoint] == [SCHEME + name for name in names]
    else:
        assert 'checkpoint' not in (backbone.get('init_cfg') or {})
        assert not is_benchmark or '# From random weights: ' in path.read_text()


@pytest.mark.parametrize('pattern, lr, weight_decay, length, warm_up, batch, drop_path_rate', [
    ('pyramid_cpvt/mask-rcnn*_1x_*', 2e-4, 1e-4, 12, 500, 16, 0.2),
    ('pyramid_cpvt/retinanet*_1x_*', 1e-4, 1e-4, 12, 500, 16, 0.2),
    ('pyramid_cpvt/mask-rcnn*_amp-ms-crop-3x_*', 1e-4, 0.05, 36, 500, 16, 0.2),
    ('pyramid_cpvt/upernet*_8xb2-160k_*', 6e-5, 0.01, 160000, 1500, 16, 0.2),
    ('pyramid_cpvt/semantic-fpn*_8xb4-80k_*', 1e-4, 1e-4, 80000, None, 32, 0.2),
    ('pvtv2/mask-rcnn*_1x_*', 2e-4, 1e-4, 12, 500, 16, 0.1),
    ('pvtv2/retinanet*_1x_*', 1e-4, 1e-4, 12, 500, 16, 0.1),
    ('pvtv2/[su]*_8xb2-160k_*', 6e-5, 0.01, 160000, 1500, 16, 0.1),
    ('cpvt/mask-rcnn*_1x_*', 1e-4, 0.1, 12, 500, 16, 0.1),
    ('cpvt/upernet*_8xb2-160k_*', 6e-5, 0.01, 160000, 1500, 16, 0.1),
    ('dino/mask-rcnn*_1x_*', 1e-4, 0.1, 12, 500, 16, 0.1),
    ('dino/upernet*_8xb2-160k_*', 6e-5, 0.01, 160000, 1500, 16, 0.1)])
def test_schedules_are_those_of_the_sources(pattern: str, lr: float, weight_decay: float, length: int,
                                            warm_up: int | None, batch: int, drop_path_rate: float) -> None:
    paths = list((ROOT / 'configs').glob(f'{pattern}.py'))
    assert len(paths) >= 2
    for path in paths:
        cfg = read(path)
        optimizer = cfg.optim_wrapper.optimizer
        assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', lr, weight_decay)
        assert cfg.train_cfg.get('max_epochs', cfg.train_cfg.get('max_iters')) == length
        assert [s.end for s in cfg.param_scheduler if s.type == 'LinearLR'] == ([warm_up] if warm_up else [])
        assert cfg.param_scheduler[-1].end == length
        assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size == batch
        assert cfg.model.backbone.drop_path_rate == drop_path_rate
        assert (cfg.optim_wrapper.type == 'AmpOptimWrapper') == ('amp' in path.stem)


def test_layers_of_a_vit_b_learn_at_vitdets_rates() -> None:
    cfg, base = (copy.deepcopy(read(ROOT / f'configs/cpvt/mask-rcnn_cpvt-b_sfp_{rest}_coco.py'))
                 for rest in ('layer-decay_1x', '1x'))
    assert [one.optim_wrapper.pop('constructor') for one in (cfg, base)] == [
        'cpvt_mm.LayerDecayOptimWrapperConstructor', 'openmmlab_tools.MergedOptimWrapperConstructor']
    assert cfg.optim_wrapper.paramwise_cfg.pop('layer_decay_rate') == 0.7 and cfg.to_dict() == base.to_dict()


@pytest.mark.parametrize('path', [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if '-b_' in path.stem or '-l_' in path.stem else [])
    for path in (*CONFIGS, *CLASSIFIERS.values()) if path not in (*EXAMPLES, *BASELINES)
    and not re.search('frozen|eomt_dino', path.stem)])  # the authors of EoMT decay all parameters, see test_eomt.py
def test_position_encodings_tokens_and_norms_have_no_weight_decay(path: Path, log: list[tuple[str, str]]) -> None:
    cfg, is_classifier = load_config(path), path in CLASSIFIERS.values()
    assert not [message for _, message in log if 'is not used' in message]  # each line is read
    cfg.optim_wrapper.type = 'OptimWrapper'
    model = build_model(cfg, 'meta')
    groups = groups_by_name(model, build_optim_wrapper(model, cfg.optim_wrapper))
    keys = list(cfg.optim_wrapper.paramwise_cfg.custom_keys)
    norms = [name for name, module in model.named_modules() if isinstance(module, NORMS)]
    assert cfg.optim_wrapper.optimizer.fused and re.search('Merged|LayerDecay', cfg.optim_wrapper.constructor)
    tokens = [name for name in TOKENS if getattr(model.backbone, name, None) is not None]
    norm = [] if is_classifier or path in REAL or path.stem.startswith('linear_cpvt') else ['norm']
    # These learn at another rate than the rest.
    is_slow = path in REAL and cfg.model.backbone.get('init_cfg')
    rates = (['backbone'] if is_slow else ['head'] if 'segf' in path.stem else []) if 'pvtv2' in path.stem else []
    if re.match('(dino|mask2former)_.*(coco|ade20k)', path.stem):  # the rules of the source, and of the backbone
        keys = [key for key, rule in cfg.optim_wrapper.paramwise_cfg.custom_keys.items() if rule.get('decay_mult') == 0]
        assert ('position_encoding' in keys) == ('cpvt' in path.stem)
    else:
        tables = tokens if is_classifier or 'dinov' in path.stem else []
        assert keys == ['position_encoding', *norm, *tables, *rates]
    for key in keys:
        assert any(key in name for name in groups) or (
            key == 'position_encoding' and re.search('dinov3|pvt', path.stem))
    keys, no_decay = [key for key in keys if key != 'head'], cfg.optim_wrapper.paramwise_cfg.get('norm_decay_mult') == 0
    for name, parameter in model.named_parameters():
        exempt = any(word in name for word in (*keys, *TOKENS)) or (
            is_classifier and parameter.ndim == 1) or (no_decay and name.rpartition('.')[0] in norms)
        assert groups[name]['weight_decay'] == (0 if exempt else cfg.optim_wrapper.optimizer.weight_decay), name
    assert all('norm' in name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))


@pytest.mark.parametrize('path', DINO, ids=lambda path: path.stem)
def test_a_dino_has_the_arguments_of_its_weights_and_its_real_strides(path: Path) -> None:
    model = build_model(load_config(path), 'meta')
    frozen, name = 'frozen' in path.stem, read(path).model.backbone.init_cfg.checkpoint.removeprefix(SCHEME)
    assert any(parameter.requires_grad for parameter in model.backbone.parameters()) != frozen
    patch = model.backbone.patch_size
    with torch.device('meta'):
        expected = create_backbone(name)
        maps = model.extract_feat(torch.empty(1, 3, 16 * patch, 16 * patch))
    assert {name: tensor.shape for name, tensor in model.backbone.state_dict().items()} == {
        name: tensor.shape for name, tensor in expected.state_dict().items()}
    for key in ('norm_eps', 'img_size', 'patch_size'):
        assert getattr(model.backbone, key) == getattr(expected, key)
    assert str(model.backbone.position_encoding) == str(expected.position_encoding)
    strides = [16 * patch / x.shape[-1] for x in maps]
    if hasattr(model, 'rpn_head'):
        anchors = model.rpn_head.prior_generator
        assert strides == [stride for stride, _ in anchors.strides]
        assert [float(base[0, 2] - base[0, 0]) for base in anchors.base_anchors] == pytest.approx(
            [side * 8 * 2**.5 for side in (4, 8, 16, 32, 64)])
        for extractor in (model.roi_head.bbox_roi_extractor, model.roi_head.mask_roi_extractor):
            assert extractor.featmap_strides == strides[:4]
        assert model.data_preprocessor.pad_size_divisor % patch == 0
    else:
        assert model.data_preprocessor.test_cfg == dict(size_divisor=patch)
        assert {side % patch for side in model.data_preprocessor.size} == {0}


@pytest.mark.parametrize('name', CLASSIFIERS)
def test_what_mmpretrain_gives_and_a_model_changes_is_deits_recipe(name: str) -> None:
    cfg, pyramid = Config.fromfile(CLASSIFIERS[name]), name == 'pyramid-cpvt-s'
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', 5e-4 * 1024 / 512, 0.05)
    assert cfg.optim_wrapper.get('clip_grad') == (dict(max_norm=5.) if pyramid else None)
    assert cfg.auto_scale_lr.base_batch_size == 16 * cfg.train_dataloader.batch_size == 1024
    assert cfg.train_dataloader.sampler.type == ('DefaultSampler' if pyramid else 'RepeatAugSampler')
    transforms = {transform.type: transform for transform in cfg.train_dataloader.dataset.pipeline}
    augment, erasing = transforms['RandAugment'], transforms['RandomErasing']
    assert (augment.num_policies, augment.magnitude_level, augment.magnitude_std) == (2, 9, 0.5)
    assert (erasing.erase_prob, erasing.mode) == (0.25, 'rand')
    assert cfg.train_cfg.max_epochs == cfg.param_scheduler[-1].end == 300
    assert cfg.model.backbone.drop_path_rate == (0.2 if pyramid else 0.1)
    assert cfg.default_hooks.non_finite_loss == dict(type='openmmlab_tools.NonFiniteLossHook')


@pytest.fixture(scope='session')
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images to train on and four to validate, of odd sizes, as mmpretrain wants ImageNet."""
    root = tmp_path_factory.mktemp('imagenet')
    (root / 'meta').mkdir()
    for split, number in dict(train=8, val=4).items():
        lines = [f'{("n15075141", "n01440764")[i % 2]}/{split}_{i}.JPEG {(999, 0)[i % 2]}' for i in range(number)]
        for i, line in enumerate(lines):
            image = root / split / line.split()[0]
            image.parent.mkdir(parents=True, exist_ok=True)
            random_image(image, 71 + i, 99 - i)
        (root / 'meta' / f'{split}.txt').write_text('\n'.join(lines))
    return root


def cut_down(path: Path, imagenet: Path, work_dir: Path, **options: object) -> Config:
    """Leaves one epoch of two batches, at a small size; no other change."""
    cfg = load_config(path, {'log_level': 'WARNING', 'default_hooks.logger.interval': 1, 'train_cfg.max_epochs': 1,
                             **options}, str(work_dir))
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(batch_size=4, num_workers=0, persistent_workers=False)
        loader.dataset.data_root = str(imagenet)
        for transform in loader.dataset.pipeline:
            small = dict(RandomResizedCrop=dict(scale=SIZE), ResizeEdge=dict(scale=SIZE + 8),
                         CenterCrop=dict(crop_size=SIZE))
            transform.update(small.get(transform.type, {}))
    return cfg


@pytest.mark.slow
def test_trains_validates_and_tests(imagenet: Path, tmp_path: Path) -> None:
    def config() -> Config:
        return cut_down(CLASSIFIERS['pyramid-cpvt-s'], imagenet, tmp_path)

    train(config())
    scalars = MessageHub.get_current_instance().log_scalars
    assert {key for key in scalars if 'loss' in key} == {'train/loss'}
    assert torch.tensor(scalars['train/loss'].current()).isfinite()
    assert 0 <= scalars['val/accuracy/top5'].current() <= 100
    metrics = engine.test(config(), tmp_path / 'epoch_1.pth', tmp_path / 'painted')
    assert metrics['accuracy/top5'] == scalars['val/accuracy/top5'].current()
    assert {path.name for path in (tmp_path / 'painted').iterdir()} == {f'val_{i}.png' for i in range(4)}
