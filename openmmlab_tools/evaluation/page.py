"""Renders a report as one HTML page without scripts or other files, for light and dark screens of any width."""
import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from string import Template
from typing import Any

import numpy as np
from PIL import Image

from openmmlab_tools.texts import markup

Pictures = Sequence[tuple[str, np.ndarray]]  # captions and pixels
PAGE = Template('''<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>$title</title>
<style>
:root { color-scheme: light dark; --text: #1c2126; --soft: #59636e; --back: #fff; --line: #d5dae0; --fill: #9cc7ee;
  --mark: #0b62b8 }
@media (prefers-color-scheme: dark) { :root { --text: #e3e7eb; --soft: #9ba6b1; --back: #14181c; --line: #384048;
  --fill: #24527d; --mark: #79b8f5 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 1.5rem auto;
  max-width: 68rem; padding: 0 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem } p { margin: .3rem 0 .7rem }
.soft, figcaption, th { color: var(--soft); font-weight: normal }
.verdict { border-left: 4px solid var(--mark); padding: .4rem .8rem; margin: 1rem 0 }
.scroll { overflow-x: auto } table { border-collapse: collapse } th { font-size: .85rem; vertical-align: bottom }
td, th { border-bottom: 1px solid var(--line); padding: .25rem .9rem .25rem 0; text-align: left; min-width: 3.5rem }
td { font-variant-numeric: tabular-nums; overflow-wrap: normal }
.bar { background: linear-gradient(var(--fill), var(--fill)) 0 100% / var(--part) 4px no-repeat; padding-bottom: 4px;
  display: inline-block; width: 8rem }
.bar small { color: var(--soft); white-space: nowrap }
@media (max-width: 30rem) { .bar { width: 5.4rem } .bar small { font-size: .68rem } td, th { min-width: 0;
  padding-right: .5rem } }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); gap: 1rem }
.small { grid-template-columns: repeat(auto-fill, minmax(min(13rem, 100%), 1fr)) }
figure { margin: 0 } img { width: 100%; display: block } figcaption { font-size: .85rem }
svg { width: 100%; max-width: 22rem; overflow: visible } svg text { fill: var(--soft); font-size: 11px }
polyline, path { fill: none; stroke: var(--soft); stroke-width: 1 } .main { stroke: var(--mark); stroke-width: 2 }
</style>
<h1>$title</h1>
$body
</html>
''')


def render(title: str, parts: Iterable[str]) -> str:
    return PAGE.substitute(title=markup(title), body='\n'.join(parts))


def section(heading: str, text: str, *content: str) -> str:
    return f'<h2>{markup(heading)}</h2>\n<p class="soft">{markup(text)}</p>\n' + '\n'.join(content)


def paragraph(text: str, kind: str = 'soft') -> str:
    return f'<p class="{kind}">{markup(text)}</p>'


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table as HTML. Cells are texts, whole numbers, shares from 0 to 1, `[share, least, most]`, or None."""
    lines = [f'<tr>{"".join(f"<th>{markup(cell)}" for cell in header)}',
             *(f'<tr>{"".join(f"<td>{_cell(cell)}" for cell in row)}' for row in rows)]
    return '<div class="scroll"><table>\n' + '\n'.join(lines) + '\n</table></div>'


def _cell(value: Any) -> str:
    parts = value if isinstance(value, list | tuple) else [value]
    if parts[0] is None:
        return '–'
    if not isinstance(parts[0], float):
        return markup(value)
    ends = f' <small>{parts[1]:.3f} to {parts[2]:.3f}</small>' if None not in parts[1:] and len(parts) == 3 else ''
    return f'<span class="bar" style="--part: {100 * min(max(parts[0], 0), 1):.1f}%">{parts[0]:.3f}{ends}</span>'


def chart(title: str, across: str, up: str, lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """Returns a chart of lines, by their names, from 0 to 1; the first is the main one."""
    def points(xs: Sequence[float], ys: Sequence[float]) -> str:
        return ' '.join(f'{30 + 250 * x:.1f},{210 - 200 * y:.1f}' for x, y in zip(xs, ys, strict=True))

    drawn = [f'<polyline class="{"" if index else "main"}" points="{points(*line)}"><title>{markup(name)}</title>'
             '</polyline>' for index, (name, line) in enumerate(lines.items())]
    return (f'<figure><svg viewBox="0 0 290 245" role="img"><title>{markup(title)}</title><path d="M30,10V210H280"/>'
            + ''.join(reversed(drawn)) + '<text x="24" y="14" text-anchor="end">1</text><text x="24" y="214" '
            'text-anchor="end">0</text><text x="280" y="224" text-anchor="end">1</text>'
            f'<text x="155" y="238" text-anchor="middle">{markup(across)}</text>'
            f'<text transform="translate(14 110) rotate(-90)" text-anchor="middle">{markup(up)}</text>'
            f'</svg><figcaption>{markup(title)}</figcaption></figure>')


def pictures(shown: Pictures, width: int, small: bool = False) -> str:
    """Returns pictures, `(H, W, 3)`, RGB, uint8, at most `width` pixels wide, with their captions."""
    figures = []
    for caption, pixels in shown:
        image, file = Image.fromarray(pixels), io.BytesIO()
        image.thumbnail((width, 2 * width))
        image.save(file, 'jpeg', quality=85)
        figures.append(f'<figure><img alt="" src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}">'
                     f'<figcaption>{markup(caption)}</figcaption></figure>')
    return f'<div class="pictures{" small" * small}">{"".join(figures)}</div>'
