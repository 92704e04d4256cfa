from .config import load_config
from .run import test, train

__all__ = ['load_config', 'test', 'train']
