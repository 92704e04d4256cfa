"""Fonts for names in any script: those of the system that have the letters which matplotlib's own font lacks."""
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from unicodedata import category

from matplotlib import __version_info__ as version
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from mmengine.logging import print_log

# Ranges of characters and the package of Debian and Ubuntu with a font for them; the last one is for all others.
# matplotlib draws no fonts of coloured emoji.
PACKAGES = ((0x2E80, 0x9FFF, 'fonts-noto-cjk'), (0xAC00, 0xD7FF, 'fonts-noto-cjk'), (0xF900, 0xFAFF, 'fonts-noto-cjk'),
            (0xFF00, 0xFFEF, 'fonts-noto-cjk'), (0x20000, 0x3FFFF, 'fonts-noto-cjk'),
            (0x2190, 0x2BFF, 'fonts-symbola'), (0x1F000, 0x1FAFF, 'fonts-symbola'), (0, 0x10FFFF, 'fonts-noto-core'))
KANA, JOINED = range(0x3040, 0x3100), range(0x0590, 0x0E00)


@contextmanager
def in_any_script(figure: Figure) -> Iterator[None]:
    """Gives the texts of a figure, which is drawn in the `with` block, fonts that have their letters.

    A warning, once for each text, names the package with a font that the system lacks; a box is drawn instead.
    """
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        choose_fonts(text)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', r'Glyph \d+ .* missing from', UserWarning)
        yield


def choose_fonts(text: Text) -> None:
    """Adds fonts to those of a text in a figure, if it has letters that need them."""
    if not text.get_text().isascii():
        text.set_fontfamily([*text.get_fontfamily(), *fonts_for(text.get_text())])


@cache
def fonts_for(text: str) -> tuple[str, ...]:
    """Returns the names of the system's fonts for the letters of a text that matplotlib's default font lacks."""
    found: list[str] = []
    lacking = _without(text, findfont(FontProperties()))
    for renew in (False, True):
        if lacking and renew:
            _find_new_fonts()
        is_japanese = any(ord(letter) in KANA for letter in text)
        for path, name in _system_fonts('JP' if is_japanese else 'SC') if lacking else ():
            if len(rest := _without(lacking, path)) < len(lacking):
                found.append(name)
                lacking = rest
    if lacking:
        packages = dict.fromkeys(next(package for low, high, package in PACKAGES if low <= ord(letter) <= high)
                                 for letter in lacking)
        _warn(f'no font of this system has {lacking}, and a box is drawn instead: install one, on Debian and Ubuntu by '
              f'apt install {" ".join(packages)}.')
    if version < (3, 11) and any(ord(letter) in JOINED for letter in text):
        _warn(f'matplotlib {".".join(map(str, version[:2]))} does not join the letters of {text}: install matplotlib '
              '3.11 or newer, which needs Python 3.11.')
    return tuple(found)


def _warn(sentence: str) -> None:
    print_log(sentence, 'current', logging.WARNING)


def _system_fonts(region: str) -> list[tuple[str, str]]:
    """Returns paths and names of upright fonts, first those of Noto Sans, and of its Chinese ones that of a region.

    Last Resort draws boxes.
    """
    fonts = {font.name: font.fname for font in fontManager.ttflist
             if font.style == 'normal' and font.weight == 400 and not re.search('Emoji|Last Resort', font.name)}
    return [(fonts[name], name) for name in sorted(fonts, key=lambda name: (
        not name.startswith('Noto Sans'), 'Mono' in name, 'CJK' in name and not name.endswith(region), name))]


@cache
def _find_new_fonts() -> None:
    """Tells matplotlib, which remembers the fonts of its first run, about those that were installed since."""
    for path in {*findSystemFonts()} - {font.fname for font in fontManager.ttflist}:
        with suppress(Exception):  # fonts that it cannot draw, such as those of coloured emoji
            fontManager.addfont(path)


def _without(text: str, path: str) -> str:
    """Returns the letters of a text that a font lacks, each once; selectors of variants and joiners are no letters."""
    has = _letters(path)
    return ''.join(dict.fromkeys(letter for letter in text if ord(letter) not in has and not (
        category(letter) in ('Cc', 'Cf') or '\ufe00' <= letter <= '\ufe0f')))


@cache
def _letters(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # a damaged font
        return frozenset()
