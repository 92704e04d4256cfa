"""Leaves passwords, keys, tokens and signatures out of logs, copies of configs, checkpoints and tracebacks: the values
of keys with such names, and then these values wherever text has them.
"""
import json
import logging
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from .texts import printable

# If a name ends with one of these words, its value is a secret: masterkey, userpwd, githubtoken.
END = r'token|secret|password|passwd|pwd|passphrase|passcode|credential|auth|authorization|signature|cookie|key'
# Endings that may follow these words: keyfile, tokens, secretid. The name of a file with a secret is a secret as well.
MORE = 's?|ids?|files?|json|pem|data|strings?|pairs?|stores?|rings?|phrases?|pass|material|hash|b'
# Words that end in the same way by chance.
CHANCE = '(mon|don|tur|hoc|joc|whis|lac|malar|hot|low|off|sub|turn)keys?'
SHORT = 'pass|sig|cred|creds|pem|jwt|bearer|dsn|webhook|(connection|conn)_?string'
HOSTS = 'github|gitlab|gh|gl|git|bitbucket|azure|ado|devops|jira|databricks|personal|access|my|user|bot|ci|api'
LOGINS = 'user|db|sql|mysql|root|admin|smtp|ftp|http|proxy|login|my|ssh|mail|redis|mongo|postgres|pg'
SECRET = re.compile(rf'(^|_)(?!{CHANCE}(_|$))([a-z]*({END})({MORE})|({SHORT})|({LOGINS})pass|({HOSTS})_?pats?'
                    '|session_?ids?)(_|$)')
# Beginnings that services give to their tokens, so that these are found without a name.
FORM = re.compile(r'\b(gh[pousr]_\w{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|hf_[A-Za-z\d]{30,}|xox[abeoprs]-[\w-]{10,}'
                  r'|sk-[\w-]{32,}|(AKIA|ASIA)[A-Z\d]{16}|AIza[\w-]{35}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)')
# Names in configs of OpenMMLab's libraries that contain such a word but are no secrets.
ORDINARY = re.compile(
    r'(algorithm|collate|collect_video|cond_stage|custom|(default_)?meta|first_stage|greater|gt|ignore|image|img|input|'
    r'label|less|loss|magnitude|mask|metric|norm|out|output|pred|published|result|rule|sample|scatter|seq|skip_type|split|'
    r'target|train|val)_?keys?|keys|conditioning_key|key_(dims|feats|fields|indicator|map|mapping|padding_mask|pool_scales|'
    r'weight)|specific_key_path|((output|with)_)?(bos|cls|dist|eos|mask|pad|register|sep|special|unk|im_end|im_start)_'
    r'tokens?(_ids?)?|special_tokens_list|sos_token_format|token_(dims|projection|type)|tokens_(mlp_dims|positive)|pass_through')
# Names that are also ordinary words, for example names of classes: only the value of a key with this name is a secret.
WORDS = re.compile('(key|token|pass|secret|signature|cookie|auth)s?')
# Parameters that sign an address. Other parameters are not hidden.
SIGNATURE = re.compile(r'x_(amz|goog|ms)_.*|google_?access_?id|expires|policy')
# In archives, what stands before an `@` is a name of a file.
USER = re.compile(r'(?<=https://)[^/?#\s\'"]+@|(?<=http://)[^/?#\s\'"]+@|'
                  r'(?<!\bzip://)(?<!\btar://)(?<=://)[^/?#\s\'"@:]*:[^/?#\s\'"]*@')
