"""Takes the picture of the browser demo in docs/guides/demo.md: uploads an image, clicks a pixel, and saves the page.

This requires the extra `demo`, `pip install playwright`, and Chromium.
"""
import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from openmmlab_tools.errors import UserError, exit_on_error

ROOT = Path(__file__).parents[2]
PATIENCE = 600  # seconds for each step


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until a page is served; raises a UserError if the process that serves it ends first."""
    for _ in range(PATIENCE):
        if process.poll() is not None:
            raise UserError(f'demo/gradio_app.py ended with status {process.returncode}: run it to read its error.')
        try:
            urlopen(address).close()
            return
        except URLError:
            time.sleep(1)
    raise UserError(f'demo/gradio_app.py does not serve {address} within {PATIENCE} s: run it to see why.')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--image', type=Path, default=ROOT / 'demo/nuclei/example.png', help='image to upload')
    parser.add_argument('--pixel', type=float, nargs=2, default=(0.5, 0.5), metavar=('X', 'Y'),
                        help='pixel to click, as shares of width and height')
    parser.add_argument('--port', type=int, default=7871, help='port to serve the page at')
    parser.add_argument('--out', type=Path, default=ROOT / 'docs/gradio_demo.png', help='.png file to write')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    from playwright.sync_api import sync_playwright
    address = f'http://127.0.0.1:{args.port}'
    server = subprocess.Popen([sys.executable, ROOT / 'demo/gradio_app.py', '--port', str(args.port)])
    try:
        wait_for(address, server)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which('chromium'), args=['--no-sandbox'])
            page = browser.new_page(viewport=dict(width=1200, height=900))
            page.set_default_timeout(1000 * PATIENCE)
            page.goto(address)
            page.locator('#image input[type=file]').set_input_files(args.image)
            page.locator('#prediction img').wait_for()
            image = page.locator('#image img')
            box = image.bounding_box()
            assert box
            image.click(position=dict(x=args.pixel[0] * box['width'], y=args.pixel[1] * box['height']))
            page.locator('#attention img').wait_for()
            page.wait_for_timeout(2000)  # for the caption, and the end of animations
            page.screenshot(path=args.out, full_page=True)
    finally:
        server.terminate()
        server.wait()
    print(args.out)
