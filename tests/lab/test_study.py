import json
import os
from pathlib import Path

import pytest
from mmengine.config import Config

from lab.results import Row
from lab.study import Run as StudyRun
from lab.study import TimeIterations, Variant, read_study, set_options
from lab.study_report import plot, to_markdown, write_comparison
from openmmlab_runs.errors import UserError
from openmmlab_runs.loading import backbone_config, build
from tests.conftest import ROOT, UPERNET, refusal, toy_overrides
from tests.pictures import is_drawn
from tests.swap.test_swapping import get
from tests.tools.conftest import Run, read_rows

BASES = ('backbones', 'position_encodings')  # parts of several studies
STUDIES = sorted(path for path in (ROOT / 'configs/_base_/studies').glob('*.py') if path.stem not in BASES)
TEXT = f"""
config = '{UPERNET}'
variants = dict(
    none=dict(options={{'model.backbone.position_encoding': None}}),
    PEG=dict(options={{'model.backbone.position_encoding': dict(type='PEG')}}))
tests = {{f'{{size}} px': {{'test_dataloader.dataset.pipeline.1.scale': (size, size)}} for size in (32, 64)}}
metrics = ['mIoU']
"""


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_names_configs_that_its_options_fit(path: Path, tmp_path: Path) -> None:
    study = read_study(path)
    assert len(study.variants) >= 2
    before = {config: Config.fromfile(config) for config in {variant.config for variant in study.variants.values()}}
    for name, variant in study.variants.items():
        *_, options = study.tests.values()
        cfg = StudyRun(name, variant, 1, tmp_path).load(options)
        assert cfg.randomness.seed == 1
        # These two know their arguments; what else an option changes is in the config already.
        parts = {'model.backbone': build(cfg, backbone_config(cfg)),
                 'model.data_preprocessor': build(cfg, cfg.model.data_preprocessor)}
        for key, value in {**variant.options, **options}.items():
            assert get(cfg, key) == value
            assert key.startswith(tuple(parts)) or get(before[variant.config], key) is not None


def test_the_encodings_on_streets_are_tested_from_half_to_twice_the_size() -> None:
    study = read_study(ROOT / 'configs/_base_/studies/position_encodings_camvid.py')
    [config] = {variant.config for variant in study.variants.values()}
    size = Config.fromfile(config).size[0]
    scales = [options['test_dataloader.dataset.pipeline.1.scale'] for options in study.tests.values()]
    assert [(width / size, height / size) for width, height in scales] == [
        (ratio, ratio) for ratio in (0.5, 0.75, 1, 1.5, 2)]
    assert all(width % 32 == 0 for width, _ in scales)  # so that no padding shows a border


def test_the_encodings_on_whole_streets_are_tested_from_half_to_three_times_the_size() -> None:
    study = read_study(ROOT / 'configs/_base_/studies/position_encodings_camvid_native.py')
    [config] = {variant.config for variant in study.variants.values()}
    width, height = Config.fromfile(config).size
    assert width / height == 480 / 360
    scales = [options['test_dataloader.dataset.pipeline.1.scale'] for options in study.tests.values()]
    assert [(columns / width, rows / height) for columns, rows in scales] == [
        (ratio, ratio) for ratio in (0.5, 0.75, 1, 1.5, 2, 3)]


def test_paths_count_from_the_study(tmp_path: Path) -> None:
    path = tmp_path / 'study.py'
    path.write_text("config = 'a.py'\nvariants = dict(a=dict(), b=dict(config='/b.py', options={'c.d': 1}))\n"
                    "metrics = ['mIoU']")
    study = read_study(path)
    assert study.variants == {'a': Variant(path.with_name('a.py'), {}), 'b': Variant(Path('/b.py'), {'c.d': 1})}
    assert study.tests == {'test': {}}


@pytest.mark.parametrize('text, words', [
    ('variants = [', 'cannot be read (SyntaxError'),
    ("metrics = ['mIoU']", 'study.py is None, but must be a non-empty dict'),
    ('variants = dict(a=dict(config="a.py"))', 'study.py is None, but must be a non-empty list'),
    ("variants = dict(a=dict())\nmetrics = ['mIoU']", 'study.py has no config: set its own'),
    ("variants = dict(a=dict(option={}))\nmetrics = ['mIoU']", "is {'option': {}}, but must be a dict with the keys"),
    ("config = 'a.py'\nvariants = {'a b': dict(), 'a-b': dict()}\nmetrics = ['mIoU']", 'would share the folder a-b')])
