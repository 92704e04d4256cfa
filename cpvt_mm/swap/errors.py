"""Reasons why a config cannot take a backbone."""
from cpvt_mm.errors import UserError


class CannotSwap(UserError):
    """The config cannot take the backbone. The message is a sentence with the reason."""


class CannotBuild(CannotSwap):
    """A part of the old model cannot be built on this machine, so its channels are unknown."""


class CannotRun(CannotSwap):
    """A part of the old model fails during probing, so its channels are unknown."""
