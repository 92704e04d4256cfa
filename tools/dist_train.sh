#!/usr/bin/env bash
# Trains on several GPUs of one or more machines. tools/torchrun.sh says which variables it reads.
#
#   tools/dist_train.sh CONFIG GPUS [options of train.py]
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 CONFIG GPUS [options of train.py]" >&2; exit 2; }
config=$1 gpus=$2
shift 2
# torchrun starts the processes again when a machine joins or leaves, and does not tell them that they have run before.
if [[ "${NNODES:-1}" == *:* && " $* " != *" --resume"* ]]; then
  echo "error: NNODES=$NNODES starts a run again when a machine joins or leaves: add --resume, to lose nothing." >&2
  exit 2
fi
exec "$(dirname "$0")/torchrun.sh" "$gpus" "$(dirname "$0")/train.py" "$config" --launcher pytorch "$@"