def test_what_is_wrong_with_a_study_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / 'study.py').write_text(text)
    assert words in refusal(read_study, tmp_path / 'study.py')


def test_an_option_replaces_what_is_there() -> None:
    cfg = Config(dict(a=dict(b=dict(c=1, d=2)), e=[dict(f=1), dict(f=2)]))
    set_options(cfg, {'a.b': dict(c=3), 'e.1.f': None, 'a.new': [4]})
    assert cfg.to_dict() == dict(a=dict(b=dict(c=3), new=[4]), e=[dict(f=1), dict(f=None)])
    for key in ('no.key', 'e.5.f', 'e.x.f', 'a.b.c.d'):
        assert f'option {key} of the study does not fit config' in refusal(set_options, cfg, {key: 1})


def test_the_median_leaves_out_what_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = TimeIterations()
    assert timer.median() is None
    ends = iter([0., 1., 2., 50., 51.])  # a validation after the third
    monkeypatch.setattr('lab.study.time.perf_counter', lambda: next(ends))
    for i in range(5):
        timer.after_train_iter(None, i)
    assert timer.median() == 1


def rows(*tests: str) -> list[Row]:
    """Two variants with two seeds; the second seed of the second is missing."""
    return [dict(variant=variant, seed=seed, test=test, parameters=1_950_000, seconds_per_iteration=seconds,
                 mIoU=50. + k + 2 * seed, AP=0.25 + 0.1 * k)
            for variant, seed, seconds in (('a', 0, 1.5), ('a', 1, 1.25), ('b', 0, None))
            for k, test in enumerate(tests)]


def test_a_line_of_the_table_is_a_variant_with_the_mean_of_its_seeds() -> None:
    assert to_markdown(rows('x', 'y'), ['mIoU', 'AP']).splitlines() == [
        '| variant | backbone, M params | s / iteration | mIoU, x | mIoU, y | AP, x | AP, y |',
        '|---|---|---|---|---|---|---|',
        '| a | 1.95 | 1.25 | 51.0 ± 1.0 | 52.0 ± 1.0 | 0.250 ± 0.000 | 0.350 ± 0.000 |',
        '| b | 1.95 |  | 50.0 | 51.0 | 0.250 | 0.350 |']
    assert to_markdown(rows('x'), ['mIoU']).startswith('| variant | backbone, M params | s / iteration | mIoU |\n')


def test_a_metric_that_a_variant_lacks_leaves_its_cells_empty(tmp_path: Path) -> None:
    first, *others = rows('x', 'y')
    write_comparison(tmp_path, [first, *({**row, 'mask AP': 0.5} for row in others if row['variant'] == 'a')],
                     ['mask AP'], 'title')
    del first['AP']
    assert to_markdown([dict(first, variant='c'), *others], ['AP']).splitlines()[2] == '| c | 1.95 | 1.50 |  |  |'
    assert plot([dict(first, variant='c'), *others], ['AP'], 'title')


def test_the_plot_has_a_panel_for_each_metric_and_a_line_for_each_variant() -> None:
    figure = plot(rows('x', 'y'), ['mIoU', 'AP'], 'title')
    assert [axes.get_ylabel() for axes in figure.axes] == ['mIoU', 'AP']
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_xticklabels()] == ['x', 'y']
    assert [list(container.lines[0].get_ydata()) for container in first.containers] == [[51, 52], [50, 51]]


def test_no_two_lines_of_a_plot_look_alike() -> None:
    line = dict(seed=0, test='x', mIoU=1.)
    axes = plot([dict(line, variant=str(number)) for number in range(30)], ['mIoU'], 'title').axes[0]
    assert len({(found[0].get_color(), found[0].get_marker()) for found in axes.containers}) == 30