QUERY = re.compile(r'([?#])([^\s\'"<>#(),]*[^\s\'"<>#(),.:;])')
CONNECTION = re.compile(r'\b(AccountKey|SharedAccessKey|SharedAccessSignature)=[^;\s\'"]+', re.IGNORECASE)
PARAMETER = re.compile(r'''[?#&;]([^=?#&;\s]+)=([^#&;\s'"]+)''')
# In texts of configs: `password=...` of a connection, and `Authorization: ...` of a header.
PAIR = re.compile(r'''(?<![\w-])(?:([\w-]+)(["']?=["']?)([^\s"';,&]+)|([\w-]+)(["']?:\s+["']?)([^"'\n]+))''')
# mmengine logs the variables that a config reads.
VARIABLE = re.compile(r'(env variable `\w+` with value of ).*(?= to replace item)', re.DOTALL)
REDACTED = 'config_without_secrets'  # this key in a checkpoint's `meta` marks that its configs contain no secrets
SOURCES = ('cfg', 'config')  # keys of `meta` whose values are the texts of configs
HIDDEN = '***'
CONTAINERS = list | tuple | set | frozenset | dict
known: set[str] = set()  # the secrets that this process has found, in their written forms


def is_secret(name: object) -> bool:
    """Returns whether a part of a dotted key says that its value is a secret, if it is a text or a container."""
    return isinstance(name, str) and any(
        SECRET.search(words) and not ORDINARY.fullmatch(words) for words in map(_words, name.split('.')))


def _words(name: str) -> str:
    """Returns the words of a name in lower case with underscores between: `AccountKey2` becomes `account_key`."""
    return '_'.join(re.findall('[A-Z]+(?![a-z])|[A-Z]?[a-z]+', name)).lower()


def _names(text: object, surely: bool) -> bool:
    """Returns whether a text is the name of a secret beside it; `surely` if it cannot be a word of `WORDS`."""
    return is_secret(text) and re.fullmatch(r'[\w-]+', str(text)) is not None and (
        surely or not WORDS.fullmatch(str(text)))


def redact_text(text: str) -> str:
    """Returns text without the secrets that are known, whose addresses have no password, no signature and no token."""
    if '://' in text:
        text = QUERY.sub(_unsigned, USER.sub('', text))
    text = FORM.sub(HIDDEN, text)
    text = VARIABLE.sub(rf'\1{HIDDEN}', CONNECTION.sub(rf'\1={HIDDEN}', text))
    return _pattern(frozenset(known)).sub(HIDDEN, text) if known else text


def _unsigned(query: re.Match[str]) -> str:
    parts = re.split('[&;]', query[2])
    unsigned = [part for part in parts if not ('=' in part and (is_secret(name := unquote(part.partition('=')[0]))
                                                            or SIGNATURE.fullmatch(_words(name))))]
    return f'{query[1] * bool(unsigned)}{"&".join(unsigned)}' if len(unsigned) < len(parts) else query[0]


@lru_cache(1)
def _pattern(forms: frozenset[str]) -> re.Pattern[str]:
    # The longest first, because a secret may begin with another secret. Short words and numbers must stand alone.
    return re.compile('|'.join(rf'(?<![\w.]){re.escape(form)}(?!\w)' if re.fullmatch(r'[a-z_]{1,12}|[\d.]{1,12}', form)
                               else re.escape(form) for form in sorted(forms, key=len, reverse=True)))


def redact(value: Any, place: str = '') -> tuple[Any, list[str]]:
    """Returns a copy without secrets, and the dotted keys whose values were hidden. It remembers the secrets for later
    texts.

    The value of a secret name becomes None, also in a pair such as a header. In other texts, `redact_text` hides
    secrets.
    """
    secrets: list[tuple[object, str]] = []
    others: list[str] = []
    _copy(value, place, secrets, others)
    if secrets:
        _remember(secrets, '\n'.join(others))
    return _copy(value, place, [], [])


