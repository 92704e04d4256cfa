"""How configs are read and checked, what is added to them, what stays, and that mmengine's runner builds them."""
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseDataPreprocessor, ImgDataPreprocessor
from mmengine.registry import DATA_SAMPLERS, HOOKS, LOOPS, RUNNERS
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import BatchSampler

from openmmlab_tools.checkpoints.loading import check_model
from openmmlab_tools.config_files import read_config
from openmmlab_tools.engine import load_config, prepare
from openmmlab_tools.engine.checks import check_classes, check_metrics, trained_classes
from openmmlab_tools.engine.run_config import of_run, secrets_of
from openmmlab_tools.engine.runner import build_runner
from openmmlab_tools.engine.spelling import is_one_slip_from
from openmmlab_tools.engine.steps import ADDED_HOOKS, OLD_KEYS, READ, for_test, hooks_of
from openmmlab_tools.hooks import DurableCheckpointHook, NonFiniteLossHook
from openmmlab_tools.libraries import require, shipped_configs
from tests.helpers import build_model, refusal, toy_overrides
from tests.openmmlab_tools.toy import DETECTOR, SEGMENTOR


def warnings_of(log: list[tuple[str, str]]) -> list[str]:
    return [message for level, message in log if level not in ('DEBUG', 'INFO')]


def test_options_override_and_the_work_dir_is_named_after_the_config() -> None:
    cfg = load_config(SEGMENTOR, {'model.backbone.depth': 34})
    assert (cfg.model.backbone.depth, cfg.work_dir, cfg.launcher) == (34, f'work_dirs/{SEGMENTOR.stem}', 'none')
    assert load_config(SEGMENTOR, {'work_dir': 'a'}).work_dir == 'a'
    assert load_config(SEGMENTOR, {'work_dir': 'a'}, work_dir='b').work_dir == 'b'


@pytest.mark.parametrize('text, words', [
    (None, 'does not exist'), ("_base_ = './missing.py'", 'missing.py'), ('model = dict(', 'SyntaxError'),
    ("raise ValueError('seven')", '(ValueError: seven)'), ('model = dict()', 'default_scope of config {} is None'),
    ("default_scope = 'mmpose'", "is 'mmpose', but must be the name of its library: set it to 'mmdet' or 'mmseg' or "),
    ("default_scope = None\nmodel = dict(type='EncoderDecoder')", 'default_scope of config {} is None'),
    ("custom_imports = dict(imports=['no_mod'], allow_failed_imports=False)",
     "cannot be read (ModuleNotFoundError: Failed to import no_mod; No module named 'no_mod'): install the package "
     'with the module no_mod, add the folder that has it to PYTHONPATH, or correct the import (custom_imports of a '
     'config).'),
    ("custom_imports = dict(imports=['uses_no_mod'])", 'install the package with the module no_mod, add the folder'),
    ("custom_imports = dict(imports=['uses_no_name'])", 'correct the module that it imports (custom_imports of a con'),
    ('total_epochs = 12', 'has total_epochs, a key of mmdet 2'),
    ("_base_ = {base!r}\nmodle = dict(type='A')", 'modle of config {} is not used: did you mean model.'),
    ('_base_ = {base!r}\ntta_modle = dict()', 'tta_modle of config {} is not used: did you mean tta_model.')])
def test_a_config_that_cannot_be_run_is_refused(tmp_path: Path, text: str | None, words: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'uses_no_mod.py').write_text('import no_mod')
    (tmp_path / 'uses_no_name.py').write_text('from mmengine import no_name')
    path = tmp_path / 'config.py'
    if text:
        path.write_text(text.replace('{base!r}', repr(str(SEGMENTOR))))
    told = refusal(load_config, path)
    assert str(path) in told and words.format(path) in told


