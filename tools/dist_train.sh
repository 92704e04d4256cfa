#!/usr/bin/env bash
# Trains on several GPUs of one or more machines with torchrun.
#
#   tools/dist_train.sh CONFIG GPUS [options of train.py]
#
# Over several machines set NNODES, NODE_RANK, MASTER_ADDR and PORT on each. On one machine, a free port is taken.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 CONFIG GPUS [options of train.py]" >&2; exit 2; }
config=$1 gpus=$2
shift 2
if [ "${NNODES:-1}" = 1 ] && [ -z "${PORT:-}" ]; then
  where=(--standalone)
else
  where=(--nnodes="${NNODES:-1}" --node-rank="${NODE_RANK:-0}"
         --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${PORT:-29500}")
fi
exec "${PYTHON:-python}" -m torch.distributed.run "${where[@]}" --nproc-per-node="$gpus" \
  "$(dirname "$0")/train.py" "$config" --launcher pytorch "$@"
