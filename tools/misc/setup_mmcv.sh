# Compiles mmcv and installs it: a part of setup_env.sh, whose variables and functions it uses.
#
# mmcv comes as source. Two flags cut the build from 15 minutes to about 5 on two cores: -g0 (debug info is most of the
# build) and -include of a header that is compiled once. The wheel stays in pip's cache, in a folder for each torch.
# shellcheck shell=bash disable=SC2154

if [ "$cuda" = True ]; then
  export FORCE_CUDA=1
  has=$(in_env -c 'from torch.utils.cpp_extension import CUDA_HOME; print(CUDA_HOME)' 2>/dev/null)
  [ -e "$has/include/cusparse.h" ] || has=none  # a compiler alone: torch needs the headers of CUDA's libraries, too
  has=$({ "$has/bin/nvcc" --version 2>/dev/null || true; } | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  needs=$(in_env -c 'import torch; print(torch.version.cuda)')
  nvcc=$(in_env lab/choose_setup.py nvcc "$needs" "$has") || exit 2
  if [ -n "$nvcc" ]; then
    step "nvcc $nvcc from PyPI" pip install "nvidia-cuda-nvcc==$nvcc.*" "nvidia-cuda-crt==$nvcc.*" \
      "nvidia-nvvm==$nvcc.*" "nvidia-cuda-cccl==$nvcc.*"
    CUDA_HOME=$(in_env -c 'import nvidia; print(nvidia.__path__[0])')/cu${nvcc%%.*}
    export CUDA_HOME
    # The names that torch and the linker look for.
    ln -sfn lib "$CUDA_HOME/lib64"
    (cd "$CUDA_HOME/lib" && ln -sf libcudart.so.* libcudart.so)
  fi
else
  # mmcv's setup.py would build for CUDA wherever torch sees a GPU.
  export FORCE_CUDA=0 CUDA_VISIBLE_DEVICES=
fi

{ read -r standard; read -r key; read -r includes; } < <(in_env - "$cuda" 2> "$log" <<'PYTHON'
import os, sys, torch
from torch.torch_version import TorchVersion
from torch.utils.cpp_extension import include_paths
print('c++20' if TorchVersion(torch.__version__) >= '2.14' else 'c++17')
seen = sorted({'{}.{}'.format(*torch.cuda.get_device_capability(i)) for i in range(torch.cuda.device_count())})
architectures = os.environ.get('TORCH_CUDA_ARCH_LIST') or ' '.join(seen) or 'all'
print(f'torch-{torch.__version__}', sys.implementation.cache_tag, architectures if sys.argv[1] == 'True' else 'cpu')
print(*include_paths(), sep=':')
PYTHON
)
cache=$(pip cache dir 2>/dev/null) || cache=$env/cache
wheels=$cache/cpvt_mm/$mmcv-${key//[ ;]/-}

build_mmcv() {
  local build=$env/build source pch flags wheel
  [[ $build != *' '* ]] || build=$(mktemp -d)  # CFLAGS cannot hold a path with spaces
  rm -rf "$build"
  mkdir -p "$build"
  say "$mmcv, step 1 of 3: downloading its source"
  # pip may stumble over setup.py, which is mended below, but leaves what it unpacked.
  TMPDIR=$build pip download --no-clean --no-deps --no-build-isolation --no-binary :all: -d "$build" "$mmcv" \
    > "$log" 2>&1 || true
  source=$(find "$build" -maxdepth 3 -path '*mmcv*/setup.py')
  [ -n "$source" ] || fail "downloading the source of $mmcv"
  source=${source%/setup.py}
  # torch 2.14 and newer need C++20. On Python 3.13 and newer, exec() does not write to what locals() returns.
  sed -i.orig -e "s/-std=c++17/-std=$standard/" -e "s/'exec'))/'exec'), globals())/" -e 's/locals()\[/globals()[/' \
    "$source/setup.py"

  # CFLAGS replaces Python's own flags, hence -O3 -DNDEBUG and the flags that a precompiled header must share.
  pch=$build/torch_headers.hpp
  flags="-g0 -O3 -w -DNDEBUG -fwrapv -fPIC -std=$standard"
  printf '#include <torch/types.h>\n#include <vector>\n' > "$pch"
  # shellcheck disable=SC2086
  step "$mmcv, step 2 of 3: precompiling torch's headers" \
    env CPATH="$includes" c++ $flags -DTORCH_API_INCLUDE_EXTENSION_H -DTORCH_EXTENSION_NAME=_ext \
    -x c++-header "$pch" -o "$pch.gch"
  say "$mmcv, step 3 of 3: compiling its operators for $key"
  PATH="$env/bin:$PATH" MMCV_WITH_OPS=1 MAX_JOBS=${MAX_JOBS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)} \
    CC=c++ CXX=c++ CFLAGS="$flags -Winvalid-pch -include $pch" \
    pip wheel -v --no-build-isolation --no-deps -w "$build" "$source" 2>&1 | tee "$log" |
    while IFS= read -r line; do
      if [[ $line =~ ^\ *\[([0-9]+0)/([0-9]+)\] ]]; then echo "    ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} files"; fi
    done || fail "compiling $mmcv"
  wheel=$(cd "$build" && echo ./*.whl)
  mkdir -p "$wheels"
  mv "$build/$wheel" "$wheels/$wheel.part"  # the cache may lie on another disk, so this may end half-way
  mv "$wheels/$wheel.part" "$wheels/$wheel"
  rm -r "$build"
}

compgen -G "$wheels/*.whl" > /dev/null || build_mmcv
step "$mmcv" pip install --no-deps --force-reinstall "$wheels"/*.whl
in_env -c 'import torch; print(torch.__version__, end="")' > "$env/.cpvt_mm_compiled_for"
