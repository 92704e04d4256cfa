"""Secrets are left out of what is written and printed, and nothing else is."""
import copy
import io
import json
import logging
import pickle
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock
from urllib.parse import quote, quote_plus

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmengine.utils import is_installed

from openmmlab_tools.config_text import assignments
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.engine.run_config import RunConfig, of_run, secrets_of
from openmmlab_tools.errors import exit_on_error
from openmmlab_tools.hooks.same_state import differences
from openmmlab_tools.libraries import shipped_configs
from openmmlab_tools.redaction import REDACTED, is_secret, known, redact, redact_meta, redact_text
from openmmlab_tools.texts import printable
from tests.helpers import ROOT, toy_overrides
from tests.odd_texts import names
from tests.openmmlab_tools.test_texts import values
from tests.openmmlab_tools.toy import SEGMENTOR

BACKEND = dict(backend='fsspec', key='AKIA', secret='s3cr3t', endpoint_url='http://me:pw@host:9000', timeout=3)
SIGNED = 'https://h/x.pth?versionId=7&X-Amz-Credential=s3cr3t&X-Amz-Signature=s3cr3t'


def test_names_of_secrets_and_of_none() -> None:
    for name in (
            'key', 'secret', 'db_password', 'apiKey', 'API-KEY', 'aws_access_key_id', 'secretAccessKey', 'Cookie',
            'credentials', 'connection_string', 'AccountKey', 'sas_token', 'Authorization', 'hf_token', 'passphrase',
            'github_token', 'wandb-token', 'api_keys', 'basic_auth', 'db_pass', 'encryption_key', 'tokens', 'sigV4',
            'GITHUB_TOKEN2', 'dbPassword', 'dbpassword', 'apikey', 'secretkey', 'awsAccessKeyId', 'oauth', 'cookies',
            'a.secret.value', 'masterkey', 'userpwd', 'keyfile', 'githubPAT', 'MASTERKEY', 'sshKeyFile', 'licensekey',
            'privkey_pem', 'rootpwd', 'PGPASSWORD', 'dbpass', 'mypat', 'GITLAB_PAT', 'bearer', 'jwt', 'SENTRY_DSN',
            'slack_webhook', 'sessionId', 'httpauth', 'clientsecretid', 'keystore', 'tokenfile', 'aws_creds'):
        for value in ('s3cr3t', b's3cr3t', ['s3cr3t'], dict(value='s3cr3t', pin=1), ({'a': ('s3cr3t',)},), {1: 2}):
            assert redact({name: value}) == ({name: None}, [name])
        for value in (0, 1, 2.5, True, None, '', [], {}):
            assert redact({name: value}) == ({name: value}, [])
    assert not [*filter(is_secret, (
        'rule_key', 'tokenizer_name', 'custom_keys', 'keys', 'with_cls_token', 'monkey', 'secretary',
        'author', 'passes', 'account_name', 'keypoint', 'token_type', 'special_tokens_list', 'key_mapping', 'meta_keys',
        'norm_keys', 'compass', 'signal', 'keyboard', 'passthrough', 'monkeys', 'tokenizer', 'key_padding_mask',
        'turkey', 'lowpass', 'bypass', 'pat', 'pattern', 'patience', 'num_patches', 'file_pat', 'session', 'spatial',
        'imgkey', 'keymap', 'keypoints', 'tokenize', 'hockey'))]


@pytest.mark.parametrize('secret', [
    f'ghp_{"a1" * 18}', f'github_pat_{"a1_" * 20}', f'glpat-{"x9" * 10}', f'hf_{"Ab" * 17}', 'xoxb-123456789012-abc',
    f'sk-{"a1" * 20}', 'AKIAIOSFODNN7EXAMPLE', f'AIza{"a" * 35}', 'eyJhbGciOiJI.eyJzdWIiOiIx.c2ln'])
def test_tokens_of_services_are_found_without_a_name(secret: str) -> None:
    assert redact(dict(note=f'with {secret}, see')) == (dict(note='with ***, see'), ['note'])
    assert redact_text(f'at https://h/{secret}/x') == 'at https://h/***/x'