def test_a_library_from_a_distribution_of_another_name_is_named_by_its_folder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the forks (onedl) have mmseg, whose scope mmengine then does not know."""
    path, config = tmp_path / 'config.py', 'fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py'
    path.write_text(f"_base_ = 'mmseg::{config}'")

    def not_installed(package: str) -> None:
        raise ModuleNotFoundError(f'{package} is not installed, please install {package} manually')

    monkeypatch.setattr('mmengine.config.config.get_installed_path', not_installed)
    folder = shipped_configs('mmseg')
    for read, name in ((load_config, path), (read_config, str(path)), (read_config, f'mmseg::{config}')):
        assert refusal(read, name).endswith(f': mmengine does not know mmseg:: in this installation; replace mmseg:: '
                                            f'with {folder}/.')
    path.write_text(f'_base_ = {str(folder / config)!r}')
    assert load_config(path).model.type == 'EncoderDecoder'


@pytest.mark.parametrize('options, words', [
    ({'param_scheduler.7.begin': 3}, ' do not fit config'),
    ({'data_root': '/x'}, ' data_root is not used: did you mean train_dataloader.dataset.data_root.'),
    ({'lrr': 1}, ' lrr is not used: did you mean optim_wrapper.optimizer.lr.'),
    ({'zzz': 1}, ' zzz is not used: remove it, or correct its name.')])
def test_options_without_effect_are_refused(options: dict, words: str) -> None:
    assert refusal(load_config, SEGMENTOR, options).startswith(f'--cfg-options{words}')


@pytest.mark.parametrize('line', [
    'max_iter = 3', 'test_pipeline = []', 'modell_1 = dict()',
    # Near to a key, but a variable: the file uses it.
    'models = dict(pretrained=None)\nmodel = models'])
def test_variables_are_normal(line: str, tmp_path: Path, log: list) -> None:
    path = tmp_path / 'own.py'
    path.write_text(f'_base_ = {str(SEGMENTOR)!r}\n{line}\n')
    cfg = load_config(path, {'work_dir': 'a', 'train_cfg.max_iters': 3, 'load_from': None})
    cfg.dump(tmp_path / 'dump.py')  # which has each name once
    assert load_config(tmp_path / 'dump.py').to_dict() == cfg.to_dict()
    assert not warnings_of(log)


@given(st.sampled_from(sorted(READ)), st.integers(0, 30), st.sampled_from('abcz_1'))
def test_one_slip_is_a_letter_more_less_or_other_or_two_swapped(key: str, place: int, letter: str) -> None:
    place %= len(key)
    before, rest = key[:place], key[place:]
    slips = {before + letter + rest, before + rest[1:], before + letter + rest[1:], before + rest[1::-1] + rest[2:]}
    assert all(is_one_slip_from(slip, key) for slip in slips - {key})
    assert not is_one_slip_from(key, key)
    assert not is_one_slip_from(f'{letter}{letter}{key}', key)


def dumps(paths: Iterable[Path], folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Writes configs as they are and as a run has them, if they can be run: their content, and the file."""
    for path in paths:
        try:
            cfg = Config.fromfile(path)
            require(cfg.default_scope)
        except (ImportError, FileNotFoundError, AttributeError):  # of mmpretrain, of another repository, a mere part
            continue
        if not OLD_KEYS.keys() & cfg.keys():  # mmdet ships one whose data are in the style of mmdet 2
            for one in (cfg, prepare(of_run(cfg))):
                assert secrets_of(one) == [], path
                one.dump(folder / 'dump.py')
                yield dict(of_run(one).to_dict(), work_dir='work', launcher='none'), folder / 'dump.py'


STOCK = [path for folder in map(shipped_configs, ('mmdet', 'mmseg'))
         for path in sorted(folder.rglob('*.py')) if '_base_' not in path.parts]
# Detectors with pipelines of several stages, variables near to keys, and a child that misspells its own; a segmentor.
FEW = [path for path in STOCK if path.stem in (
    'yolox_s_8xb8-300e_coco', 'rtmdet_tiny_8xb32-300e_coco', 'centernet_r18_8xb16-crop512-140e_coco',
    'bisenetv2_fcn_4xb4-ohem-160k_cityscapes-1024x1024')]


@pytest.mark.parametrize('paths, share', [
    ([*FEW, DETECTOR, SEGMENTOR], 1),
    pytest.param(STOCK[::18], 0.95, marks=pytest.mark.slow, id='every 18th')])  # all of them take minutes
def test_what_a_run_writes_is_read_without_a_word(paths: list[Path], share: float, tmp_path: Path, log: list) -> None:
    count = 0
    for expected, path in dumps(paths, tmp_path):
        assert load_config(path, work_dir='work').to_dict() == expected
        count += 1
    assert count >= 2 * share * len(paths) > 10 and not warnings_of(log)