def _copy(value: Any, place: str, secrets: list[tuple[object, str]], others: list[str], in_list: bool = False
          ) -> tuple[Any, list[str]]:
    """Copies for `redact`, and adds secrets, each after its name, and other texts to the lists."""
    if isinstance(value, str):
        def hide(pair: re.Match[str]) -> str:
            name, sign, secret = filter(None, pair.groups())
            if secret == HIDDEN or not _names(name, False):
                return pair[0]
            secrets.append((name, secret))
            return f'{name}{sign}{HIDDEN}'
        if '://' in value:
            secrets += [(name, unquote(text)) for name, text in PARAMETER.findall(value) if is_secret(unquote(name))]
            secrets += [(place, unquote(user[:-1].partition(':')[2])) for user in USER.findall(value)]
        others.append(text := redact_text(PAIR.sub(hide, redact_text(value))))
        return text, [place] * (text != value)
    is_dict = isinstance(value, dict)
    if type(value) not in (list, tuple, set, frozenset) and not is_dict:
        return value, []
    pairs = [*value.items()] if is_dict else [*enumerate(value)]
    named: object = object()  # the key or index of a value whose name is beside it
    if is_dict and _names(value.get('name', value.get('key')), True):  # such as dict(name='Authorization', value=...)
        named = 'value'
    elif not is_dict and len(pairs) == 2 and _names(pairs[0][1], in_list):  # such as ('Authorization', ...)
        named = 1
    items: dict[Any, Any] = {}
    left_out: list[str] = []
    for key, item in pairs:
        inner = f'{place}.{key}'.strip('.')
        others.append(str(key))
        new = redact_text(key) if isinstance(key, str) else key
        # Keys of `custom_keys` are names of parameters.
        if isinstance(item, str | bytes | CONTAINERS) and item and (key == named or is_secret(key)) and (
                not place.endswith('custom_keys')):
            secrets += _texts(key, item)
            items[new], names = None, [inner]
        else:
            items[new], names = _copy(item, inner, secrets, others, not is_dict)
        left_out += names
    return items if is_dict else type(value)(items.values()), left_out


def _texts(name: object, value: Any) -> Iterator[tuple[object, str]]:
    """Yields the texts in the value of a secret, each after its name."""
    if isinstance(value, str | bytes):
        yield name, value if isinstance(value, str) else repr(value)[2:-1]
    elif isinstance(value, CONTAINERS):
        for key, item in value.items() if isinstance(value, dict) else ((name, item) for item in value):
            yield from _texts(key, item)


def _remember(secrets: list[tuple[object, str]], others: str) -> None:
    """Remembers secrets. Short secrets, and words in the config, are only hidden where they follow their names."""
    for name, secret in secrets:
        scheme, _, credential = secret.partition(' ')
        parts = {secret, secret.strip(), *secret.splitlines(), credential * (scheme.lower() in ('basic', 'bearer'))}
        for text in filter(None, parts):
            if len({*text}) < 3 or len(text) < 4 or text.lower() in ('true', 'false', 'none', 'null') or (
                    re.fullmatch('[a-z_]{1,12}', text) and text in others):
                known.update((f'{name!r}: {text!r}', f'{name}={text!r}', f'{name}: {text}'))
            else:
                known.update(form[1:-1] for form in (f"'{text}'", f"'{printable(text)}'", repr(text), ascii(text),
                                                     repr(f'{text}"')[:-1], json.dumps(text),
                                                     json.dumps(text, ensure_ascii=False)))
                known.update(how(text, safe, 'utf-8', 'backslashreplace') for how in (quote, quote_plus)
                             for safe in ('', '/'))
    make = logging.getLogRecordFactory()
    if not (isinstance(make, partial) and make.func is _record):
        logging.setLogRecordFactory(partial(_record, make))


def _record(make: Callable[..., logging.LogRecord], *args: Any, **kwargs: Any) -> logging.LogRecord:
    """Makes a record, of any logger and for all handlers, without the secrets that are known."""
    record = make(*args, **kwargs)
    try:
        text = record.getMessage()
    except Exception:  # `logging` tells that the arguments do not fit
        return record
    if (redacted := redact_text(text)) != text:
        record.msg, record.args = redacted, ()
    if record.exc_info:
        record.exc_text = redact_text(logging.Formatter().formatException(record.exc_info))
    return record


def redact_meta(meta: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns `meta` of a checkpoint without secrets, and names of what is left out: also the texts of its configs, if
    another program has written them.
    """
    unread = [] if meta.get(REDACTED) else [key for key in SOURCES if isinstance(meta.get(key), str)]
    redacted, left_out = redact({key: value for key, value in meta.items() if key not in unread}, 'meta')
    return redacted, [*(f'meta.{key} (of another program, so that its secrets are not known)' for key in unread),
                      *left_out]
