"""Hooks of mmengine's runner."""
from mmengine.hooks import Hook

from openmmlab_tools.registry import HOOKS

from .checkpoint import DurableCheckpointHook, SaveOnSignalHook
from .exact_resume import ExactResumeHook, SameStartHook
from .non_finite_loss import NonFiniteLossHook
from .notes import PortableLogHook, ScaleHook
from .report import ReportHook
from .validate_first import ValidateFirstHook

# A hook that does nothing: `prepare` writes it where a config turns off one of the hooks above with None. Configs of
# earlier versions name a FullDiskHook.
HOOKS.register_module(['NoHook', 'FullDiskHook'], module=Hook)

__all__ = ['DurableCheckpointHook', 'ExactResumeHook', 'NonFiniteLossHook', 'PortableLogHook',
           'ReportHook', 'SameStartHook', 'SaveOnSignalHook', 'ScaleHook', 'ValidateFirstHook']
