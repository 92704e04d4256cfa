#!/usr/bin/env bash
# Creates ENV_DIR with torch, one of the two stacks, and this project in editable mode.
#
#   tools/misc/setup_env.sh {openmmlab|onedl} ENV_DIR
#
# Runs again from where it stopped; a finished environment is left as it is until requirements/ changes.
# mmcv comes as source: its headers are precompiled here, which cuts the build from 15 minutes to about 5 on
# two cores. pip keeps the wheel in its cache. Its ops are built for the GPU, too, where torch sees one and nvcc is there;
# an empty CUDA_VISIBLE_DEVICES hides the GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

stack=${1:-openmmlab}
env=${2:-.venv}
[[ $env = /* ]] || env=$PWD/$env
python=${PYTHON:-python3}
torch=torch==2.13.0
case $stack in
  openmmlab) mmcv=$(grep '^mmcv' requirements/openmmlab.txt) ;;
  onedl) mmcv=$(grep '^onedl-mmcv' requirements/onedl.txt) ;;
  *) echo "STACK is '$stack', but must be openmmlab or onedl." >&2; exit 2 ;;
esac
# The setup.py of mmcv 2.1.0 does not run on Python 3.13.
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' \
  || { echo "$python is $("$python" -V), but must be Python 3.10, 3.11 or 3.12: set PYTHON to one." >&2; exit 2; }

# An editable install belongs to this folder.
wanted="$stack $torch $PWD $(cat setup.py pyproject.toml requirements/*.txt tools/misc/setup_env.sh | cksum)"
if [ "$(cat "$env/.cpvt_mm_ready" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

command -v c++ >/dev/null || { echo "No C++ compiler: install g++ or clang, mmcv is built from source." >&2; exit 2; }
say() { echo "[setup $stack] $*"; }
# A run that was interrupted may have left half an environment; pip repairs packages, venv repairs itself.
say "environment $env"
"$python" -m venv "$env"
pip() { "$env/bin/python" -m pip --disable-pip-version-check "$@"; }

say "torch and build tools"
pip install -q "$torch" 'setuptools<81' wheel ninja psutil numpy
constraints=$env/constraints.txt
pip freeze | grep -iE '^torch==' > "$constraints"  # nothing below may replace it

# mmcv's setup.py builds for CUDA wherever torch sees a GPU, and fails there without nvcc.
device=$("$env/bin/python" -c 'import torch; from torch.utils.cpp_extension import CUDA_HOME
print("cuda" if torch.cuda.is_available() and CUDA_HOME else "cpu")')
if [ "$device" = cpu ]; then export CUDA_VISIBLE_DEVICES=; fi
say "mmcv's ops for: $device"

works() {  # yapf, which mmcv imports, would write to the home folder
  XDG_CACHE_HOME=$env/cache "$env/bin/python" - "${mmcv#*==}" "$device" 2>"$env/mmcv_error.log" <<'PYTHON'
import sys, torch, mmcv
from mmcv.ops import nms
nms(torch.tensor([[0., 0, 9, 9]], device=sys.argv[2]), torch.ones(1, device=sys.argv[2]), .5)
sys.exit(mmcv.__version__ != sys.argv[1])
PYTHON
}
build_mmcv() {
  # Two flags matter: -g0 (debug info is most of the build) and -include of a header compiled once.
  # CFLAGS replaces Python's own flags, hence -O3 -DNDEBUG and the flags that a precompiled header must share.
  local pch=$env/pch/torch_headers.hpp log=$env/mmcv_build.log
  local flags="-g0 -O3 -w -DNDEBUG -fwrapv -fPIC -std=c++17"
  mkdir -p "${pch%/*}"
  printf '#include <torch/types.h>\n#include <vector>\n' > "$pch"
  local includes
  includes=$("$env/bin/python" -c 'from torch.utils.cpp_extension import include_paths as p; print(*("-I" + i for i in p()))')
  say "mmcv, step 1 of 2: precompiling torch's headers"
  # shellcheck disable=SC2086
  c++ $flags -DTORCH_API_INCLUDE_EXTENSION_H -DTORCH_EXTENSION_NAME=_ext $includes -x c++-header "$pch" -o "$pch.gch"
  say "mmcv, step 2 of 2: compiling its ops (log: $env/mmcv_build.log)"
  PATH="$env/bin:$PATH" MMCV_WITH_OPS=1 MAX_JOBS=$(nproc 2>/dev/null || sysctl -n hw.ncpu) \
    CC=c++ CXX=c++ CFLAGS="$flags -Winvalid-pch -include $pch" \
    pip install -v --no-build-isolation -c "$constraints" "$@" "$mmcv" 2>&1 | tee "$log" |
    while IFS= read -r line; do
      if [[ $line =~ ^\ *\[([0-9]+)/([0-9]+)\] ]] && { (( BASH_REMATCH[1] % 10 == 0 )) || [ "${BASH_REMATCH[1]}" = "${BASH_REMATCH[2]}" ]; }; then
        echo "    ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} files"
      fi
    done || { tail -n 30 "$log" >&2; exit 1; }
  rm -r "${pch%/*}"
}
if ! works; then
  build_mmcv
  "$env/bin/python" -c 'import cv2' || { say "OpenCV does not import; for libGL.so.1: apt install libgl1" >&2; exit 1; }
  # The cached wheel may come from another torch, or have no ops for the GPU: then it is built anew.
  works || build_mmcv --force-reinstall --no-deps --no-cache-dir
  works || { say "mmcv's ops do not load: $(tail -n 1 "$env/mmcv_error.log")" >&2; exit 1; }
fi

say "mmdet, mmsegmentation and cpvt_mm"
pip install -q --no-build-isolation -c "$constraints" -e ".[$stack,tests]"
pip install -q --no-deps -r requirements/smp.txt
# Torchvision may be missing: tests use a stand-in.
faults=$(pip check | grep -vE 'requires torchvision, which is not installed|^No broken requirements' || true)
[ -z "$faults" ] || { echo "$faults" >&2; exit 1; }
echo "$wanted" > "$env/.cpvt_mm_ready"
say "done"