@pytest.mark.parametrize(('value', 'left'), [
    ([('Authorization', 's3cr3t'), ('Accept', 'a/b')], [('Authorization', None), ('Accept', 'a/b')]),
    ([['token', 's3cr3t']], [['token', None]]), (('X-Api-Key', 's3cr3t'), ('X-Api-Key', None)),
    (dict(name='GITHUB_TOKEN', value='s3cr3t'), dict(name='GITHUB_TOKEN', value=None)),
    ('Authorization: Bearer s3cr3t', 'Authorization: ***'), ('host=h password=s3cr3t a=1', 'host=h password=*** a=1'),
    ('https://h/x?github_token=s3cr3t&a=1', 'https://h/x?a=1'), ('https://h/x?a=1;api%5Fkey=s3cr3t', 'https://h/x?a=1'),
    ('https://h/x#access_token=s3cr3t', 'https://h/x'),
    (dict(note='s3cr3t', db_pass='s3cr3t'), dict(note='***', db_pass=None)),
    ({'s3cr3t': 1, 'token': 's3cr3t'}, {'***': 1, 'token': None})])
def test_secrets_beside_their_names(value: object, left: object) -> None:
    assert redact(dict(a=value))[0] == dict(a=left)
    assert 's3cr3t' not in redact_text(f'{value} s3cr3t') and redact(dict(a=left)) == (dict(a=left), [])


@pytest.mark.parametrize('value', [
    dict(classes=('key', 'lock')), dict(keys=['img', 'token']), dict(custom_keys={'prompt_token': dict(lr_mult=.1)}),
    dict(cls_token=True, num_tokens=5, token_dims=[1]), dict(text='a key: silver', other='lr=0.1, keys=3')])
def test_what_only_looks_like_a_secret(value: dict[str, object]) -> None:
    assert redact(value) == (value, [])


def test_short_values_and_words_of_the_config_are_hidden_with_their_names_only() -> None:
    env = dict(a=dict(password='img', pin_key='12'), auth='True', token='hunter', code_key='123456')
    redact(dict(env, keys=['img'], loss='True'))
    told = 'img 12 True loss 0.1234567 hunters'
    assert redact_text(told) == told
    log = redact_text('\n'.join(f'{name}: {value}' for name, value in env.items()))
    assert log == "a: {***, ***}\n***\ntoken: ***\ncode_key: ***"


def test_a_secret_is_found_in_all_forms_and_in_records_of_all_loggers() -> None:
    secret = 'first lïne/"\'\\$(.*\n  s3cr3t+second'
    redact(dict(env_cfg=dict(db_pass=secret, key=secret[:12], b_token=b'\xffs3cr4t', auth='Bearer s3cr5t')))
    for form in (secret, repr([secret]), ascii(secret), json.dumps(secret), yaml.dump([secret]), quote(secret),
                 quote(secret, safe=''), quote_plus(secret), printable(secret), *secret.split('\n'),
                 repr(b'\xffs3cr4t'), 's3cr5t'):
        shown = redact_text(f'a{form}b')
        assert '***' in shown and 's3cr' not in shown and 'lïne' not in shown, form
    other, stream = logging.Logger('other'), io.StringIO()
    other.addHandler(logging.StreamHandler(stream))
    other.warning('%r in %s', [secret], 's3cr5t')
    try:
        raise ValueError(secret)
    except ValueError:
        other.exception('fails')
    assert 's3cr' not in stream.getvalue() and 'ValueError: ***' in stream.getvalue()


def test_an_uncaught_traceback_has_no_secret(capsys: pytest.CaptureFixture) -> None:
    redact(dict(token='s3cr3t'))
    with pytest.raises(TimeoutError) as error:
        exit_on_error(Mock(side_effect=TimeoutError('s3cr3t at https://me:pw@h')))()
    sys.excepthook(error.type, error.value, error.tb)
    shown = capsys.readouterr().err
    assert shown.startswith('Traceback ') and shown.endswith('\nTimeoutError: *** at https://h\n')


