"""Packaging: dependencies from requirements/, configs and tools under cpvt_mm/.mim as mim expects, and a .pth file."""
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PACKAGES = ('cpvt_mm', 'openmmlab_runs', 'openmmlab_compat')
MIM_FILES = ('configs', 'tools', 'model-index.yml')
# Tools that call `lab`, which is in the clone only.
LAB_TOOLS = ('analysis_tools', 'dataset_converters', 'demo.py')


def requirements(name: str) -> list[str]:
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


class BuildWithMim(build_py):
    """Copies configs, tools and model-index.yml to cpvt_mm/.mim of the wheel, never into the source tree.

    In the source tree `.mim` holds links, which git tracks, as OpenMMLab's packages have them in development. The line
    in `openmmlab_compat.pth` runs whenever Python starts.
    """

    def run(self) -> None:
        super().run()
        # The wheel of an editable install holds what lies in this folder, but not what is built.
        packages = self.get_finalized_command('install').install_lib if self.editable_mode else self.build_lib
        self.copy_file('openmmlab_compat.pth', packages)
        if self.editable_mode:
            return
        target = Path(self.build_lib) / 'cpvt_mm' / '.mim'
        shutil.rmtree(target, ignore_errors=True)
        for name in MIM_FILES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns('__pycache__', *LAB_TOOLS))
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / name)


setup(
    name='cpvt_mm',
    version=re.search(r"__version__ = '(.+)'", (ROOT / 'cpvt_mm/version.py').read_text())[1],
    description='Conditional position encodings for vision transformers (CPVT) as an OpenMMLab backbone',
    long_description=(ROOT / 'README.md').read_text(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    # With this, an editable install is a line in a .pth file. Otherwise a script beside the clone, which has the name
    # of the package, would import the clone's folder as a namespace package.
    package_dir={'': '.'},
    packages=find_packages(include=[name for package in PACKAGES for name in (package, f'{package}.*')]),
    package_data={'cpvt_mm': ['py.typed'], 'openmmlab_runs': ['py.typed']},
    python_requires='>=3.10',
    # mmengine comes with a stack: two distributions provide it, so it cannot be named here.
    install_requires=['torch>=2.6', 'safetensors'],
    extras_require={
        **{name: requirements(name)
           for name in ('openmmlab', 'onedl', 'mmpretrain', 'hub', 'examples', 'demo', 'smp', 'metric')},
        # Without demo and smp, which cannot be installed everywhere (see there).
        'tests': [line for name in ('tests', 'mmpretrain', 'hub', 'examples', 'metric') for line in requirements(name)],
    },
    cmdclass={'build_py': BuildWithMim},
    zip_safe=False,
)
