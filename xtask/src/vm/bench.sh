# Measures perftest, then the mesh, in one boot: what each printed is in files of this folder.
stepmesh=$1
rounds=$2
# The steadiest that two virtual processors get: the driver's work is done before anything else.
sysctl -q kernel.sched_rt_runtime_us=-1
for pid in $(pidof ksoftirqd/0 ksoftirqd/1); do chrt -f -p 50 "$pid" >/dev/null; done

# Both ends on this guest; perftest first, before anything else was on the device.
perftest() {
    name=$1
    shift
    "$@" >/dev/null 2>$name.err &
    server=$!
    sleep 1
    timeout 60 "$@" 10.10.0.1 >$name.out 2>>$name.err || echo "$name failed" >&2
    wait $server
}
perftest lat-8k ib_send_lat -d rxe0 -x 1 -s 8192 -n 500
perftest lat-896k ib_send_lat -d rxe0 -x 1 -s 917504 -n 50
perftest bw-14m ib_write_bw -d rxe0 -x 1 -s 14680064 -n 20

# A mesh of one worker and one server that echoes.
export STEPMESH_TRANSPORT_KIND=rdma STEPMESH_MESH_SCHEDULER_HOST=127.0.0.1
port=9100
mesh() {
    name=$1
    shift
    export STEPMESH_MESH_SCHEDULER_PORT=$port
    port=$((port + 1))
    "$stepmesh" scheduler --workers 1 --servers 1 >/dev/null 2>$name.err &
    sleep 0.3
    "$stepmesh" server --handler echo >/dev/null 2>>$name.err &
    timeout 120 "$stepmesh" worker --all-rows --json "$@" >$name.json 2>>$name.err ||
        echo "$name failed" >&2
    wait
}
mesh rtt-8k --rows 1 --dim 4096 --iterations "$rounds"
mesh rtt-896k --rows 64 --dim 7168 --iterations $((rounds / 10))
mesh rtt-14m --rows 1024 --dim 7168 --iterations $((rounds / 50))