def test_differences_tell_numbers_and_no_secret() -> None:
    mine, others = ({'model.num_token': number, 'a.api_keys': text, 'b.token': text[1:-1], 'lr': number}
                    for number, text in (('1', "['mine']"), ('2', "['other']")))
    assert differences(mine, others) == 'model.num_token is 1 (not 2), lr is 1 (not 2)'


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
     'Using env variable `S3_SECRET` with value of *** to replace item in config.'),
    ('Using env variable `NAME` with value of a\nb to replace item in config.',
     'Using env variable `NAME` with value of *** to replace item in config.')])
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
        'key', 'secret', 'endpoint_url')] + ['load_from', 'tokens']


@given(values, names.filter(lambda key: key and not key.startswith('__')))
def test_every_copy_is_read_as_it_was(value: object, key: str) -> None:
    content = {'model': {'a': [value]}, key: value}
    cfg = of_run(Config(content))
    with TemporaryDirectory() as folder:
        for suffix in ('py', 'json', 'yaml') if isinstance(value, str) else ('py',):  # JSON has other types
            path = Path(folder, f'c.{suffix}')
            cfg.dump(path)
            actual = Config.fromfile(path)
            assert not actual.env_variables
            assert Config.to_dict(actual) == redact(content)[0]


def test_the_text_of_a_config_in_a_checkpoint_of_another_program_is_left_out_and_told() -> None:
    meta = dict(cfg="a = dict(key='AKIA')", seed=3, settings={'a.key': "'s3cr3t'"}, note='with s3cr3t', classes=('a',))
    left = dict(seed=3, settings={'a.key': None}, note="with s3cr3t", classes=('a',))
    assert redact_meta(meta) == (left, [
        'meta.cfg (of another program, so that its secrets are not known)', 'meta.settings.a.key'])
    ours = dict(cfg='a = dict(key=None)', **{REDACTED: True})
    assert redact_meta(ours) == (ours, [])


def test_no_name_in_a_stock_config_is_a_secret() -> None:
    libraries = [name for name in ('mmdet', 'mmseg', 'mmpretrain') if is_installed(name)]
    paths = [path for folder in (ROOT / 'configs', *map(shipped_configs, libraries)) for path in folder.rglob('*.py')]
    assert len(paths) > 100 * len(libraries)
    names: set[str] = set()
    for path in paths:
        names.update(re.findall(r'([\w.-]+)[\'"]?\s*[=:]\s*(?![-.\d]|True|False)', path.read_text(encoding='utf-8')))
    assert len(names) > 500 and not [*filter(is_secret, names)]


WORDS = ('token', 'key', 'keys', 'secret', 'password', 'pass', 'pwd', 'auth', 'authorization', 'credential',
         'credentials', 'signature', 'sig', 'masterkey', 'userpwd', 'keyfile', 'jwt')
STYLES = ('_'.join, '-'.join, lambda words: '_'.join(words).upper(), lambda words: ''.join(map(str.title, words)),
          lambda words: words[0] + ''.join(map(str.title, words[1:])))
secret_names = st.builds(lambda style, start, word, end: style([*start, word, *end]), st.sampled_from(STYLES), *(
    st.sampled_from(WORDS) if is_word else st.lists(st.sampled_from(('github', 'my', 'db', 'v2')), max_size=2)
    for is_word in (False, True, False))).filter(lambda name: name.lower() != 'keys')
secrets = st.builds('Zq7v{}9'.format, names)
hidden = st.recursive(secrets | secrets.map(lambda text: text.encode('utf-8', 'backslashreplace')), lambda inner: (
    st.lists(inner, min_size=1, max_size=3) | st.tuples(st.just(1), inner)
    | st.dictionaries(st.sampled_from(('value', 'user', 'img')), inner, min_size=1)), max_leaves=4)


