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

import cv2
import matplotlib
import numpy as np
import torch
from mmengine.logging import MMLogger
from mmengine.utils import ManagerMixin
from torch import distributed
from torch.backends import cudnn

# How a setting is read, and how it is set.
Setting = tuple[Callable[[], Any], Callable[[Any], object]]
Instances = dict[type[ManagerMixin], list[tuple[str, Any]]]


def attribute(owner: object, name: str) -> Setting:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def content(values: list[str]) -> Setting:
    return values.copy, partial(values.__setitem__, slice(None))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != 'PYTEST_CURRENT_TEST'}  # pytest's own


def set_environment(variables: dict[str, str]) -> None:
    for name in environment().keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def managers(cls: type[ManagerMixin] = ManagerMixin) -> Iterator[type[ManagerMixin]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from managers(subclass)


# mmengine has no public way to see or remove the instances of DefaultScope, MessageHub, MMLogger, Visualizer and other
# subclasses of ManagerMixin; the last one of a class is the current one. Only the next two functions use the private
# dict that each class has.
def instances() -> Instances:
    return {cls: list(cls._instance_dict.items()) for cls in managers()}


def set_instances(known: Instances) -> None:
    for cls in managers():
        kept = OrderedDict(known.get(cls, ()))
        for name in cls._instance_dict.keys() - kept.keys():
            for handler in getattr(cls._instance_dict[name], 'handlers', ()):
                handler.close()  # a logger's file
        cls._instance_dict = kept


UNCONFIGURED: tuple = logging.NOTSET, True, False, [], []


def all_loggers() -> Iterator[logging.Logger]:
    known = logging.root, *logging.root.manager.loggerDict.values(), *(one for _, one in instances()[MMLogger])
    return (one for one in known if isinstance(one, logging.Logger))


def loggers() -> dict[logging.Logger, tuple]:
    """Returns the settings of all loggers, also mmengine's, that are not as logging makes them."""
    return {one: (one.level, one.propagate, one.disabled, one.handlers[:], one.filters[:]) for one in all_loggers()
            if one.level or one.handlers or one.filters or one.disabled or not one.propagate}


def set_loggers(settings: dict[logging.Logger, tuple]) -> None:
    for logger in all_loggers():
        level, *others = settings.get(logger, UNCONFIGURED)
        if logger.level != level:
            logger.setLevel(level)
        logger.propagate, logger.disabled, logger.handlers[:], logger.filters[:] = others


SETTINGS: dict[str, Setting] = {
    'default dtype': (torch.get_default_dtype, torch.set_default_dtype),
    'default device': (lambda: torch.empty(0).device, lambda _: torch.set_default_device(None)),
    'grad mode': (torch.is_grad_enabled, torch.set_grad_enabled),
    'threads of torch': (torch.get_num_threads, torch.set_num_threads),
    'deterministic algorithms': (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    'matmul precision': (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    **{f'cudnn.{name}': attribute(cudnn, name) for name in ('enabled', 'benchmark', 'deterministic', 'allow_tf32')},
    # mmengine's runner sets these two.
    'threads of OpenCV': (cv2.getNumThreads, cv2.setNumThreads),
    'start method': (partial(multiprocessing.get_start_method, allow_none=True),
                     partial(multiprocessing.set_start_method, force=True)),
    'environment': (environment, set_environment), 'sys.path': content(sys.path), 'sys.argv': content(sys.argv),
    'managed instances': (instances, set_instances),  # before loggers, which are among them
    'loggers': (loggers, set_loggers), 'disabled level': (lambda: logging.root.manager.disable, logging.disable)}


def figures() -> set[int]:
    """Returns the numbers of pyplot's open figures; does not import pyplot, which takes long."""
    return set(sys.modules['matplotlib.pyplot'].get_fignums()) if 'matplotlib.pyplot' in sys.modules else set()


def seed() -> None:
    torch.default_generator.manual_seed(0)  # torch.manual_seed is slow: without a GPU it keeps a trace of each call
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    np.random.seed(0)
    random.seed(0)


@contextmanager
def put_back() -> Iterator[None]:
    """Seeds the random generators with 0, and puts all state back at the end: see `SETTINGS` and below."""
    before = {name: read() for name, (read, _) in SETTINGS.items()}
    folder, drawn, has_group = os.getcwd(), figures(), distributed.is_initialized()
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), matplotlib.rc_context():
        seed()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            if distributed.is_initialized() and not has_group:
                distributed.destroy_process_group()
            for number in figures() - drawn:
                sys.modules['matplotlib.pyplot'].close(number)
            os.chdir(folder)
            for name, (read, put) in SETTINGS.items():
                if read() != before[name]:
                    put(before[name])
