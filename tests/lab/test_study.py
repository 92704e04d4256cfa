"""Studies and sweeps: their files, runs and tables, and the stored results of long work."""
from pathlib import Path

import pytest
from mmengine.config import Config

from cpvt_mm import PyramidCPVT
from lab.commands import resolution_sweep
from lab.commands.compare import plot, to_markdown
from lab.results import Results
from lab.study import Run as StudyRun
from lab.study import read_study
from openmmlab_tools import engine
from openmmlab_tools.checkpoints.loading import backbone_config, build
from openmmlab_tools.engine import load_config
from tests.backbones import UPERNET
from tests.helpers import ROOT, Trained, refusal, toy_overrides
from tests.pictures import is_drawn
from tests.swap.test_swapping import get
from tests.tools.conftest import Run, read_rows

BASES = ('backbones', 'distilled', 'peg_ablations', 'peg_in_pvt', 'position_encodings')  # parts of several studies
STUDIES = sorted(path for path in (ROOT / 'configs/_base_/studies').glob('*.py') if path.stem not in BASES)
TEXT = f"""
config = '{UPERNET}'
variants = dict(
    none=dict(options={{'model.backbone.position_encoding': None}}),
    PEG=dict(options={{'model.backbone.position_encoding': dict(type='PEG')}}))
tests = {{f'{{size}} px': {{'test_dataloader.dataset.pipeline.1.scale': (size, size)}} for size in (32, 64)}}
metrics = ['mIoU']
"""
SWEEP = 'lab resolution_sweep'
SLIDE = ('--mode', 'whole', 'slide', '--crop-size', 32, 48, '--stride', 16, 48)


@pytest.mark.slow
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
            # All datasets of mmdet and mmseg know `indices`, which no config sets.
            assert (key.startswith(tuple(parts)) or key == 'train_dataloader.dataset.indices'
                    or get(before[variant.config], key) is not None)


@pytest.mark.parametrize('text, words', [
    ('variants = [', 'cannot be read (SyntaxError'),
    ("variants = dict(a=dict())\nmetrics = ['mIoU']", 'study.py has no config: set its own'),
    ("variants = dict(a=dict(option={}))\nmetrics = ['mIoU']", "is {'option': {}}, but must be a dict with the keys"),
    ("config = 'a.py'\nvariants = {'a b': dict(), 'a-b': dict()}\nmetrics = ['mIoU']", 'would share the folder a-b')])
def test_what_is_wrong_with_a_study_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / 'study.py').write_text(text)
    assert words in refusal(read_study, tmp_path / 'study.py')


def test_a_line_of_the_table_is_a_variant_with_the_mean_of_its_seeds() -> None:
    rows = [dict(variant=variant, seed=seed, test=test, parameters=1_950_000, seconds_per_iteration=seconds,
                 mIoU=50. + k + 2 * seed, AP=0.25 + 0.1 * k)
            for variant, seed, seconds in (('a', 0, 1.5), ('a', 1, 1.25), ('b', 0, None))
            for k, test in enumerate('xy')]
    assert to_markdown(rows, ['mIoU', 'AP']).splitlines()[::2] == [
        '| variant | backbone, M params | s / iteration | mIoU, x | mIoU, y | AP, x | AP, y |',
        '| a | 1.95 | 1.25 | 51.0±1.0 | 52.0±1.0 | 0.250±0.000 | 0.350±0.000 |']
    del rows[-1]['mIoU'], rows[-2]['mIoU']
    assert to_markdown(rows, ['mIoU']).endswith('| b | 1.95 |  |  |  |\n')
    axes, _ = plot(rows, ['mIoU', 'AP']).axes
    assert [list(container.lines[0].get_ydata()) for container in axes.containers] == [[51, 52], []]


@pytest.mark.slow
def test_trains_and_tests_each_variant_and_goes_on_from_what_is_there(run_tool: Run, toy_shapes: Path, tmp_path: Path
                                                                      ) -> None:
    def compare(**more: object) -> str:
        options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2, **more})
        return run_tool('lab compare', '--jobs', 1, tmp_path / 'study.py', '--work-dir', tmp_path,
                        '--seeds', 0, '--cfg-options', *(f'{key}={value}' for key, value in options.items()))

    (tmp_path / 'study.py').write_text(TEXT)
    assert compare() == ''
    rows = read_rows(tmp_path / 'results.csv')
    assert [(row['variant'], row['seed'], row['test']) for row in rows] == [
        ('none', '0', '32 px'), ('none', '0', '64 px'), ('PEG', '0', '32 px'), ('PEG', '0', '64 px')]
    assert all(0 <= float(row['mIoU']) <= 100 and float(row['seconds_per_iteration']) > 0 for row in rows)
    # A PEG has ten parameters a channel in each stage.
    assert int(rows[2]['parameters']) - int(rows[0]['parameters']) == 10 * sum([32, 64, 128, 192])
    assert is_drawn(tmp_path / 'results.png')
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')}
    assert sorted(path.parts[-3] for path in trained) == ['none', 'peg']
    (tmp_path / 'study.py').write_text(TEXT.replace('(32, 64)', '(32, 64, 96)'))
    assert compare() == ''
    again = read_rows(tmp_path / 'results.csv')
    assert [row for row in again if row['test'] != '96 px'] == rows and len(again) == 6
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')} == trained
    assert 'seed_0/results.json has results with optim_wrapper.optimizer.lr = ' in compare(
        **{'optim_wrapper.optimizer.lr': 0.5})