CHECKED = 'openmmlab_tools.Checked{}Loop'.format
ADDED = {HOOKS.get(kind) for kind in ADDED_HOOKS.values()}
# Classes of a user.
OWN = {base: registry.register_module(module=type(f'Own{base.__name__}', (base,), {})) for registry, base in (
    (HOOKS, CheckpointHook), (DATA_SAMPLERS, BatchSampler), (LOOPS, IterBasedTrainLoop), (RUNNERS, Runner))}


@pytest.fixture
def cfg(toy_shapes: Path, tmp_path: Path) -> Config:
    return load_config(SEGMENTOR, toy_overrides(toy_shapes), str(tmp_path))


@pytest.mark.parametrize('path', [DETECTOR, SEGMENTOR])
def test_the_given_config_stays_and_a_prepared_one_does_too(path: Path, tmp_path: Path) -> None:
    cfg = load_config(path, {'default_hooks.non_finite_loss': None})
    before = cfg.to_dict()
    prepared = prepare(cfg)
    assert cfg.to_dict() == before != prepared.to_dict()
    assert prepare(prepared).to_dict() == prepared.to_dict()
    # As the runner writes it to the work dir.
    prepared.dump(tmp_path / 'config.py')
    assert prepare(Config.fromfile(tmp_path / 'config.py')).to_dict() == prepared.to_dict()


