"""Finds fonts for names in any script, if matplotlib's font lacks some letters."""
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from unicodedata import category

from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.text import Text
from mmengine.logging import print_log


@contextmanager
def in_any_script(figure: Figure) -> Iterator[None]:
    """Gives the texts of a figure, which is drawn in the `with` block, fonts that have their letters.

    A warning, once for each text, names letters that the system lacks; a box is drawn instead.
    """
    for text in _texts(figure):
        if not text.get_text().isascii():
            text.set_fontfamily([*text.get_fontfamily(), *fonts_for(text.get_text())])
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', r'Glyph \d+ .* missing from', UserWarning)
        yield


def _texts(artist: Artist) -> Iterator[Text]:
    """Yields the texts in a figure or a part. An axis that is not drawn would make its ticks now, which takes long."""
    if isinstance(artist, Text):
        yield artist
    if not (isinstance(artist, Axis) and not artist.axes.axison):
        for part in artist.get_children():
            yield from _texts(part)


@cache
def fonts_for(text: str) -> tuple[str, ...]:
    """Returns the names of the system's fonts for the letters of a text that matplotlib's default font lacks."""
    names: list[str] = []
    lacking = _without(text, findfont(FontProperties()))
    for path, name in _system_fonts() if lacking else ():
        if len(rest := _without(lacking, path)) < len(lacking):
            names.append(name)
            lacking = rest
    if lacking:
        print_log(f'no font of this system has {lacking}, and a box is drawn instead: install one, on Debian and '
                  'Ubuntu by apt install fonts-noto-core fonts-noto-cjk fonts-symbola.', 'current', logging.WARNING)
    return tuple(names)


@cache
def _system_fonts() -> list[tuple[str, str]]:
    """Returns paths and names of upright fonts, also those that are newer than matplotlib's list, Noto Sans first.

    Emoji in colours cannot be drawn, and Last Resort draws boxes.
    """
    for path in {*findSystemFonts()} - {font.fname for font in fontManager.ttflist}:
        with suppress(Exception):  # fonts that it cannot read raise any error
            fontManager.addfont(path)
    fonts = {font.name: font.fname for font in fontManager.ttflist
             if font.style == 'normal' and font.weight == 400 and not re.search('Emoji|Last Resort', font.name)}
    return [(fonts[name], name) for name in sorted(fonts, key=lambda name: (
        not name.startswith('Noto Sans'), 'Mono' in name, name))]


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
