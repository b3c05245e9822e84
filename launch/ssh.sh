#!/bin/bash
# Trains on hosts that are reached by ssh, one process a host:
#
#   launch/ssh.sh "host1 host2 host3" --exp=KjvTiny --mode=train --job_log_dir=/shared/kjv
#
# The first host runs process 0, which the others must reach on PORT (and on
# the ports that JAX chooses). The repository, or an installed paxlike, lies in
# the same directory on all hosts. Ctrl-C asks all to save and stop.
#
# Environment: PORT (61000), PYTHON (python3), SSH (ssh), DIRECTORY (this one).

set -u

if [ "$#" -lt 2 ]; then
  sed -n '2,10p' "$0" >&2
  exit 2
fi

read -r -a hosts <<<"$1"
shift
address="${hosts[0]}:${PORT:-61000}"
directory="${DIRECTORY:-$PWD}"
pids=()

for index in "${!hosts[@]}"; do
  remote="cd $(printf '%q' "$directory") && exec ${PYTHON:-python3} -m paxlike.main"
  remote+=" --coordinator_address=$address --num_processes=${#hosts[@]}"
  remote+=" --process_id=$index$(printf ' %q' "$@")"
  # -tt: the end of ssh reaches the remote process as a hangup.
  ${SSH:-ssh -tt} "${hosts[$index]}" "$remote" \
    < /dev/null > >(sed -u "s/^/[$index] /") 2>&1 &
  pids+=("$!")
done

trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM INT

status=0
for pid in "${pids[@]}"; do
  while kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
  done
  wait "$pid"
  ended=$?
  if [ "$status" -eq 0 ]; then
    status=$ended
  fi
done
exit "$status"
