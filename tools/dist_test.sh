#!/usr/bin/env bash
# Evaluates on several GPUs of one or more machines with torchrun.
#
#   tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]
#
# Over several machines set NNODES, NODE_RANK, MASTER_ADDR and PORT on each. On one machine, a free port is taken.
set -euo pipefail
[ $# -ge 3 ] || { echo "usage: $0 CONFIG CHECKPOINT GPUS [options of test.py]" >&2; exit 2; }
config=$1 checkpoint=$2 gpus=$3
shift 3
if [ "${NNODES:-1}" = 1 ] && [ -z "${PORT:-}" ]; then
  where=(--standalone)
else
  where=(--nnodes="${NNODES:-1}" --node-rank="${NODE_RANK:-0}"
         --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${PORT:-29500}")
fi
exec "${PYTHON:-python}" -m torch.distributed.run "${where[@]}" --nproc-per-node="$gpus" \
  "$(dirname "$0")/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
