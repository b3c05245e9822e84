#!/bin/bash
# Trains on hosts that are reached by ssh and goes on when some of them die:
#
#   launch/elastic_ssh.sh "host1 host2 host3" --exp=KjvTiny --mode=train --job_log_dir=/shared/kjv
#
# One agent a host; the lighthouse runs on the first. An agent that ends is
# started again, so a host that comes back is taken in. Ctrl-C stops the job
# with a checkpoint.
#
# Environment: PORT (61000), PYTHON (python3), SSH (ssh), DIRECTORY (this one),
# LEAST (1).

set -u

if [ "$#" -lt 2 ]; then
  sed -n '2,12p' "$0" >&2
  exit 2
fi

read -r -a hosts <<<"$1"
shift
lighthouse="${hosts[0]}:${PORT:-61000}"
program="cd $(printf '%q' "${DIRECTORY:-$PWD}") && read -r PAXLIKE_SECRET && export PAXLIKE_SECRET"
program+=" && exec ${PYTHON:-python3} -m paxlike.main"
secret="$("${PYTHON:-python3}" -c 'import secrets; print(secrets.token_hex(32))')"
arguments="$(printf ' %q' "$@")"

# Statuses that end the job; any other is a host that may come back.
run() {
  local host="$1" command="$2" status
  while true; do
    # The secret goes through the connection, on no command line.
    ${SSH:-ssh} "$host" "$program $command" <<<"$secret" 2>&1 | sed -u "s/^/[$host] /"
    status="${PIPESTATUS[0]}"
    case "$status" in 0 | 1 | 2 | 75) return "$status" ;; esac
    sleep 2
  done
}

pids=()
run "${hosts[0]}" "lighthouse --bind=$lighthouse" &
first=$!
for host in "${hosts[@]}"; do
  run "$host" "agent --lighthouse=$lighthouse --host=$host --hosts=${LEAST:-1}:${#hosts[@]} --$arguments" &
  pids+=("$!")
done
trap 'kill -INT "${pids[@]}" 2>/dev/null' TERM INT
wait "$first"