def test_mmengines_checkpoint_hook_becomes_a_durable_one_and_those_derived_from_it_stay(cfg: Config) -> None:
    cfg.default_hooks.checkpoint.update(type='mmengine.CheckpointHook', interval=7)
    cfg.custom_hooks = [dict(type=CheckpointHook, interval=8), dict(type='OwnCheckpointHook', interval=9)]
    runner = build_runner(prepare(cfg))
    hooks = [(hook.interval, type(hook)) for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    assert sorted(hooks) == [(7, DurableCheckpointHook), (8, DurableCheckpointHook), (9, OWN[CheckpointHook])]
    cfg.default_hooks = None
    assert prepare(cfg).default_hooks.checkpoint == dict(type='openmmlab_tools.DurableCheckpointHook', interval=1)


@pytest.mark.parametrize('default, custom, left_out, patience', [
    ({}, [dict(type='openmmlab_tools.NonFiniteLossHook', patience=6)], set(), [6]),
    (dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook', patience=5)), [], set(), [5]),
    (dict(non_finite_loss=None, checkpoint=None), [], {NonFiniteLossHook, DurableCheckpointHook}, [])])
def test_hooks_run_unless_turned_off(default: dict, custom: list, left_out: set, patience: list, cfg: Config) -> None:
    del cfg.default_hooks.non_finite_loss
    cfg.default_hooks.update(default)
    cfg.custom_hooks = custom
    added = ADDED | {DurableCheckpointHook}
    actual = [hook for hook in build_runner(prepare(cfg)).hooks if isinstance(hook, tuple(added))]
    assert {type(hook) for hook in actual} == added - left_out and len(actual) == len(added - left_out)
    assert [hook.patience for hook in actual if isinstance(hook, NonFiniteLossHook)] == patience


@pytest.mark.parametrize('loop, kind, endless', [
    (dict(by_epoch=False, max_iters=2), CHECKED('IterBasedTrain'), True),
    (dict(type='mmengine.EpochBasedTrainLoop', max_epochs=1), CHECKED('EpochBasedTrain'), False),
    (dict(type='OwnIterBasedTrainLoop', max_iters=2), 'OwnIterBasedTrainLoop', True)])
def test_loops_check_data_and_train_in_seeded_batches(loop: dict, kind: str, endless: bool, cfg: Config) -> None:
    cfg.train_cfg, cfg.val_cfg = loop, {}
    cfg.train_dataloader.update(sampler=dict(type='DefaultSampler', shuffle=True), batch_size=3, drop_last=True)
    prepared = prepare(cfg)
    assert (prepared.train_cfg.type, prepared.val_cfg.type, prepared.test_cfg.type) == (
        kind, CHECKED('Val'), CHECKED('Test'))
    runner = build_runner(prepare(cfg))
    batches = runner.train_dataloader.batch_sampler
    assert (type(batches).__name__, batches.endless, batches.seed) == ('SeededBatchSampler', endless, runner.seed)
    assert (batches.batch_size, batches.drop_last, len(batches)) == (3, True, 2)
    assert type(runner.val_dataloader.batch_sampler) is BatchSampler


@pytest.mark.parametrize('given, becomes', [
    *((name, 'openmmlab_tools.MergedOptimWrapperConstructor') for name in (
        None, 'DefaultOptimWrapperConstructor', 'mmengine.DefaultOptimWrapperConstructor')),
    *((name, name) for name in ('mmdet.LearningRateDecayOptimizerConstructor', 'mmdet.Unknown'))])
def test_mmengines_constructor_of_optimizers_becomes_one_that_merges_groups(given: str | None, becomes: str, cfg: Config
                                                                            ) -> None:
    cfg.optim_wrapper.constructor = given
    assert prepare(cfg).optim_wrapper.constructor == becomes


def test_own_settings_stay(cfg: Config) -> None:
    cfg.val_dataloader.update(own := dict(worker_init_fn=dict(type='own'), disable_subprocess_warning=True))
    prepared = prepare(cfg)
    assert {**prepared.val_dataloader, **own} == prepared.val_dataloader == cfg.val_dataloader
    assert prepared.train_dataloader.worker_init_fn == dict(type='openmmlab_tools.end_worker_with_parent')
    cfg.randomness = dict(seed=None, deterministic=True)
    drawn = prepare(cfg).randomness
    assert isinstance(drawn.seed, int) and drawn.deterministic
    for cfg.randomness, cfg.launcher in ((dict(seed=0), 'none'), (dict(seed=None), 'pytorch')):
        assert prepare(cfg).randomness == cfg.randomness  # processes cannot agree on one


def test_a_config_with_a_runner_of_its_own_gets_it_with_all_hooks_and_seeded_batches(cfg: Config) -> None:
    cfg.runner_type = 'OwnRunner'
    cfg.train_dataloader.batch_sampler = dict(type='OwnBatchSampler', drop_last=True)
    runner = build_runner(prepare(cfg))
    assert isinstance(runner, OWN[Runner])
    assert {type(hook) for hook in runner.hooks} > ADDED
    inner = runner.train_dataloader.batch_sampler.batches
    assert type(inner) is OWN[BatchSampler] and inner.drop_last


def test_classes_are_found_by_their_names(cfg: Config) -> None:
    cfg.default_scope = 'mmdet'
    cfg.val_evaluator = [dict(type='CocoMetric', metric='bbox'), dict(type='DumpDetResults', out_file_path='a.pkl')]
    cfg.test_evaluator = dict(type='mmdet.CocoMetric')
    prepared = prepare(cfg)
    assert [metric.type for metric in prepared.val_evaluator] == ['openmmlab_tools.CocoMetric', 'DumpDetResults']
    assert prepared.test_evaluator.type == 'openmmlab_tools.CocoMetric'
    cfg.optim_wrapper.optimizer.type = 'AdamX'
    assert 'is AdamX, which is not a registered optimizer: did you mean Adam' in refusal(prepare, cfg)


REPORT = dict(type='openmmlab_tools.ReportHook')


@pytest.mark.parametrize('default, custom', [
    (None, []), ({}, []), (dict(report=None), []), (dict(report=dict(type='openmmlab_tools.NoHook')), []),
    (dict(report=REPORT), []), (dict(report=None), [REPORT]), ({}, [REPORT])])
def test_one_hook_writes_the_report_that_a_test_is_asked_for(default: dict | None, custom: list, cfg: Config) -> None:
    """Also if the config turns the hook off, or names it elsewhere."""
    cfg.default_hooks, cfg.custom_hooks = default, custom
    before = cfg.to_dict()
    tested = for_test(cfg, 'a.pth', Path('test'), 'none', False, None, dict(folder='out', at_most_missed=0.))
    hooks = [hook for hook in hooks_of(prepare(tested)) if hook.type == REPORT['type']]
    assert hooks == [dict(REPORT, folder='out', at_most_missed=0.)] and cfg.to_dict() == before
    assert (tested.load_from, tested.resume, tested.work_dir) == ('a.pth', False, 'test')
    plain = for_test(cfg, 'a.pth', Path('test'), 'none', False, None, dict(folder=None, at_most_missed=None))
    assert plain.default_hooks == default and plain.custom_hooks == custom


MAPS = [32, 64, 128, 192]


class StatesChannels(nn.Module):
    """A backbone that states the channels of its images and maps."""

    def __init__(self, in_channels: int = 3, out_indices: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, tuple(MAPS[index] for index in out_indices)


RGB = dict(mean=[1.] * 3, std=[2.] * 3)


@pytest.mark.parametrize('backbone, part, words', [
    ({}, dict(data_preprocessor=ImgDataPreprocessor(**RGB)), ''),
    (dict(in_channels=4), dict(data_preprocessor=ImgDataPreprocessor([1.], [2.])), ''),  # one for all
    (dict(in_channels=4), dict(data_preprocessor=BaseDataPreprocessor()), ''),
    (dict(in_channels=1), dict(data_preprocessor=ImgDataPreprocessor(**RGB)),
     'mean has 3 values, but backbone.in_channels is 1: set'),
    ({}, dict(neck=dict(in_channels=MAPS)), ''), ({}, dict(neck=dict(in_channels=MAPS[::-1])), ''),
    ({}, dict(neck=dict(in_channels=192)), ''),
    ({}, dict(decode_head=dict(in_channels=MAPS[1:3], in_index=[1, 2])), ''),
    (dict(out_indices=(1, 2, 3)), dict(neck=dict(in_channels=MAPS)),
     f'model.neck.in_channels is {MAPS}, but the backbone returns 3 maps of {MAPS[1:]} channels: make them equal, by '
     'model.neck or by model.backbone.'),
    ({}, dict(auxiliary_head=dict(in_channels=[320], in_index=[2])), 'auxiliary_head.in_channels is [320], but the ')])
def test_parts_of_a_model_fit_the_channels_of_its_backbone(backbone: dict, part: dict, words: str) -> None:
    model = nn.Module()
    model.backbone = StatesChannels(**backbone)
    for name, value in part.items():
        setattr(model, name, SimpleNamespace(**value) if isinstance(value, dict) else value)
    student = nn.ModuleDict(dict(student=model))
    if words:
        assert words in refusal(check_model, student)
    else:
        check_model(student)


def test_a_metric_for_masks_needs_a_head_for_them() -> None:
    cfg = Config.fromfile(DETECTOR)
    cfg.model.roi_head.update(mask_head=None, mask_roi_extractor=None)  # Faster R-CNN
    model = build_model(cfg, 'meta')
    cfg.val_evaluator.metric = ['bbox', 'proposal']
    check_metrics(model, dict(val_evaluator=cfg.val_evaluator))
    cfg.val_evaluator.metric = ['bbox', 'segm']
    check_metrics(model, dict(train_evaluator=None))
    both = dict(train_evaluator=None, val_evaluator=cfg.val_evaluator)
    assert refusal(check_metrics, model, both) == (
        "val_evaluator has metric='segm', but the model has no head for masks: set val_evaluator.metric='bbox', or take"
        ' a model with masks, such as Mask R-CNN.')
    check_metrics(build_model(Config.fromfile(DETECTOR), 'meta'), both)


@pytest.mark.parametrize('meta, expected', [
    (dict(dataset_meta=dict(classes=('a', 'b'))), ['a', 'b']), (dict(dataset_meta=dict(classes='ab')), ['ab']),
    (dict(dataset_meta=dict(CLASSES=['a', 'b'])), ['a', 'b']), (dict(CLASSES=('a', 'b')), ['a', 'b']),
    (dict(dataset_meta=None), []), ({}, [])])
def test_classes_are_found_where_libraries_write_them(meta: dict, expected: list[str]) -> None:
    assert trained_classes(meta) == expected


@pytest.mark.parametrize('tested, words', [
    ('axy', "for 3 classes, but the test data has 3 classes with other names: class 1 is 'b' in the"),
    ('ab', "for 3 classes, but the test data has 2 classes with other names: class 2 is 'c' in the"),
    ('abc', None), ('', None)])
def test_other_names_are_a_warning_and_another_order_is_an_error(tested: str, words: str | None,
                                                                 log: list[tuple[str, str]]) -> None:
    check_classes(['a', 'b', 'c'], [*tested], 'x.pth')
    assert [level for level, message in log if words in message] == ['WARNING'] if words else log == []
    assert refusal(check_classes, ['a', 'b', 'c'], ['a', 'c', 'b'], 'x.pth').startswith(
        "checkpoint x.pth has the 3 classes of the test data in another order: class 1 is 'b' in the checkpoint, but ")
