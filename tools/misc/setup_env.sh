#!/usr/bin/env bash
# Makes an environment with torch, torchvision, one of the two stacks, and this project in editable mode.
#
#   tools/misc/setup_env.sh {openmmlab|onedl} ENV_DIR
#
# mmcv gets torchvision's operators, which need no compiler. Variables choose otherwise:
#   TORCH=2.14            a version of torch, 2.6 or newer
#   OPERATORS=compiled    compiles mmcv's own operators, which needs a C++ compiler and 16 minutes of one core
#   PYTHON=python3.12     the interpreter, Python 3.10 to 3.14
# A finished environment is left as it is until pyproject.toml or a variable changes. Then, and after an interruption, it
# is made anew from what uv keeps in its cache.
set -euo pipefail
cd "$(dirname "$0")/../.."

stack=${1:-openmmlab}
env=${2:-.venv}
[[ $env = /* ]] || env=$PWD/$env
log=$env/setup.log

die() { echo "$*" >&2; exit 2; }
step() {  # step NAME COMMAND...
  local error
  echo "[setup $stack] $1"
  "${@:2}" > "$log" 2>&1 && return
  error=$(grep -oE '([A-Za-z]*[Ee]rror:|ERROR:|cause:|connection broken by) .*' "$log" | uniq | tail -n 6 |
    tr '\n' ' ') || error=$(tail -n 1 "$log")
  die "The step '$1' failed (${error% }): mend that and run the same command again; $log has the rest."
}
in_env() { "$env/bin/python" "$@"; }
uv() { "$env/bin/uv" pip "$1" --python "$env/bin/python" "${@:2}"; }

if [ -z "${TORCH:-}${OPERATORS:-}${PYTHON:-}" ] && [ -e "$env/.cpvt_mm_asked" ]; then
  # shellcheck disable=SC1091
  . "$env/.cpvt_mm_asked"  # it stays of the kind that was asked for
fi
python=${PYTHON:-python3}
asked=$(printf 'TORCH=%q OPERATORS=%q PYTHON=%q' "${TORCH:-}" "${OPERATORS:-}" "$python")
wanted="$stack $asked $PWD $(cat setup.py pyproject.toml tools/misc/setup_env.sh | cksum)"
if [ "$(cat "$env/.cpvt_mm_ready" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

[[ $stack =~ ^(openmmlab|onedl)$ ]] || die "STACK is '$stack', but must be openmmlab or onedl."
[[ ${OPERATORS:-} =~ ^(torchvision|compiled)?$ ]] \
  || die "OPERATORS is '$OPERATORS', but must be torchvision or compiled."
[[ ${TORCH:-} =~ ^((2\.([6-9]|[1-9][0-9])|[3-9]\.[0-9]+)(\.[0-9]+)?)?$ ]] \
  || die "TORCH is '$TORCH', but must be a version such as 2.14 or 2.14.1, from 2.6 on."
version=$("$python" -V 2>&1) || version='which is not there'
[[ $version =~ ^Python\ 3\.1[0-4]\. ]] || die "PYTHON is '$python' ($version), but must be Python 3.10 to 3.14."
[ "${OPERATORS:-}" != compiled ] || command -v c++ > /dev/null \
  || die "OPERATORS is compiled, but there is no C++ compiler: install g++ or clang."
[ -e "$env/.cpvt_mm_asked" ] || [ -z "$(ls -A "$env" 2>/dev/null)" ] \
  || die "$env holds something that this script did not make: name a new folder."
mkdir -p "$env"
exec 9< "$env"  # locked until this script ends
"$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null \
  || die "Another run sets up $env: wait until it ends."

echo "$asked" > "$env/.cpvt_mm_asked"
rm -rf "$env"/{.cpvt_mm_ready,bin,include,lib,lib64,share}
step "environment $env" "$python" -m venv "$env"
step 'uv' in_env -m pip install 'uv>=0.13,<0.14'

# uv does not read what pip is configured with, and looks for a package in one index only.
of_pip() { in_env -m pip config list | sed -n "s/^[^=]*[.]$1='\(.*\)'$/\1/p" | head -n 1 | sed 's/\\n/ /g'; }
# Where Python may not write bytecode, each process would compile what it imports, 8 seconds of it.
export UV_COMPILE_BYTECODE=1 UV_INDEX_STRATEGY=unsafe-best-match \
  UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$(of_pip index-url)}" UV_INDEX="${UV_INDEX:-$(of_pip extra-index-url)}" \
  UV_FIND_LINKS="${UV_FIND_LINKS:-$(of_pip find-links | tr ' ' ,)}" UV_CONSTRAINT="${UV_CONSTRAINT:-$(of_pip constraint)}"

step "torch, mmdet, mmsegmentation and cpvt_mm" uv install "torch${TORCH:+==$TORCH.*}" torchvision \
  -e ".[$stack,mmpretrain,timm,s3,onnx,openvino,lora,hub,supervision,tiff]" --group tests
in_env -c 'import cv2' 2> "$log" || die "OpenCV does not import ($(tail -n 1 "$log")): apt install libgl1."
if [ "${OPERATORS:-}" = compiled ]; then
  in_env -c 'import torchvision' 2> "$log" || uv uninstall torchvision  # beside a build of torch that has none
  lite=$(uv freeze 2> "$log" | grep -E '^(onedl-)?mmcv')
  mmcv=${lite/-lite/}
  # Newest torch needs C++20, and mmcv asks for C++17. Its debug info would take half of the time. Not from the cache,
  # which does not know for which torch an mmcv was compiled.
  printf '#!/bin/sh\nexec c++ "$@" -std=c++20 -g0 -w\n' > "$env/bin/c++20"
  chmod +x "$env/bin/c++20"
  step "tools to build" uv install ninja psutil wheel
  step "removing $lite" uv uninstall "${lite%%=*}"
  step "compiling $mmcv" env MMCV_WITH_OPS=1 CC="$env/bin/c++20" CXX="$env/bin/c++20" NVCC_APPEND_FLAGS=-std=c++20 \
    PATH="$env/bin:$PATH" "$env/bin/uv" pip install --python "$env/bin/python" --no-cache --no-deps \
    --no-build-isolation --no-binary "${mmcv%%=*}" "$mmcv"
elif ! in_env -c 'import torchvision' 2> "$log"; then
  die "torchvision does not work beside this torch ($(tail -n 1 "$log")): set TORCH to another version, or" \
    "OPERATORS=compiled."
fi
step "trying mmcv's operators (${OPERATORS:-those of torchvision and plain torch})" in_env -c 'import torch, mmcv.ops; mmcv.ops.nms(torch.zeros(1, 4), torch.ones(1), 0.5)'
echo "$wanted" > "$env/.cpvt_mm_ready"
echo "[setup $stack] done"
