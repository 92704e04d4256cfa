"""State of the process that tests change, and how it is put back."""
import logging
import multiprocessing
import os
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import cv2
import matplotlib
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.utils import ManagerMixin
from torch import distributed
from torch.backends import cudnn

from openmmlab_tools.redaction import known

UNCONFIGURED: tuple = logging.NOTSET, True, False, [], []


def managers(cls: type[ManagerMixin] = ManagerMixin) -> Iterator[type[ManagerMixin]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from managers(subclass)


# mmengine has no public way to see or remove the instances of DefaultScope, MessageHub, MMLogger, Visualizer and other
# subclasses of ManagerMixin; the last one of a class is the current one. Only these two use each class's private dict.
def instances() -> dict[type[ManagerMixin], list[tuple[str, Any]]]:
    return {cls: list(cls._instance_dict.items()) for cls in managers()}


def set_instances(known: dict[type[ManagerMixin], list[tuple[str, Any]]]) -> None:
    for cls in managers():
        kept = OrderedDict(known.get(cls, ()))
        for name in cls._instance_dict.keys() - kept.keys():
            for handler in getattr(cls._instance_dict[name], 'handlers', ()):
                handler.close()  # a logger's file
        cls._instance_dict = kept


def all_loggers() -> Iterator[logging.Logger]:
    known = logging.root, *logging.root.manager.loggerDict.values(), *(one for _, one in instances()[MMLogger])
    return (one for one in known if isinstance(one, logging.Logger))


def loggers() -> dict[logging.Logger, tuple]:
    """Returns the settings of all loggers, also mmengine's, that are not as logging makes them."""
    actual = {one: (one.level, one.propagate, one.disabled, one.handlers[:], one.filters[:]) for one in all_loggers()}
    return {one: settings for one, settings in actual.items() if settings != UNCONFIGURED}


def set_loggers(settings: dict[logging.Logger, tuple]) -> None:
    for logger in all_loggers():
        level, logger.propagate, logger.disabled, logger.handlers[:], logger.filters[:] = settings.get(
            logger, UNCONFIGURED)
        if logger.level != level:
            logger.setLevel(level)


def set_known(secrets: set[str]) -> None:
    known.clear()
    known.update(secrets)


# How a setting is read, and how it is set.
SETTINGS: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (torch.get_default_dtype, torch.set_default_dtype), (torch.is_grad_enabled, torch.set_grad_enabled),
    (lambda: torch.empty(0).device, lambda _: torch.set_default_device(None)),
    (torch.get_num_threads, torch.set_num_threads), (cv2.getNumThreads, cv2.setNumThreads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *((partial(getattr, cudnn, name), partial(setattr, cudnn, name))
      for name in ('enabled', 'benchmark', 'deterministic', 'allow_tf32')),
    (partial(multiprocessing.get_start_method, allow_none=True), partial(multiprocessing.set_start_method, force=True)),
    (known.copy, set_known), (logging.getLogRecordFactory, logging.setLogRecordFactory),
    (instances, set_instances),  # before loggers, which are among them
    (loggers, set_loggers), (lambda: logging.root.manager.disable, logging.disable), (os.getcwd, os.chdir)]


@contextmanager
def put_back() -> Iterator[None]:
    """Seeds the random generators with 0, hides mmengine's instances, and puts all state back at the end.

    A logger from before would print to the console that was there when it was made, which a test cannot capture.
    """
    before = [read() for read, _ in SETTINGS]
    for cls in managers():
        cls._instance_dict = OrderedDict()
    has_group, python, numpy = distributed.is_initialized(), random.getstate(), np.random.get_state()
    with (torch.random.fork_rng(devices=[]), warnings.catch_warnings(), matplotlib.rc_context(),
          mock.patch.dict(os.environ), mock.patch.multiple(sys, path=sys.path[:], argv=sys.argv[:],
                                                                                  excepthook=sys.excepthook)):
        # torch.manual_seed is slow: without a GPU it keeps a trace of each call
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(0)
        np.random.seed(0)
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            if distributed.is_initialized() and not has_group:
                distributed.destroy_process_group()
            if pyplot := sys.modules.get('matplotlib.pyplot'):  # to import it takes long
                pyplot.close('all')
            os.chdir(before[-1])  # the present folder may be gone
            for (read, put), value in zip(SETTINGS, before, strict=True):
                if read() != value:
                    put(value)
            for _, logger in instances()[MMLogger]:  # it remembers which levels logging.disable had silenced
                logger.setLevel(logger.level)
