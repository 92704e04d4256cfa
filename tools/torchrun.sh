#!/usr/bin/env bash
# Starts a tool on several GPUs of one or more machines with torchrun, for dist_train.sh and dist_test.sh.
#
#   [NNODES=1 MASTER_ADDR= PORT=29500 RDZV_ID= MAX_RESTARTS=0] tools/torchrun.sh GPUS TOOL [options of the tool]
#
# Over several machines, set NNODES, MASTER_ADDR and PORT on each. NNODES may be a range, such as 1:4. On one machine, a
# free port is taken. Runs on the same machine and port need a RDZV_ID each.
set -euo pipefail
gpus=$1
shift
if [ "${NNODES:-1}" = 1 ] && [ -z "${PORT:-}" ]; then
  where=(--standalone)
else
  where=(--nnodes="${NNODES:-1}" --rdzv-backend=c10d --rdzv-id="${RDZV_ID:-cpvt_mm}"
         --rdzv-endpoint="${MASTER_ADDR:-127.0.0.1}:${PORT:-29500}")
fi
# Slurm's warning, SIGUSR1, goes to the processes, too, and they get the time to save. torchrun reads these two itself, if
# it is new enough to know them.
export PET_SIGNALS_TO_HANDLE="${PET_SIGNALS_TO_HANDLE:-SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1}"
export PET_SHUTDOWN_TIMEOUT="${PET_SHUTDOWN_TIMEOUT:-120}"
# torch 2.13 keeps one store for all restarts of a rendezvous: ranks that start again read the addresses of dead ones.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec "${PYTHON:-python}" -m torch.distributed.run "${where[@]}" --max-restarts="${MAX_RESTARTS:-0}" \
  --nproc-per-node="$gpus" "$@"
