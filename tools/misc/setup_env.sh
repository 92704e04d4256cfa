#!/usr/bin/env bash
# Creates ENV_DIR with torch, one of the two stacks, and this project in editable mode.
#
#   tools/misc/setup_env.sh {openmmlab|onedl} ENV_DIR
#
# choose_setup.py looks at what is there and chooses torch and mmcv's operators: torchvision's wherever a torchvision
# fits the torch, else compiled ones. Variables choose otherwise:
#   OPERATORS=torchvision|compiled    whose operators mmcv gets
#   TORCH=2.14                        a version of torch, 2.6 or newer
#   FORCE_CUDA=1                      for GPUs, also where there is none
#   PYTHON=python3.12                 the interpreter, Python 3.10 to 3.14
# Runs again from where it stopped. An environment stays of the kind that was asked for, and a finished one is left as
# it is until requirements/ changes.
set -euo pipefail
cd "$(dirname "$0")/../.."

stack=${1:-openmmlab}
env=${2:-.venv}
[[ $env = /* ]] || env=$PWD/$env
python=${PYTHON:-python3}
log=$env/setup.log

say() { echo "[setup $stack] $*"; }
die() { echo "${*:2}" >&2; exit "$1"; }
fail() {  # names the step, and the last error in its log
  local error
  error=$(grep -E '([Ee]rror|ERROR): ' "$log" | tail -n 1) || error=$(tail -n 1 "$log")
  # pip itself would end with the news that there is no such package.
  ! grep -q 'connection broken by' "$log" || error="the network failed; $error"
  die 1 "The step '$1' failed ($error): mend that and run the same command again; $log has the rest."
}
step() {  # step NAME COMMAND...
  say "$1"
  "${@:2}" > "$log" 2>&1 || fail "$1"
}
in_env() { "$env/bin/python" "$@"; }
pip() { in_env -m pip --disable-pip-version-check "$@"; }

force_cuda=${FORCE_CUDA:-}
if [ -z "${OPERATORS:-}${TORCH:-}" ] && [ -e "$env/.cpvt_mm_asked" ]; then
  # shellcheck disable=SC1091
  . "$env/.cpvt_mm_asked"
fi
export OPERATORS=${OPERATORS:-} TORCH=${TORCH:-} FORCE_CUDA=${force_cuda:-${FORCE_CUDA:-}}
asked="OPERATORS=$OPERATORS TORCH=$TORCH FORCE_CUDA=$FORCE_CUDA"
# An editable install belongs to this folder.
wanted="$stack $asked $PWD $(cat setup.py pyproject.toml requirements/*.txt tools/misc/*setup* | cksum)"
if [ "$(cat "$env/.cpvt_mm_ready" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

command -v "$python" >/dev/null || die 2 "PYTHON is '$python', which is not there: set PYTHON to Python 3.10 to 3.14."
"$python" lab/choose_setup.py check "$stack" "$env" || exit 2
mkdir -p "$env"
exec 9> "$env/.cpvt_mm_lock"  # held until this script ends
"$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null \
  || die 2 "Another run sets up $env: wait until it ends."
rm -f "$env/.cpvt_mm_ready"
echo "$asked" > "$env/.cpvt_mm_asked"

# A run that was interrupted may have left half an environment; pip repairs packages, venv repairs itself.
step "environment $env" "$python" -m venv "$env"

torch=() operators='' mmcv='' remove=() cuda='' why=''
choose() {  # sets these
  local choice
  choice=$(in_env lab/choose_setup.py choose "$stack" "$env" "$@") || exit 2
  eval "$choice"
  say "$why"
}
install_torch() {
  step "torch" pip install -U "${torch[@]}"
}
choose
install_torch
if [[ ${torch[*]} = *torchvision* ]] && ! in_env -c 'import torchvision' 2>"$log"; then
  say "torchvision does not work beside this torch ($(tail -n 1 "$log"))"
  choose --torchvision-fails
  install_torch
fi
[[ ${torch[*]} = *torchvision* ]] || pip uninstall -q -y torchvision 2>/dev/null
step "build tools" pip install 'setuptools<81' wheel ninja psutil numpy
constraints=$env/constraints.txt
pip freeze | grep -iE '^torch(vision)?==' > "$constraints"  # nothing below may replace them

works() {  # yapf, which mmcv imports, would write to the home folder
  local compiled_for
  compiled_for=$(cat "$env/.cpvt_mm_compiled_for" 2>/dev/null) || compiled_for='of an unknown version'
  XDG_CACHE_HOME=$env/cache in_env - "$operators" "${mmcv#*==}" "$cuda" "$compiled_for" 2>"$log" <<'PYTHON'
import sys, torch, mmcv, mmcv._ext
from mmcv.ops import get_compiling_cuda_version, nms
operators, version, cuda, compiled_for = sys.argv[1:]
assert mmcv.__version__ == version, f'it is {mmcv.__version__}'
stand_in = mmcv._ext.__file__.endswith('.py')
assert stand_in == (operators == 'torchvision'), f'its operators are {mmcv._ext.__file__}'
if not stand_in:
    assert compiled_for == torch.__version__, f'it was compiled for torch {compiled_for}'
    assert cuda == 'False' or get_compiling_cuda_version() != 'not available', 'it was compiled for CPUs only'
device = 'cuda' if cuda == 'True' and torch.cuda.is_available() else 'cpu'
nms(torch.tensor([[0., 0, 9, 9]], device=device), torch.ones(1, device=device), .5)
PYTHON
}
if [ ${#remove[@]} != 0 ]; then
  step "removing ${remove[*]}, since ${mmcv%%=*} has the same folder" pip uninstall -y "${remove[@]}"
fi
if ! works; then
  if compgen -G "$env/lib/python*/site-packages/mmcv" > /dev/null; then
    say "the mmcv that is there does not fit ($(tail -n 1 "$log")) and is replaced"
  fi
  if [ "$operators" = compiled ]; then
    . tools/misc/setup_mmcv.sh
  else
    # Without pip's cache and its --no-build-isolation: there, onedl-mmcv would be compiled.
    step "$mmcv" pip install --no-deps --force-reinstall --no-cache-dir "$mmcv"
  fi
fi

step "mmdet, mmsegmentation and cpvt_mm" pip install --no-build-isolation -c "$constraints" -e '.[tests]' \
  "$mmcv" -r <(grep -vE '^(onedl-)?mmcv' "requirements/$stack.txt")
step "timm and segmentation_models_pytorch" pip install --no-deps -r requirements/smp.txt
in_env -c 'import cv2' 2>/dev/null || die 1 "OpenCV does not import: for libGL.so.1, run 'apt install libgl1'."
works || fail "operators of mmcv"
# Torchvision may be missing: tests use a stand-in.
faults=$(pip check | grep -vE 'requires torchvision, which is not installed|^No broken requirements' || true)
[ -z "$faults" ] || die 1 "$faults"
echo "$wanted" > "$env/.cpvt_mm_ready"
say "done"
