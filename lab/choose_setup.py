"""Chooses what setup_env.sh installs: which torch, and whose operators mmcv gets.

    python lab/choose_setup.py check STACK ENV_DIR     # before there is an environment: refuses what cannot be
    ENV_DIR/bin/python lab/choose_setup.py choose STACK ENV_DIR [--torchvision-fails]

Prints the choice as variables of a shell. What cannot be is one sentence, and the exit status 2.
The standard library is enough, and any Python from 3.6 on runs this file to learn that it is too old.
"""
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STACKS = ('openmmlab', 'onedl')
OPERATORS = ('torchvision', 'compiled')
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)
OLDEST_TORCH = '2.6'
# A build for CPUs needs a third of the disk, but PyPI has no torchvision for it.
CPU_BUILD = '2.13.0+cpu'
NEWEST_PAIR = ('torch>=2.6', 'torchvision>=0.21')
# Distributions that own the folder mmcv: pip would mix their files.
MMCVS = ('mmcv', 'mmcv-full', 'mmcv-lite', 'onedl-mmcv')


class Refusal(Exception):
    """Says in a sentence what cannot be set up, and what to do."""


class Facts(NamedTuple):
    """Facts that a choice depends on."""
    stack: str = 'openmmlab'
    python: tuple = (3, 11)
    operators: str = ''  # the variable OPERATORS
    torch: str = ''  # the variable TORCH
    force_cuda: bool = False  # FORCE_CUDA=1: for a GPU that is elsewhere
    gpu: bool = False  # CUDA finds one
    compiler: bool = True
    torches: tuple = ()  # the versions that pip offers
    torchvisions: tuple = ()
    torchvision_fails: bool = False  # it is installed, but cannot be imported
    mmcv: str = 'mmcv-lite==2.1.0'  # the line of requirements/STACK.txt
    installed: tuple = ()  # distributions in the environment
    env_python: tuple = ()
    free_gb: float = 100


class Choice(NamedTuple):
    """Things to install, in this order."""
    torch: tuple  # requirements for pip
    operators: str
    mmcv: str
    remove: tuple  # distributions that would be mixed with these
    cuda: bool  # compiled operators are for GPUs, too
    why: str


def check(facts: Facts) -> None:
    """Refuses what the request, the Python and the folder already rule out."""
    if not OLDEST_PYTHON <= facts.python <= NEWEST_PYTHON:
        raise Refusal('PYTHON is Python {}.{}, but must be 3.10 to 3.14: set PYTHON to one.'.format(*facts.python))
    if facts.stack not in STACKS:
        raise Refusal(f"STACK is '{facts.stack}', but must be openmmlab or onedl.")
    if facts.operators not in ('', *OPERATORS):
        raise Refusal(f"OPERATORS is '{facts.operators}', but must be torchvision or compiled.")
    if facts.torch and not re.fullmatch(r'\d+\.\d+(\.\d+)?(\+\w+)?', facts.torch):
        raise Refusal(f"TORCH is '{facts.torch}', but must be a version such as 2.14 or 2.13.0.")
    if facts.torch and release(facts.torch) < release(OLDEST_TORCH):
        raise Refusal(f'TORCH is {facts.torch}, but cpvt_mm needs torch {OLDEST_TORCH} or newer.')
    if facts.env_python not in ((), facts.python):
        raise Refusal('The environment has Python {}.{}, but PYTHON is Python {}.{}: remove its folder, or set PYTHON.'
                      .format(*facts.env_python, *facts.python))
    other = 'mmengine' if facts.stack == 'onedl' else 'onedl-mmengine'
    if other in facts.installed:
        raise Refusal(f'The environment has the other stack ({other}): remove its folder, or name another.')


def choose(facts: Facts) -> Choice:
    """Chooses torchvision's operators wherever a torchvision fits the torch, since they need no compiler."""
    check(facts)
    wants_cuda = facts.gpu or facts.force_cuda
    cpu_only = CPU_BUILD in facts.torches and not has_build(facts.torchvisions, 'cpu')
    if facts.torch:
        version = best(facts.torches, facts.torch)
    elif cpu_only and not wants_cuda and facts.compiler and facts.operators != 'torchvision':
        version = CPU_BUILD
    else:
        version = ''  # pip finds the newest pair
    build = (version or best(facts.torches)).partition('+')[2]
    fits = not facts.torchvision_fails and (not build or has_build(facts.torchvisions, build))
    operators = facts.operators or ('torchvision' if fits else 'compiled')
    name = f'torch {version}' if version else 'the newest torch'

    if operators == 'torchvision' and not fits:
        raise Refusal(f'OPERATORS is torchvision, but none works with {name} here: set OPERATORS=compiled, or TORCH to '
                      'another version.')
    if operators == 'compiled' and not facts.compiler:
        reason = 'OPERATORS is compiled' if facts.operators else f'no torchvision works with {name} here'
        raise Refusal(f"mmcv's operators must be compiled, since {reason}, but there is no C++ compiler: install g++ "
                      'or clang.')
    if facts.force_cuda and build == 'cpu':
        raise Refusal(f'FORCE_CUDA is 1, but {name} is a build for CPUs: set TORCH to another version.')
    needed = 3 if build == 'cpu' else 8
    if facts.free_gb < needed:
        raise Refusal(f'The disk has {facts.free_gb:.1f} GB for the environment, but {name} and the rest need '
                      f'{needed}: make room, or name a folder on another disk.')

    if operators == 'torchvision':
        why = f"torchvision's operators beside {name}: they need no compiler"
    elif facts.operators:
        why = f'compiled operators beside {name}, as OPERATORS says'
    else:
        why = f'compiled operators beside {name}, for which there is no torchvision'
        if version == CPU_BUILD and not facts.torch:
            why += '; pip has this small build at hand, and no GPU is asked for'
    if not facts.operators:
        why += '. OPERATORS={} chooses otherwise'.format(*set(OPERATORS) - {operators})

    mmcv = facts.mmcv.replace('mmcv-lite', 'mmcv') if operators == 'compiled' else facts.mmcv
    owners = set(MMCVS) & set(facts.installed)
    torch = (f'torch=={version}', *(('torchvision',) if fits else ())) if version else NEWEST_PAIR[:1 + fits]
    return Choice(torch=torch, operators=operators, mmcv=mmcv, cuda=wants_cuda and build != 'cpu', why=why,
                  # Once the files of two distributions were mixed, neither is whole.
                  remove=tuple(sorted(owners)) if owners - {mmcv.partition('==')[0]} else ())


