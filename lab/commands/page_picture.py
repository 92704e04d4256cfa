"""Takes a picture of a test report with Chromium: its top, or one section with its pictures.

The pictures in docs/guides/evaluate.md are made with this command.
"""
import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.texts import some

BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
HEADING = re.compile('(?=<h2>)')


def page_of(page: str, title: str | None) -> str:
    """Returns a page with the section of a title alone, or the whole page if the title is None."""
    head, *sections = HEADING.split(page)
    if title is None:
        return page
    titles = [re.match('<h2>(.*?)</h2>', section)[1] for section in sections]  # type: ignore[index]
    if title not in titles:
        raise UserError(f'the report has no section {title!r}: choose from {some(titles, len(titles))}.')
    return head[:head.index('<h1>')] + sections[titles.index(title)]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('page', type=Path, help='index.html of a report')
    parser.add_argument('out', type=Path, help='.png file to write')
    parser.add_argument('--section', metavar='TITLE', help='section to show alone; the whole page if not given')
    parser.add_argument('--size', type=int, nargs=2, default=(1100, 1000), metavar=('WIDTH', 'HEIGHT'),
                        help='size of the picture in pixels; what is below is cut')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UserError(f'none of {", ".join(BROWSERS)} is installed: install Chromium.')
    page = page_of(args.page.read_text('utf-8'), args.section)
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder, 'page.html')
        shown.write_text(page, 'utf-8')
        subprocess.run([browser, '--headless', '--no-sandbox', '--hide-scrollbars', f'--user-data-dir={folder}/profile',
                        f'--window-size={args.size[0]},{args.size[1]}', f'--screenshot={args.out.resolve()}',
                        shown.as_uri()], check=True, capture_output=True, timeout=300)
    print(args.out)
