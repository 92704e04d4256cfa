"""Secrets are left out of what is written, and nothing else is."""
import copy
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from mmengine.config import Config
from mmengine.utils import is_installed

from cpvt_mm.swap.writing import shipped_configs
from openmmlab_runs.engine.run_config import RunConfig, of_run, secrets_of
from openmmlab_runs.redaction import is_secret, redact, redact_meta, redact_text
from tests.odd_texts import names
from tests.openmmlab_runs.test_config_text import values

BACKEND = dict(backend='fsspec', key='AKIA', secret='s3cr3t', endpoint_url='http://me:pw@host:9000', timeout=3)
SIGNED = 'https://h/x.pth?versionId=7&X-Amz-Credential=s3cr3t&X-Amz-Signature=s3cr3t'


@pytest.mark.parametrize('name', [
    'key', 'secret', 'db_password', 'apiKey', 'API-KEY', 'aws_access_key_id', 'secretAccessKey', 'Cookie',
    'credentials', 'connection_string', 'AccountKey', 'sas_token', 'Authorization', 'hf_token', 'passphrase'])
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name) and redact({name: 's3cr3t'}) == ({name: None}, [name])


def test_names_of_none() -> None:
    assert not [*filter(is_secret, (
        'rule_key', 'tokenizer_name', 'num_tokens', 'custom_keys', 'keys', 'with_cls_token', 'monkey', 'secretary',
        'author', 'passes', 'account_name', 'keypoint', 'token_type', 'special_tokens_list'))]


@pytest.mark.parametrize(('text', 'left'), [
    ('https://me:pw@host/a?b=1', 'https://host/a?b=1'), ('https://ghp_x@github.com/a', 'https://github.com/a'),
    ('s3://me:p@w@host/a', 's3://host/a'), ('tar://a::https://me:pw@h/a.tar', 'tar://a::https://h/a.tar'),
    (SIGNED, 'https://h/x.pth?versionId=7'), ('https://h/x?sig=a%2Fb', 'https://h/x'),
    ('https://h/x?AWSAccessKeyId=a&Signature=b&Expires=1', 'https://h/x'),
    ('abfs://c/x?sv=1&sig=s', 'abfs://c/x?sv=1'), ('https://h/x?token=a&b=1#c', 'https://h/x?b=1#c'),
    ("fetching 'https://h/x?sig=a': it fails (https://h/y?sig=b).", "fetching 'https://h/x': it fails (https://h/y)."),
    ('DefaultEndpointsProtocol=https;AccountName=a;AccountKey=b==;EndpointSuffix=c',
     'DefaultEndpointsProtocol=https;AccountName=a;AccountKey=***;EndpointSuffix=c'),
    ('Using env variable `S3_SECRET` with value of s3cr3t to replace item in config.',
     'Using env variable `S3_SECRET` with value of *** to replace item in config.')])
def test_addresses_lose_what_opens_them(text: str, left: str) -> None:
    assert redact_text(text) == left and redact_text(left) == left


@pytest.mark.parametrize('text', [
    'zip://img@2x.png::/data/a.zip', 'tar://a:b@c.png::/data/a.tar', 's3://bucket/a@b.png', 'ssh://git@host/a',
    'https://h/x?versionId=7', '/data/a?sig=b', 'lr=0.1, key=2', 'mmdet::a/b.py', 'me@host', 'torchvision://resnet50'])
def test_other_texts_stay(text: str) -> None:
    assert redact_text(text) == text


def test_a_config_keeps_its_secrets_and_its_copies_do_not(tmp_path: Path) -> None:
    cfg = of_run(Config(dict(train_dataloader=dict(dataset=dict(backend_args=BACKEND)), load_from=SIGNED, token=5,
                             tokens=('a',))))
    for other in (cfg, copy.deepcopy(cfg), cfg.copy(), pickle.loads(pickle.dumps(cfg))):
        assert isinstance(other, RunConfig) and other.train_dataloader.dataset.backend_args.secret == 's3cr3t'
        assert 's3cr3t' not in other.pretty_text + str(other.to_dict()) + repr(other) + other.dump()
    for suffix in ('py', 'json', 'yaml'):
        cfg.dump(tmp_path / f'c.{suffix}')
        left = Config.fromfile(tmp_path / f'c.{suffix}')
        assert left.train_dataloader.dataset.backend_args == dict(
            backend='fsspec', key=None, secret=None, endpoint_url='http://host:9000', timeout=3)
        assert left.load_from == 'https://h/x.pth?versionId=7' and left.token == 5
    assert secrets_of(cfg) == [f'train_dataloader.dataset.backend_args.{key}' for key in (
        'key', 'secret', 'endpoint_url')] + ['load_from']


@given(values, names.filter(lambda key: key and not key.startswith('__')))
def test_every_copy_is_read_as_it_was(value: object, key: str) -> None:
    cfg = of_run(Config(dict(model={'a': [value]})))
    with TemporaryDirectory() as folder:
        for suffix in ('py', 'json', 'yaml'):
            if suffix != 'py' and not isinstance(value, str):  # JSON has other types
                continue
            path = Path(folder, f'c.{suffix}')
            cfg.dump(path)
            found = Config.fromfile(path)
            assert not found.env_variables
            assert Config.to_dict(found) == redact(dict(model={'a': [value]}))[0]


def test_the_text_of_a_config_in_a_checkpoint_is_redacted() -> None:
    values = dict(a=dict(key='AKIA', b=[dict(password='s3cr3t')]), load_from=SIGNED, name='{{$HOME:x}}', custom_keys={
        'c': 1})
    meta, left_out = redact_meta(dict(cfg=Config(values).pretty_text, seed=3, settings={'a.key': "'x'"}, epoch=1))
    found = Config.fromstring(meta['cfg'], '.py')
    assert found.to_dict() == dict(redact(values)[0]) and not found.env_variables
    assert left_out == [
        'meta.settings.a.key', 'a part of an address of meta.cfg', 'key of meta.cfg', 'password of meta.cfg']
    assert meta['seed'] == 3
    plain = dict(cfg='a = 1  # comment\nb = dict( c=2 )\n', classes=('a',))
    assert redact_meta(plain) == (plain, [])


@pytest.mark.parametrize('text', ['a: 1', "secret = f'{x}s3cr3t'", 'a = ' + '(' * 500])
def test_a_text_that_is_no_dump_is_left_out_and_told(text: str) -> None:
    meta, (told,) = redact_meta(dict(cfg=f'{text}\nb: [', epoch=1))
    assert meta == dict(epoch=1) and told.startswith('meta.cfg')


@pytest.mark.slow
@pytest.mark.parametrize('library', [name for name in ('mmdet', 'mmseg') if is_installed(name)])
def test_no_stock_config_has_a_secret(library: str) -> None:
    paths = sorted(shipped_configs(library).rglob('*.py'))
    assert len(paths) > 100
    for path in paths:
        try:
            cfg = Config.fromfile(path, import_custom_modules=False)
        except Exception:  # of a library that is not installed
            continue
        assert not secrets_of(cfg), path
