"""The console of a run: lines for readers, warnings, and progress. The log file has all that mmengine logs."""
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from mmengine.dist import is_main_process
from mmengine.logging import MMLogger, print_log

from openmmlab_tools.errors import SHOWN, filter_for_readers, say
from openmmlab_tools.redaction import redact_text

# Lines that pycocotools, and mmengine without a logger, print about their progress.
TALK = re.compile('(loading annotations|done ?\\(t=|creating index|index created|loading and preparing|'
                  'running per image|evaluate annotation type|accumulating evaluation|converting ndarray|'
                  'loads checkpoint by|the model and loaded state dict|could not import)', re.I)
# Warnings of these libraries about their own code, in every run. They are in the log only.
OF_EVERY_RUN = ('"FileClient" will be deprecated', '"HardDiskBackend" is the alias', 'The draw is False',
                '``build_loss`` would be deprecated', 'dataset_meta or class names are not saved', 'The prefix is not',
                'Failed to search registry', 'Default ``avg_non_ignore`` is False', 'torch.meshgrid: in an upcoming',
                # `ExactResumeHook` restores accumulated gradients, and warns if a checkpoint has none.
                'Resumed iteration number is not divisible by')
# The parts of a line of mmengine's LoggerHook that are printed: learning rates, the time left, and the loss.
PROGRESS = re.compile(r'\S*lr: \S+|\beta: .+?(?=  )|\bloss: \S+')


# mmengine warns of each frozen parameter by itself when it builds the optimizer.
FROZEN = re.compile(r'(\S+) is skipped since its requires_grad=False')


class ReaderHandler(logging.Handler):
    """Prints what is for readers, progress, errors, and each warning of the main process once."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = sys.stdout  # mmengine's MLflowVisBackend asks all handlers of a logger for it
        self.warnings: set[str] = set()
        self.frozen: list[str] = []  # names of parameters, until the next line is printed
        self.replaced: list[tuple[MMLogger, logging.Handler]] = []

    def attach(self, logger: MMLogger) -> None:
        logger.addFilter(filter_for_readers)
        for handler in [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]:
            self.setLevel(handler.level)
            self.replaced.append((logger, handler))
            logger.removeHandler(handler)
            logger.addHandler(self)

    def detach(self) -> None:
        for logger, handler in self.replaced:
            logger.removeHandler(self)
            logger.addHandler(handler)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage().strip()
        if record.levelno >= logging.ERROR or hasattr(record, SHOWN):
            self._say(f'\n{message}\n' if '\n' in message else message)
        elif record.module == 'logger_hook' and 'eta: ' in message:
            step, _, values = message.partition(']  ')
            self._say('  '.join([f'{step}]', *PROGRESS.findall(values)]) if values else message)
        elif (record.levelno == logging.WARNING and message not in self.warnings
              and not message.startswith(OF_EVERY_RUN) and is_main_process()):
            self.warnings.add(message)
            if frozen := FROZEN.fullmatch(message):
                self.frozen.append(frozen[1])
                return
            first, *more = message.split('\n')
            self._say(f'warning: {first}{" ... (more in the log file)" if more else ""}')

    def _say(self, text: str) -> None:
        """Prints a text, and before it one line for all frozen parameters."""
        if self.frozen:
            say(f'note: {len(self.frozen)} parameters are frozen (requires_grad=False), such as {self.frozen[0]}. '
                'Training does not change them. The log file lists all of them.')
            self.frozen.clear()
        say(text)


class Output:
    """A stream without known secrets; what libraries print about their work, with names of files, goes to the log."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_talk = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        if self.is_talk and text == '\n':  # `print` writes it by itself
            self.is_talk = False
            return 1
        self.is_talk = TALK.match(text) is not None
        if not self.is_talk:
            return self.stream.write(redact_text(text))
        print_log(text.strip(), 'current')
        return len(text)


@contextmanager
def readable_console(verbose: bool = False) -> Iterator[None]:
    """Prints only what is for readers in the `with` block, unless `verbose`."""
    with redirect_stdout(Output(sys.stdout)), redirect_stderr(Output(sys.stderr)), warnings.catch_warnings():
        if verbose:
            yield
            return
        handler = ReaderHandler()
        handler.attach(MMLogger.get_current_instance())
        handler.setLevel(logging.INFO)  # until the runner has its own logger: this may be of a quieter run
        warnings.showwarning = lambda message, category, filename, lineno, *rest: print_log(
            f'{message} ({category.__name__} at {filename}:{lineno})', 'current', logging.WARNING)
        try:
            yield
        finally:
            handler.detach()