def test_the_csv_has_every_row_and_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    told = refusal(write_comparison, tmp_path, rows('x'), ['mAP'], 'title')
    assert told.startswith("'mAP' of the study is not a metric of its tests: choose from mIoU, AP")
    assert not list(tmp_path.iterdir())
    write_comparison(tmp_path, rows('x', 'y'), ['AP'], 'title')
    columns = ('variant', 'seed', 'test', 'mIoU')
    assert [[row[column] for column in columns] for row in read_rows(tmp_path / 'results.csv')] == [
        [str(row[column]) for column in columns] for row in rows('x', 'y')]
    assert {path.name for path in tmp_path.iterdir()} == {'results.csv', 'results.md', 'results.png'}
    assert is_drawn(tmp_path / 'results.png')


@pytest.fixture
def compare(run_tool: Run, toy_shapes: Path, tmp_path: Path) -> Run:
    """Runs the tool on two small images at a time for two iterations; its work dir is `tmp_path`."""
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2})
    (tmp_path / 'study.py').write_text(TEXT)
    words = ('analysis_tools/compare.py', '--jobs', 1, tmp_path / 'study.py', '--work-dir', tmp_path)
    return lambda *args, **more: run_tool(
        *words, *args, '--cfg-options', *(f'{key}={value}' for key, value in {**options, **more}.items()))


@pytest.mark.slow
def test_trains_and_tests_each_variant_and_goes_on_from_what_is_there(compare: Run, tmp_path: Path) -> None:
    assert compare('--seeds', 0) == ''
    rows = read_rows(tmp_path / 'results.csv')
    assert [(row['variant'], row['seed'], row['test']) for row in rows] == [
        ('none', '0', '32 px'), ('none', '0', '64 px'), ('PEG', '0', '32 px'), ('PEG', '0', '64 px')]
    assert all(0 <= float(row['mIoU']) <= 100 and float(row['seconds_per_iteration']) > 0 for row in rows)
    # A PEG has ten parameters a channel in each stage.
    assert int(rows[2]['parameters']) - int(rows[0]['parameters']) == 10 * sum([32, 64, 128, 192])
    assert (tmp_path / 'results.md').read_text().startswith(
        '| variant | backbone, M params | s / iteration | mIoU, 32 px | mIoU, 64 px |')
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')}
    assert sorted(path.parts[-3] for path in trained) == ['none', 'peg']
    config = Config.fromfile(next((tmp_path / 'none/seed_0').glob('upernet*.py')))
    assert config.model.backbone.position_encoding is None

    results = tmp_path / 'peg/seed_0/results.json'
    content = json.loads(results.read_text())
    backbone, checkpoint, *tests = content['records']
    assert (backbone, checkpoint, len(tests)) == ('backbone', 'checkpoint', 2)
    del content['records'][tests[1]]
    results.write_text(json.dumps(content))
    (tmp_path / 'study.py').write_text(TEXT.replace('(32, 64)', '(32, 64, 96)'))
    assert compare('--seeds', 0) == ''
    again = read_rows(tmp_path / 'results.csv')
    assert [row for row in again if row['test'] != '96 px'] == rows
    assert len(again) == 6
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')} == trained

    assert compare('--only', 'PEG', '--seeds', 0, **{'optim_wrapper.optimizer.lr': 0.5}).startswith(
        f'error: {results} has results with optim_wrapper.optimizer.lr = ')


@pytest.mark.slow
def test_an_error_of_a_run_ends_all_with_its_sentence(compare: Run, tmp_path: Path) -> None:
    error = compare('--only', 'none', **{'train_dataloader.dataset.data_root': tmp_path / 'nowhere'})
    assert error.startswith(f'error: {tmp_path}/nowhere') and 'does not exist' in error


def test_trainings_share_the_cores_unless_told_otherwise(compare: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise UserError(os.environ['OMP_NUM_THREADS'])

    monkeypatch.setattr('lab.work.run_in_processes', refuse)
    monkeypatch.setattr('os.cpu_count', lambda: 6)
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    assert compare('--jobs', 2).strip() == 'error: 1'
    monkeypatch.delenv('OMP_NUM_THREADS')
    assert compare('--jobs', 2).strip() == 'error: 3'
