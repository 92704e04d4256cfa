"""Describes the machine of a benchmark."""
import os
import platform
import re
from pathlib import Path

import torch


def describe(device: str) -> dict[str, str]:
    """Returns the name of the processor or GPU and the version of torch."""
    return dict(machine=torch.cuda.get_device_name() if device == 'cuda' else f'{_cpu()}, {os.cpu_count()} cores',
                torch=torch.__version__)


def _cpu() -> str:
    path = Path('/proc/cpuinfo')
    found = re.search(r'model name\s*:\s*(.+)', path.read_text()) if path.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
