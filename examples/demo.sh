#!/bin/sh
# A live demonstration: an agent, an exclusive pod beside noisy neighbours, the map, the audit.
# Everything is in a temporary place and gone afterwards; without root the CPUs are kept by affinity.
set -eu
pinfold=${PINFOLD:-pinfold}
place=$(mktemp -d)
PINFOLD_SOCKET=$place/pinfold.sock
export PINFOLD_SOCKET
agent=

clean_up() {
    status=$?
    trap - EXIT INT TERM
    if [ -n "$agent" ]; then
        "$pinfold" delete --all --grace 0 >/dev/null 2>&1 || true
        kill "$agent" 2>/dev/null || true
        wait "$agent" 2>/dev/null || true
    fi
    [ "$status" = 0 ] || cat "$place/log" >&2
    rm -rf "$place"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

cat >"$place/config.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
kubeReserved: {cpu: "1"}
pinfold:
  stateDir: $place/state
  socket: $PINFOLD_SOCKET
  cgroupName: pinfold-demo-$$
CONFIG

pod() { # name, cpu limit or nothing
    limits=${2:+"{\"cpu\": \"$2\", \"memory\": \"64Mi\"}"}
    cat <<POD
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "$1"}, "spec": {"containers": [
  {"name": "main", "command": ["sh", "-c", "while :; do :; done"],
   "resources": {"limits": ${limits:-{\}}, "requests": ${limits:-{\}}}}]}}
POD
}

printf '\n== A live demonstration on this machine ==\n'
"$pinfold" agent --config "$place/config.yaml" >"$place/log" 2>&1 &
agent=$!
tries=0
until "$pinfold" status -o json >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 100 ] || ! kill -0 "$agent" 2>/dev/null; then
        echo "the agent did not start:" >&2
        exit 1
    fi
    sleep 0.1
done

for number in 1 2 3; do pod "noisy-neighbour-$number" | "$pinfold" apply -; done
if [ "$(nproc)" -gt 1 ]; then pod quiet-owner 1 | "$pinfold" apply -; fi
printf '\n'
"$pinfold" status
cat <<'TEXT'

Does the kernel agree? pinfold audit asks it. The agent moves its own pods only.
Where nobody has confined the other programs of this machine (pinfold shield
does), they may run on the owner's CPU, and a cross is what is to be expected.
The summary and the first finding:

TEXT
"$pinfold" audit >"$place/audit" || true
# To the end of the first finding's reason; what follows are commands to mend it.
awk '/^  why/ { told = 1 } /^  fix/ || told && NF == 0 { exit } { print }' "$place/audit"
if [ "$(nproc)" -gt 1 ]; then
    seen='An agent gave one pod a CPU of its own and kept three busy neighbours off it.'
else
    seen='An agent ran three busy pods; with a second CPU one more has a CPU of its own.'
fi
cat <<TEXT

== That was all ==
You have seen a plan of the example node, and a live one on this machine:
$seen
The programs that the audit lists, if any, are others of this machine: pinfold
shield moves them off as well.

The demo has removed everything that it made. Go on with docs/tutorial.md.
TEXT
