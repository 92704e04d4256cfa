"""The console of a run: lines for readers, warnings, and progress. The log file has all that mmengine logs."""
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from io import TextIOWrapper
from typing import Any, TextIO

from mmengine.dist import is_main_process
from mmengine.hooks import Hook, LoggerHook
from mmengine.logging import MMLogger, print_log
from mmengine.runner import Runner

from openmmlab_runs.errors import SHOWN, filter_for_readers, say, show
from openmmlab_runs.files import near
from openmmlab_runs.redaction import redact_text

# What pycocotools, and mmengine without a logger, print about their work.
TALK = re.compile('(loading annotations|done ?\\(t=|creating index|index created|loading and preparing|'
                  'running per image|evaluate annotation type|accumulating evaluation|converting ndarray|'
                  'loads checkpoint by|the model and loaded state dict|could not import)', re.I)
# Warnings of these libraries about their own code, in every run. They are in the log only.
OF_EVERY_RUN = ('"FileClient" will be deprecated', '"HardDiskBackend" is the alias', 'The draw is False',
                '``build_loss`` would be deprecated', 'dataset_meta or class names are not saved', 'The prefix is not',
                'Failed to search registry', 'Default ``avg_non_ignore`` is False', 'torch.meshgrid: in an upcoming',
                # Of gradients that `ExactResumeHook` puts back; it tells if there are none.
                'Resumed iteration number is not divisible by')


class ReaderHandler(logging.Handler):
    """Prints what is for readers, errors, and each warning of the main process once."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = sys.stdout  # mmengine's MLflowVisBackend asks all handlers of a logger for it
        self.warnings: set[str] = set()
        self.replaced: list[tuple[MMLogger, logging.Handler]] = []

    def attach(self, logger: MMLogger) -> None:
        logger.addFilter(filter_for_readers)
        for handler in [one for one in logger.handlers if type(one) is logging.StreamHandler]:
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
            say(f'\n{message}\n' if '\n' in message else message)
        elif (record.levelno == logging.WARNING and message not in self.warnings
              and not message.startswith(OF_EVERY_RUN) and is_main_process()):
            self.warnings.add(message)
            first, *more = message.split('\n')
            say(f'warning: {first}{" ... (more in the log file)" if more else ""}')


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


class ProgressHook(Hook):
    """Prints loss, learning rates and time left of a training, at the interval of `LoggerHook`; about ten lines of a
    validation or test.
    """

    priority = 'LOWEST'

    def __init__(self, handler: ReaderHandler) -> None:
        self.handler, self.begun = handler, False

    def before_run(self, runner: Runner) -> None:
        self.handler.attach(runner.logger)  # of a runner of another class

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        interval = next((hook.interval for hook in runner.hooks if isinstance(hook, LoggerHook)), 1)
        self._tell(runner.iter + 1, runner.max_iters, describe_run(runner), interval if self.begun else 1)
        self.begun = True

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self._tell(batch_idx + 1, len(runner.val_dataloader), 'validation')

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self._tell(batch_idx + 1, len(runner.test_dataloader), 'test')

    def _tell(self, done: int, total: int, state: str, interval: int = 0) -> None:
        is_due = done % interval == 0 or done == total if interval else done % max(total // 10, 10) == 0
        if self.handler.level <= logging.INFO and is_due:
            say(f'{done:{len(str(total))}}/{total}  {state}')


def describe_run(runner: Runner) -> str:
    """Returns loss, learning rates and time left of a training, as the log has them: the mean loss of its window, the
    rate of the first parameters of each optimizer, and, if it is another one, that from which factors make all rates.
    """
    scalars, window = runner.message_hub.log_scalars, runner.log_processor.window_size
    loss = f'loss {scalars["train/loss"].mean(window):.4f}  ' if 'train/loss' in scalars else ''
    rates = ''
    for name in [name for name in scalars if re.match(r'train/(.+\.)?lr$', name)]:
        own, base = (f'{scalars[one].current():.2e}' if one in scalars else '' for one in (
            name, name.removesuffix('lr') + 'base_lr'))
        rates += f'{name[6:-2]}rate {own}  ' + f'base {base}  ' * (base not in ('', own))
    return f'{loss}{rates}left {timedelta(seconds=int(runner.message_hub.get_info("eta", 0)))}'


class ReadableRunner(Runner):
    """mmengine's runner, whose logger prints as the one before it, from its first line, before there are hooks."""

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        handlers = [one for one in MMLogger.get_current_instance().handlers if isinstance(one, ReaderHandler)]
        logger = super().build_logger(*args, **kwargs)
        logger.addFilter(filter_for_readers)
        for file in logger.handlers:
            if isinstance(file, logging.FileHandler) and isinstance(file.stream, TextIOWrapper):
                file.stream.reconfigure(encoding='utf-8', errors='backslashreplace')  # for any names of files
        for handler in handlers:
            handler.attach(logger)
            show(f'Checking model and data. All details are in {near(logger.log_file)}.')
        return logger


@contextmanager
def readable_console(verbose: bool = False) -> Iterator[list[Hook]]:
    """Yields hooks for the runner, and prints only what is for readers in the `with` block, unless `verbose`."""
    with redirect_stdout(Output(sys.stdout)), redirect_stderr(Output(sys.stderr)), warnings.catch_warnings():
        if verbose:
            yield []
            return
        handler = ReaderHandler()
        handler.attach(MMLogger.get_current_instance())
        handler.setLevel(logging.INFO)  # until the runner has its own logger: this may be of a quieter run
        warnings.showwarning = lambda message, category, filename, lineno, *rest: print_log(
            f'{message} ({category.__name__} at {filename}:{lineno})', 'current', logging.WARNING)
        try:
            yield [ProgressHook(handler)]
        finally:
            handler.detach()