@given(secret_names, hidden, secrets, st.lists(st.sampled_from(('a', 0, 'b')), max_size=3))
def test_no_secret_is_found_in_any_text(name: str, value: object, other: str, way: list[object]) -> None:
    config: object = {name: value, 'headers': [(f'X-{name}', other)], 'note': f'has {other}', 'lr': 0.1}
    for step in way:
        config = {step: config} if isinstance(step, str) else [config, {'keys': ['img']}]
    known.clear()
    cfg = of_run(Config(dict(env_cfg=config)))
    logger, stream = logging.Logger('other'), io.StringIO()
    logger.addHandler(logging.StreamHandler(stream))
    logger.info('%s %r', cfg.env_cfg, [cfg.env_cfg, other])
    logger.info(Config(dict(env_cfg=config)).pretty_text)
    with TemporaryDirectory() as folder:
        for suffix in ('py', 'json', 'yaml'):
            if suffix != 'json' or not isinstance(value, bytes):
                cfg.dump(Path(folder, f'c.{suffix}'))
        texts = [path.read_text('utf-8') for path in Path(folder).iterdir()]
    meta, _ = redact_meta(dict(cfg=assignments(dict(env_cfg=config)), note=other))
    for text in (repr(cfg), cfg.pretty_text, str(cfg.to_dict()), str(meta), stream.getvalue(), *texts):
        assert 'Zq7v' not in text
    assert redact(cfg.to_dict()) == (cfg.to_dict(), [])


SECRET = "S3cr3t/+of'a\\run"
FORMS = ('S3cr3t', '5h0rt', 'C0ns')


class LoudHook(Hook):
    """Tells its secrets in all ways that a hook has, and fails if it should."""

    def __init__(self, headers: list[tuple[str, str]], github_token: str, fails: bool) -> None:
        assert github_token == SECRET
        self.told, self.fails = f'{headers} {github_token}', fails

    def before_train(self, runner: Runner) -> None:
        runner.message_hub.update_info('told', self.told)
        runner.logger.info(self.told)
        logging.getLogger('of.another.library').warning('%s', self.told)
        print(self.told)
        print(self.told, file=sys.stderr)
        if self.fails:
            raise RuntimeError(self.told)


@pytest.mark.slow
@pytest.mark.parametrize(('fails', 'verbose'), [(False, False), (False, True), (True, False)])
def test_a_run_writes_and_prints_no_secret(fails: bool, verbose: bool, toy_shapes: Path, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    monkeypatch.setenv('MY_TOKEN', 'C0nst4nt')
    monkeypatch.setitem(HOOKS.module_dict, 'LoudHook', LoudHook)
    logging.getLogger('of.another.library').addHandler(logging.FileHandler(tmp_path / 'library.log'))
    config = tmp_path / 'my.py'
    config.write_text(f"""
_base_ = {str(SEGMENTOR)!r}
my_note = '{{{{$MY_TOKEN:x}}}}'
env_cfg = dict(db_pass={SECRET!r}, secret=dict(value=['5h0rt']), encryption_key='img', auth='fork')
default_hooks = dict(loud=dict(type='LoudHook', headers=[('Authorization', {SECRET!r})], github_token={SECRET!r},
                               fails={fails}))
""", encoding='utf-8')
    cfg = load_config(config, toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 1, 'train_cfg.val_interval': 100, 'log_level': 'INFO'}), str(tmp_path / 'work'))
    if fails:
        with pytest.raises(SystemExit) as end:
            exit_on_error(lambda: train(cfg))()
        assert '***' in end.value.code and not [form for form in FORMS if form in end.value.code]
    else:
        train(cfg, verbose=verbose)
    assert cfg.env_cfg.db_pass == SECRET and cfg.env_cfg.auth == 'fork'
    files = [path for path in tmp_path.rglob('*') if path.is_file() and path != config]
    assert {'library.log', 'my.py', 'traceback.txt' if fails else 'iter_1.pth'} <= {path.name for path in files}
    texts = {str(path): path.read_bytes().decode('utf-8', 'replace') for path in files}
    shown = ''.join(capfd.readouterr())
    for name, text in {**texts, 'console': shown}.items():
        assert not [form for form in (*FORMS, "'encryption_key': 'img'", 'auth: fork') if form in text], name
    log = next(text for name, text in texts.items() if name.endswith('.log') and 'library' not in name)
    assert "mp_start_method='fork'" in log and "'mp_start_method': 'fork'" in log  # a word stays
    assert '***' in shown
