"""Adds what pyproject.toml cannot name: configs and tools in cpvt_mm/.mim, for mim, and start files of Python."""
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
MIM_FILES = ('configs', 'tools', 'model-index.yml')
# Tools for the clone: they call `lab`, or install it.
CLONE_TOOLS = ('analysis_tools', 'setup_env.sh')


class BuildWithMim(build_py):
    """Copies configs, tools and model-index.yml to cpvt_mm/.mim of the wheel, never into the source tree.

    In the source tree `.mim` holds links, which git tracks, as OpenMMLab's packages have them in development.
    """

    def run(self) -> None:
        super().run()
        # The wheel of an editable install holds what lies in this folder, but not what is built.
        packages = self.get_finalized_command('install').install_lib if self.editable_mode else self.build_lib
        # Python reads one of these whenever it starts: `.start` from 3.15 on (PEP 829), `.pth` before.
        for suffix in ('.pth', '.start'):
            self.copy_file(f'openmmlab_tools/compat/openmmlab_tools{suffix}', packages)
        if self.editable_mode:
            return
        target = Path(self.build_lib) / 'cpvt_mm' / '.mim'
        shutil.rmtree(target, ignore_errors=True)
        for name in MIM_FILES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns('__pycache__', *CLONE_TOOLS))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / name)


setup(cmdclass={'build_py': BuildWithMim})
