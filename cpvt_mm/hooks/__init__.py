"""Hooks of mmengine's runner."""
from .checkpoint import DurableCheckpointHook
from .stop_on_non_finite_loss import StopOnNonFiniteLoss

__all__ = ['DurableCheckpointHook', 'StopOnNonFiniteLoss']
