"""A web page that shows predictions of a detector or segmentor, and the attention of its backbone, for an image."""
import argparse
import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

import numpy as np

from lab.shown_model import ShownModel
from openmmlab_tools.engine.console import readable_console
from openmmlab_tools.engine.work_dir import WorkDir
from openmmlab_tools.errors import UserError, exit_on_error, first_line, sentence
from openmmlab_tools.redaction import redact_text
from openmmlab_tools.texts import markup, printable

try:
    import gradio as gr
except ImportError:
    sys.exit("error: gradio is not installed: run pip install -e '.[demo]' in the clone.")

NUCLEI = Path(__file__).parent / 'nuclei'
SMALLEST, LARGEST, STEP = 64, 1024, 32  # test sizes, pixels
# A photo of `MAX_PIXELS` without compression; files older than a day, looked for every hour; and waiting calls. gradio
# cannot stop a call that runs: ShownModel does.
UPLOAD, DELETE_CACHE, QUEUE = '50mb', (3600, 86400), 20
BUTTONS = ['download', 'fullscreen']
HINT = 'Click a pixel of your image to see where it attends.'

load = functools.cache(ShownModel)


def in_page(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the page show errors that a user can cause, as text: gradio takes messages for HTML."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        try:
            return function(*args)
        except UserError as error:
            raise gr.Error(markup(redact_text(sentence(error))), print_exception=False) from error

    return wrapped


@in_page
def predict(image: str | None, checkpoint: str, side: int, score_thr: float) -> np.ndarray | None:
    return image and load(Path(checkpoint)).paint(image, side, score_thr)


@in_page
def attend(image: str | None, checkpoint: str, side: int, block: str, pixel: list[int] | None
           ) -> tuple[np.ndarray | None, str]:
    if not image or not pixel:
        return None, HINT
    painted, sentence_of_it = load(Path(checkpoint)).draw_attention(image, side, block, tuple(pixel))
    return painted, markup(sentence_of_it)  # the caption is Markdown


@in_page
def choose(checkpoint: str) -> tuple[gr.Slider, gr.Slider, gr.Dropdown]:
    """Returns the initial test size, score and block for a checkpoint."""
    model = load(Path(checkpoint))
    return (gr.Slider(SMALLEST, max(LARGEST, model.side), model.side, step=STEP, buttons=[], label='Test size',
                      info=f'Shorter side of the scale, in pixels; at first {model.side}.'),
            gr.Slider(0, 1, 0.3, step=0.05, buttons=[], label='Score', visible=model.is_detector,
                      info='Boxes and masks with a lower score are hidden.'),
            gr.Dropdown(model.blocks, value=model.block, label='Block', info='The block whose attention is drawn.'))


def clicked(event: gr.SelectData) -> list[int]:
    return event.index


def build_app(checkpoints: list[Path]) -> gr.Blocks:
    """Makes the page; raises a gr.Error if the first checkpoint cannot be loaded."""
    names = [(printable(f'{path.parent.name}/{path.name}'), str(path)) for path in checkpoints]
    with gr.Blocks(title='cpvt_mm', analytics_enabled=False, delete_cache=DELETE_CACHE) as app:
        gr.Markdown('# cpvt_mm\nDrop an image, and see what the model predicts at each test size.')
        pixel = gr.State()
        with gr.Row():
            image = gr.Image(label='Image', type='filepath', sources=['upload'], buttons=[], elem_id='image')
            # gradio must not open the file: ShownModel reads it and explains faults in one sentence.
            image.preprocess = lambda payload: payload and payload.path
            painted = gr.Image(label='Prediction', interactive=False, buttons=BUTTONS, elem_id='prediction')
        with gr.Row():
            with gr.Column(min_width=320):
                checkpoint = gr.Dropdown(names, value=names[0][1], label='Checkpoint')
                side, score_thr, block = choose(names[0][1])
            with gr.Column(min_width=320):
                attention = gr.Image(label='Attention', interactive=False, buttons=BUTTONS, elem_id='attention')
                caption = gr.Markdown(HINT, elem_id='caption')
        # One call runs at a time, because calls share the models. Only the last waiting change is executed.
        options = dict(concurrency_id='models', trigger_mode='always_last', show_progress='minimal')
        prediction = dict(fn=predict, inputs=[image, checkpoint, side, score_thr], outputs=painted, **options)
        attending = dict(fn=attend, inputs=[image, checkpoint, side, block, pixel], outputs=[attention, caption],
                         **options)
        image.change(lambda: None, outputs=pixel)
        image.select(clicked, outputs=pixel)
        gr.on([image.change, side.input, score_thr.input], **prediction)
        gr.on([pixel.change, side.input, block.input], **attending)
        chosen = checkpoint.input(choose, checkpoint, [side, score_thr, block], **options)
        chosen.success(**prediction).success(**attending)
    return app.queue(max_size=QUEUE)


def find_checkpoint(path: Path) -> Path:
    """Returns a checkpoint, or the last checkpoint of a work dir; raises a UserError if there is none."""
    checkpoint = Path(WorkDir(path).last_checkpoint([]) or path) if path.is_dir() else path
    if not checkpoint.is_file():
        raise UserError(f'{path} is neither a checkpoint nor a work dir with one: check the path.')
    return checkpoint


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('checkpoints', nargs='*', type=Path, metavar='CHECKPOINT',
                        default=[NUCLEI / 'model.safetensors'],
                        help='work dir of training, or checkpoint with its config in the same folder')
    parser.add_argument('--host', default='127.0.0.1', help='address to serve the page at')
    parser.add_argument('--port', type=int, default=7860, help='port to serve the page at')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    try:
        with readable_console():
            build_app([find_checkpoint(path) for path in args.checkpoints]).launch(
                server_name=args.host, server_port=args.port, show_error=True, max_file_size=UPLOAD)
    except gr.Error as error:
        if isinstance(error.__cause__, UserError):  # its message is text, not HTML
            raise error.__cause__ from None
        raise UserError(error.message) from error
    except OSError as error:
        raise UserError(f'the page cannot be served at {args.host}, port {args.port} ({first_line(error)}): choose '
                        'another host or port.') from error


if __name__ == '__main__':
    main()
