# Measures perftest and `stepmesh rdma bench` in turns, in one boot: what each printed in which round
# is in files of this folder. Every wait has a bound.
stepmesh=$1
rounds=$2

# Tasklets of the driver run in these when a process is what raised them.
sysctl -q kernel.sched_rt_runtime_us=-1
for stat in /proc/[0-9]*/stat; do
    read -r pid name rest <"$stat" || continue
    case $name in "(ksoftirqd/"*) chrt -f -p 50 "$pid" >/dev/null ;; esac
done 2>/dev/null

# until_true COMMAND...: asks again and again, for half a minute.
until_true() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || return 1
        sleep 0.05
    done
}

# perftest's server listens for its client: 18515 is 4853, and 0A is a socket that listens.
perftest_listens() {
    grep -q ":4853 [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6
}

# perftest NAME COMMAND...: both ends are on this guest.
perftest() {
    name=$1
    shift
    timeout 60 "$@" >/dev/null 2>"$name.err" &
    server=$!
    if ! until_true perftest_listens || ! timeout 60 "$@" 10.10.0.1 >"$name.out" 2>>"$name.err"; then
        echo "$name failed" >&2
        kill $server
    fi
    wait $server
}

ours() {
    name=$1
    shift
    timeout 120 "$stepmesh" rdma bench "$@" >"$name.json" 2>"$name.err" || echo "$name failed" >&2
}

round=0
while [ $round -lt "$rounds" ]; do
    # perftest polls without end, and so do we: longer than a round trip takes on this device.
    export STEPMESH_TRANSPORT_SPIN_US=1000
    perftest lat-8k-$round ib_send_lat -d rxe0 -x 1 -s 8192 -n 500
    ours ours-8k-$round --only 8k
    perftest lat-896k-$round ib_send_lat -d rxe0 -x 1 -s 917504 -n 30
    ours ours-896k-$round --only 896k
    perftest bw-14m-$round ib_write_bw -d rxe0 -x 1 -s 14680064 -n 10
    ours ours-14m-$round --only 14m
    # Both asleep between messages, which is what we do here with the default.
    unset STEPMESH_TRANSPORT_SPIN_US
    perftest lat-asleep-8k-$round ib_send_lat -e -d rxe0 -x 1 -s 8192 -n 500
    ours ours-asleep-8k-$round --only 8k
    ours ours-hit-$round --only hit
    round=$((round + 1))
done
