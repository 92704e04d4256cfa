"""Texts that other interpreters would take for something else, for tests that write them and read them back."""
import string

from hypothesis import strategies as st

# In this order: mmengine's templates, mathematics of matplotlib, terminals, shells, Markdown and HTML, and Python.
ODD = ('{{$HOME:x}}', '{{ $HOME:x }}', '{{ fileDirname }}', '{{_base_.model}}', "{{'$HOME:x'}}", '{{{$HOME:x}}}', '{{',
       r'$\frac{$', '$', '\x1b]0;title\x07\x1b[31m', '\b\r\x9b', '\u202eleft', '\x00', '\u2028', '\x0c', '\x85',
       '$(touch made)', '`touch made`', ';touch made', "'", '"', '\\', '\\x7b', '| a |', '<img src=x onerror=y>',
       '[a](javascript:b)', '**', '_', '\n', '\n# coding: latin-1\n', "'''", '%s', '{0}', '\ufb01', 'é', '名', ' ')
names = st.lists(st.one_of(st.sampled_from(ODD), st.text(string.printable, max_size=3),
                           st.characters(exclude_categories=()).map(str)), max_size=6).map(''.join)


def is_half(character: str) -> bool:
    """Tells whether a character is half of a surrogate pair, which JSON can have (`"\\ud800"`) and UTF-8 cannot."""
    return '\ud800' <= character <= '\udfff'


# What a folder can have as the name of a file: bytes, which need not be UTF-8.
file_names = names.map(lambda name: name.translate(dict.fromkeys(map(ord, '/\0'))).encode(
    'utf-8', 'surrogateescape' if all('\udc80' <= one <= '\udcff' or not is_half(one) for one in name)
    else 'replace')[:100].decode('utf-8', 'surrogateescape')).filter(lambda name: name.strip('.'))
