"""The part of `pkg_resources` that mmengine 0.10.7 uses, on importlib.metadata.

setuptools 82 dropped the module. Importing any other name from here is the ImportError that the missing module was.
"""
from importlib.metadata import Distribution, PackageNotFoundError, distribution

DistributionNotFound = PackageNotFoundError


class _Installed:
    """An installed distribution: `location` is the folder that holds its modules."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        self.version = distribution.version
        self.location = str(distribution.locate_file(''))

    def has_metadata(self, name: str) -> bool:
        return self._distribution.read_text(name) is not None

    def get_metadata(self, name: str) -> str:
        return self._distribution.read_text(name) or ''


def get_distribution(name: str) -> _Installed:
    """Returns an installed distribution.

    Raises:
        DistributionNotFound: If none has this name.
    """
    return _Installed(distribution(name))


def __getattr__(name: str) -> object:
    if name.startswith('__'):  # Python looks these up in any module
        raise AttributeError(name)
    raise ImportError(f'{name} is not in the stand-in for pkg_resources that openmmlab_tools.compat provides: '
                      "pip install 'setuptools<81' for the real one.")