def test_a_recipe_claims_the_folder_and_another_goes_on_from_what_is_there(tmp_path: Path) -> None:
    recipe = dict(lr=float('nan'), model=dict(depths=(2, 3), path=Path('a')))
    results = Results(tmp_path / 'new', recipe)
    assert not results and not results.path.exists()
    results.put('a', dict(value=float('inf')))
    assert dict(Results(tmp_path / 'new', dict(reversed(recipe.items())))) == {'a': dict(value=float('inf'))}
    told = refusal(Results, tmp_path / 'new', dict(recipe, model=dict(depths=(2, 4), path=Path('a'))))
    assert 'results.json has results with model.depths = [2, 3], not [2, 4]: choose another folder' in told
    (tmp_path / 'results.json').write_text('[]')
    assert 'has no results of this tool' in refusal(Results, tmp_path, recipe)


@pytest.mark.slow
def test_a_segmentor_whole_and_in_windows(run_tool: Run, trained: dict[str, Trained], tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []  # by the backbone
    forward = PyramidCPVT.forward
    monkeypatch.setattr(PyramidCPVT, 'forward', lambda self, x: seen.append(tuple(x.shape[2:])) or forward(self, x))
    config, checkpoint = trained['mmseg']
    assert run_tool(SWEEP, config, checkpoint, '--work-dir', tmp_path, '--sizes', 64, 96, *SLIDE) == ''
    rows = read_rows(tmp_path / 'results.csv')
    assert [(row['mode'], row['size']) for row in rows] == [
        (mode, size) for mode in ('whole', 'slide 32x48 by 16x48') for size in ('64', '96')]
    # The four images are not square.
    assert [max(size) for size in seen[:8]] == 4 * [64] + 4 * [96]
    assert len(seen[8:]) > 16 and tuple(map(max, *seen[8:])) == (32, 48)
    cfg = load_config(config, {'test_dataloader.dataset.pipeline.1.scale': (96, 96)}, str(tmp_path / 'other'))
    assert engine.test(cfg, checkpoint)['mIoU'] == float(rows[1]['mIoU'])


def test_goes_on_from_what_is_there_and_shows_all_results_of_the_folder(run_tool: Run, tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[tuple[int, int]] = []  # scales

    def test(cfg: Config, checkpoint: str) -> dict[str, float]:
        tested.append(cfg.test_dataloader.dataset.pipeline[1].scale)
        return {'mIoU': float(tested[-1][0]), 'aAcc': 1.}

    def run(*args: object) -> str:
        return run_tool(SWEEP, UPERNET, checkpoint, '--work-dir', tmp_path, '--sizes', *args)

    monkeypatch.setattr(resolution_sweep, 'test', test)
    (checkpoint := tmp_path / 'weights.pth').write_bytes(b'weights')
    assert run(96, 32, '--metrics', 'miou') == f"error: 'miou' is not a metric of {UPERNET}: choose from mIoU, aAcc."
    assert run(96, 32, '64x128') == '' and tested == [(32, 32), (64, 128), (96, 96)]
    assert run(32, *SLIDE, '--metrics', 'aAcc', 'mIoU') == '' and len(tested) == 4
    assert (tmp_path / 'results.md').read_text().splitlines() == [
        '| metric | 32 px | 64x128 px | 96 px |', '|---|---|---|---|',
        '| aAcc, whole | 1.0 | 1.0 | 1.0 |', '| aAcc, slide 32x48 by 16x48 | 1.0 |  |  |',
        '| mIoU, whole | 32.0 | 64.0 | 96.0 |', '| mIoU, slide 32x48 by 16x48 | 32.0 |  |  |']
    assert is_drawn(tmp_path / 'results.png')
    refusal = f'error: {tmp_path}/results.json has results with '
    assert run(32, '--cfg-options', 'model.decode_head.channels=32').startswith(
        f'{refusal}config.model.decode_head.channels = ')
    checkpoint.write_bytes(b'others')
    assert run(64).startswith(f'{refusal}checkpoint = ') and len(tested) == 4
