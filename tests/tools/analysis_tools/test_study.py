from pathlib import Path

import pytest
from mmengine.config import Config

from cpvt_lab.study import Run, TimeIterations, Variant, read_study, set_options
from cpvt_mm.errors import UserError
from cpvt_mm.loading import backbone_config, build
from tests.conftest import ROOT

STUDIES = sorted(path for path in (ROOT / 'configs/_base_/studies').glob('*.py') if path.stem != 'position_encodings')


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_a_shipped_study_names_configs_that_its_options_fit(path: Path, tmp_path: Path) -> None:
    study = read_study(path)
    assert len(study.variants) >= 2
    for name, variant in study.variants.items():
        *_, options = study.tests.values()
        cfg = Run(name, variant, 1, tmp_path).load(options)
        assert cfg.randomness.seed == 1
        assert all(value_of(cfg, key) == value for key, value in {**variant.options, **options}.items())
        build(cfg, backbone_config(cfg))


def value_of(cfg: Config, key: str) -> object:
    for part in key.split('.'):
        cfg = cfg[int(part) if isinstance(cfg, list) else part]
    return cfg


def test_the_encodings_on_streets_are_tested_from_half_to_twice_the_size() -> None:
    study = read_study(ROOT / 'configs/_base_/studies/position_encodings_camvid.py')
    [config] = {variant.config for variant in study.variants.values()}
    size = Config.fromfile(config).size[0]
    scales = [options['test_dataloader.dataset.pipeline.1.scale'] for options in study.tests.values()]
    assert [(width / size, height / size) for width, height in scales] == [
        (ratio, ratio) for ratio in (0.5, 0.75, 1, 1.5, 2)]
    assert all(width % 32 == 0 for width, _ in scales)  # so that no padding shows a border


def test_paths_count_from_the_study(tmp_path: Path) -> None:
    path = tmp_path / 'study.py'
    path.write_text("config = 'a.py'\nvariants = dict(a=dict(), b=dict(config='/b.py', options={'c.d': 1}))\n"
                    "metrics = ['mIoU']")
    study = read_study(path)
    assert study.variants == {'a': Variant(tmp_path / 'a.py', {}), 'b': Variant(Path('/b.py'), {'c.d': 1})}
    assert study.tests == {'test': {}}


@pytest.mark.parametrize('text, words', [
    ('variants = [', 'cannot be read (SyntaxError'),
    ("metrics = ['mIoU']", 'study.py is None, but must be a non-empty dict'),
    ('variants = dict(a=dict(config="a.py"))', 'study.py is None, but must be a non-empty list'),
    ("variants = dict(a=dict())\nmetrics = ['mIoU']", 'study.py has no config: set its own'),
    ("variants = dict(a=dict(option={}))\nmetrics = ['mIoU']", "is {'option': {}}, but must be a dict with the keys"),
    ("config = 'a.py'\nvariants = {'a b': dict(), 'a-b': dict()}\nmetrics = ['mIoU']", 'would share the folder a-b'),
])
def test_what_is_wrong_with_a_study_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / 'study.py'
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_study(path)
    assert words in str(error.value)


def test_an_option_replaces_what_is_there() -> None:
    cfg = Config(dict(a=dict(b=dict(c=1, d=2)), e=[dict(f=1), dict(f=2)]))
    set_options(cfg, {'a.b': dict(c=3), 'e.1.f': None, 'a.new': [4]})
    assert cfg.to_dict() == dict(a=dict(b=dict(c=3), new=[4]), e=[dict(f=1), dict(f=None)])


@pytest.mark.parametrize('key', ['no.key', 'e.5.f', 'e.x.f', 'a.b.c.d'])
def test_an_option_that_fits_nowhere_is_one_sentence(key: str) -> None:
    cfg = Config(dict(a=dict(b=dict(c=1)), e=[dict(f=1)]))
    with pytest.raises(UserError, match=f'option {key} of the study does not fit config'):
        set_options(cfg, {key: 1})


def test_the_median_leaves_out_what_happens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = TimeIterations()
    assert timer.median() is None
    ends = iter([0., 1., 2., 50., 51.])  # a validation after the third
    monkeypatch.setattr('cpvt_lab.study.time.perf_counter', lambda: next(ends))
    for i in range(5):
        timer.after_train_iter(None, i)
    assert timer.median() == 1
