# shellcheck shell=sh
# What the demonstrations have in common: sourced with the bridge's program and the images'
# directory as arguments.
bridge=$1 rootfs=$2
work=$(mktemp -d)
TOKEN=demo-$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
URL='' AUTH="Authorization: Bearer $TOKEN" SB='' pid=''

# A VM outlives its bridge, so what the demo made is deleted first. On a signal, too: the
# bridge is in a session of its own, where Ctrl-C does not reach it.
finish() {
	trap '' INT TERM HUP
	if [ -n "$URL" ]; then
		for id in $(curl -s -m 5 -H "$AUTH" "$URL/v1/sandboxes" | jq -r '.items[].id'); do
			curl -s -m 10 -H "$AUTH" -X DELETE "$URL/v1/sandboxes/$id"
		done
	fi
	[ -z "$pid" ] || { kill "$pid" 2>/dev/null || :; wait "$pid" 2>/dev/null || :; }
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

# The bridge, of which it says how to call it.
start_bridge() {
	SANDGATE_TOKEN=$TOKEN setsid "$bridge" serve --listen 127.0.0.1:0 \
		--state-dir "$work/state" --rootfs-dir "$rootfs" 2>"$work/log" &
	pid=$!
	for _ in $(seq 100); do
		URL=$(sed -n 's|.*listening on \(127.0.0.1:[0-9]*\).*|http://\1|p' "$work/log")
		[ -z "$URL" ] || ! curl -sf "$URL/readyz" >"$work/reply" || {
			printf '%s\n' "URL=$URL AUTH='$AUTH'"
			return 0
		}
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	cat "$work/log" >&2
	exit 1
}

# run: show the command on standard input, run it, show what it printed.
run() {
	command=$(cat)
	printf '\n$ %s\n' "$command"
	eval "$command" >"$work/reply"
	cat "$work/reply"
}

# expect WORDS: the demo fails unless the last command printed them.
expect() {
	grep -qF "$1" "$work/reply" || { echo "demo: expected $1" >&2; cat "$work/log" >&2; exit 1; }
}
