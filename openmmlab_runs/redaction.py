"""Leaves passwords, keys, tokens and signatures of addresses out of logs, copies of configs, and checkpoints."""
import ast
import re
from typing import Any

from .config_text import without_templates

# Names of secrets, in words between underscores. `token` and `key` are secrets alone, or after a word that says what
# they open: `cls_token` and `custom_keys` are none.
SECRET = re.compile(
    r'(.*_)?(secrets?|pass(word|wd|phrase)s?|pwd|credentials?|authorization|cookies?|connection_?string)(_.*)?'
    r'|(.*_)?(access|account|api|auth|bearer|bot|client|hf|hub|oauth|private|refresh|sas|security|session|shared|'
    r'signing|storage|subscription|user)_?(key|token)(_id|_value)?|key|token|auth')
# Parameters that sign an address; its others stay.
SIGNATURE = re.compile(r'x_(amz|goog|ms)_.*|sig|signature|(aws)?access_?key_?id|google_?access_?id|expires|policy|'
                       r'key_?pair_?id')
# In archives, what stands before an `@` is a name of a file.
USER = re.compile(r'(?<=https://)[^/?#\s\'"]+@|(?<=http://)[^/?#\s\'"]+@|'
                  r'(?<!\bzip://)(?<!\btar://)(?<=://)[^/?#\s\'"@:]*:[^/?#\s\'"]*@')
QUERY = re.compile(r'\?([^\s\'"<>#(),]*[^\s\'"<>#(),.:;])')
CONNECTION = re.compile(r'\b(AccountKey|SharedAccessKey|SharedAccessSignature)=[^;\s\'"]+', re.IGNORECASE)
# mmengine logs the variables that a config reads.
VARIABLE = re.compile(r'(env variable `(\w+)` with value of ).{0,5000}?(?= to replace item)', re.DOTALL)
SOURCES = ('cfg', 'config')  # keys of `meta` in a checkpoint that are texts of configs


def is_secret(name: object) -> bool:
    """Returns whether the last part of a dotted key is the name of a secret."""
    return isinstance(name, str) and SECRET.fullmatch(_words(name.rpartition('.')[2])) is not None


def _words(name: str) -> str:
    """Returns a name in lower case with underscores between its words: `AccountKey` becomes `account_key`."""
    return re.sub(r'\W|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])', '_', name).lower()


def redact_text(text: str) -> str:
    """Returns text whose addresses have no password, no signature and no token."""
    if '://' in text:
        text = QUERY.sub(_unsigned, USER.sub('', text))
    return VARIABLE.sub(lambda found: f'{found[1]}***' if is_secret(found[2]) else found[0],
                        CONNECTION.sub(r'\1=***', text))


def _unsigned(found: re.Match[str]) -> str:
    parts = found[1].split('&')
    kept = [part for part in parts if not (is_secret(name := part.partition('=')[0])
                                           or SIGNATURE.fullmatch(_words(name)))]
    return f'{"?" * bool(kept)}{"&".join(kept)}' if len(kept) < len(parts) else found[0]


def redact(value: Any, place: str = '') -> tuple[Any, list[str]]:
    """Returns a copy where secrets are None and addresses have no password or signature, and the dotted keys of these.
    """
    if isinstance(value, str):
        text = redact_text(value)
        return text, [place] * (text != value)
    if type(value) not in (list, tuple) and not isinstance(value, dict):
        return value, []
    kept: dict[Any, Any] = {}
    left_out: list[str] = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        inner = f'{place}.{key}'.strip('.')
        kept[key], names = (None, [inner]) if is_secret(key) and _is_text(item) else redact(item, inner)
        left_out += names
    return kept if isinstance(value, dict) else type(value)(kept.values()), left_out


def _is_text(value: Any) -> bool:
    return (bool(value) and isinstance(value, str | bytes)) or (
        isinstance(value, list | tuple) and any(map(_is_text, value)))


class _Source(ast.NodeTransformer):

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def _value(self, name: str, value: ast.expr) -> ast.expr:
        if is_secret(name) and not isinstance(value, ast.Dict | ast.Call) and any(
                isinstance(node, ast.Constant) and _is_text(node.value) for node in ast.walk(value)):
            self.left_out.append(name)
            return ast.Constant(None)
        return self.visit(value)

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        node.value = self._value(node.arg or '', node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = self._value(ast.unparse(node.targets[0]), node.value)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.Dict:
        names = [str(key.value) if isinstance(key, ast.Constant) else '' for key in node.keys]
        node.values = [self._value(name, value) for name, value in zip(names, node.values, strict=True)]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not isinstance(node.value, str) or (text := redact_text(node.value)) == node.value:
            return node
        self.left_out.append('a part of an address')
        return ast.Constant(text)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        raise ValueError('the value of a formatted string is not known')


def redact_meta(meta: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns `meta` of a checkpoint without secrets, also in its configs, and names of what is left out."""
    sources = {key: meta[key] for key in SOURCES if isinstance(meta.get(key), str)}
    kept, left_out = redact({key: value for key, value in meta.items() if key not in sources}, 'meta')
    for key, source in sources.items():
        redacted = _Source()
        try:
            tree = redacted.visit(ast.parse(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            left_out.append(f'meta.{key} (its secrets are not known, because it is not the dump of a config)')
            continue
        kept[key] = source if not redacted.left_out and '{{' not in source else without_templates(
            ast.unparse(ast.fix_missing_locations(tree)))
        left_out += [f'{name} of meta.{key}' for name in sorted(set(redacted.left_out))]
    return kept, left_out