def choose_nvcc(torch_cuda: str, nvcc: str) -> str:
    """Chooses the version of nvcc from PyPI that torch's version of CUDA asks for, or '' if the installed nvcc fits."""
    if nvcc.partition('.')[0] == torch_cuda.partition('.')[0]:
        return ''
    if release(torch_cuda) < (13,):
        raise Refusal(f'torch is built for CUDA {torch_cuda}, and PyPI has nvcc for 13.0 and newer only: install nvcc '
                      f'{torch_cuda}, or set OPERATORS=torchvision.')
    return torch_cuda


def release(version: str) -> tuple:
    """Numbers of a version, without what follows a plus sign."""
    return tuple(int(part) for part in re.findall(r'\d+', version.partition('+')[0]))


def has_build(versions: tuple, build: str) -> bool:
    return any(version.partition('+')[2] == build for version in versions)


def best(versions: tuple, wanted: str = '') -> str:
    """The version that pip takes: the newest that begins with the wanted numbers; a local build before PyPI's."""
    numbers, build = release(wanted), wanted.partition('+')[2]
    found = [version for version in versions if re.fullmatch(r'[\d.]+(\+\w+)?', version)
             and release(version)[:len(numbers)] == numbers and build in ('', version.partition('+')[2])]
    if wanted and versions and not found:
        raise Refusal(f'TORCH is {wanted}, but pip has no such torch for this Python.')
    return max(found, key=lambda version: (release(version), '+' in version), default=wanted)


def offered(name: str) -> tuple:
    """The versions that pip offers for this Python; none without a network, and then `pip install` says why."""
    found = subprocess.run([sys.executable, '-m', 'pip', 'index', 'versions', name], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=False)
    line = re.search('^Available versions: (.*)', found.stdout, re.MULTILINE)
    return tuple(line[1].split(', ')) if line else ()


def finds_gpu() -> bool:
    """Asks the driver, which heeds CUDA_VISIBLE_DEVICES; torch may not be there yet."""
    try:
        return ctypes.CDLL('libcuda.so.1').cuInit(0) == 0
    except OSError:
        return False


def free_gb(env: Path) -> float:
    """The disk that an environment can have: what is free, and what a run before this one left there."""
    used = subprocess.run(['du', '-sk', env], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    return shutil.disk_usage(env).free / 1e9 + (int(used[0]) / 1e6 if used else 0)


def gather(stack: str, env: Path) -> Facts:
    """The facts that are there before pip is asked."""
    config = env / 'pyvenv.cfg'
    version = re.search(r'^version = (\d+)\.(\d+)', config.read_text() if config.exists() else '', re.MULTILINE)
    requirements = ROOT / 'requirements' / f'{stack}.txt'
    mmcv = re.search(r'^(onedl-)?mmcv.*$', requirements.read_text() if requirements.exists() else '', re.MULTILINE)
    return Facts(
        stack=stack,
        python=sys.version_info[:2],
        operators=os.environ.get('OPERATORS', ''),
        torch=os.environ.get('TORCH', ''),
        force_cuda=os.environ.get('FORCE_CUDA', '0') == '1',
        gpu=finds_gpu(),
        compiler=bool(shutil.which('c++')),
        mmcv=mmcv[0] if mmcv else '',
        installed=tuple(re.sub('[-_.]+', '-', path.name.split('-')[0]).lower()
                        for path in env.glob('lib/python*/site-packages/*.dist-info')),
        env_python=tuple(map(int, version.groups())) if version else ())


def main(task: str, *arguments: str) -> None:
    try:
        if task == 'nvcc':
            print(choose_nvcc(*arguments))
            return
        stack, env, *flags = arguments
        facts = gather(stack, Path(env))
        if task == 'check':
            check(facts)
            return
        choice = choose(facts._replace(torches=offered('torch'), torchvisions=offered('torchvision'),
                                       torchvision_fails='--torchvision-fails' in flags, free_gb=free_gb(Path(env))))
    except Refusal as refusal:
        sys.stderr.write(f'{refusal}\n')
        sys.exit(2)
    for name, value in choice._asdict().items():
        words = value if isinstance(value, tuple) else (str(value),)
        text = ' '.join(map(shlex.quote, words))
        print(f'{name}=({text})' if isinstance(value, tuple) else f'{name}={text}')


if __name__ == '__main__':
    main(*sys.argv[1:])
