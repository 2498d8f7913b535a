# Two meshes over two guests, of which the second dies in the middle. In mesh `a` it has one of the
# two workers, in mesh `b` one of the two servers. Each guest runs this with the program and its own
# number; what they tell each other and the host is in files of this folder, which all of them see.
#
# What must hold: the server of `a` goes on with the other worker, and with one that takes the place
# of the lost one; the worker of `b` ends with an error that names its lost server. Exit status 1
# and the last line say what did not.
stepmesh=$1
guest=$2
# The mesh's own addresses, not the loopback that every guest has.
export STEPMESH_MESH_SCHEDULER_HOST=10.10.0.1
forever=1000000000

fail() {
    echo "guest $guest: $*"
    # The others' logs are named by member: the last lines of each tell the rest.
    tail -n 15 ./*.err
    exit 1
}

# start NAME COMMAND...: in the background, with its output in files and its process in $pid.
start() {
    name=$1
    shift
    "$@" >"$name.out" 2>"$name.err" &
    pid=$!
    echo $pid >"$name.pid"
}

# until_true WHAT COMMAND...: asks again and again, for a minute.
until_true() {
    what=$1
    shift
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "waited too long for $what"
        sleep 0.1
    done
}

if [ "$guest" = 1 ]; then
    start a-scheduler "$stepmesh" scheduler --host 10.10.0.1 --port 9001 --workers 2 --servers 1
    start b-scheduler "$stepmesh" scheduler --host 10.10.0.1 --port 9002 --workers 1 --servers 2
fi

# Each guest's members have its place in both meshes.
export STEPMESH_MESH_RANK=$((guest - 1))
export STEPMESH_MESH_SCHEDULER_PORT=9001
if [ "$guest" = 1 ]; then
    start a-server "$stepmesh" server --handler echo
fi
start "a-worker-$guest" "$stepmesh" worker --rows 16 --dim 100 --iterations $forever
a_worker=$pid

export STEPMESH_MESH_SCHEDULER_PORT=9002
start "b-server-$guest" "$stepmesh" server --handler echo
if [ "$guest" = 1 ]; then
    start b-worker "$stepmesh" worker --rows 16 --dim 100 --iterations $forever
    b_worker=$pid
fi

if [ "$guest" = 2 ]; then
    # The host ends this guest.
    sleep 300
    fail "still alive"
fi

for name in a-worker-1 a-worker-2 b-worker; do
    until_true "the first round trip of $name" grep -q "first round trip" $name.err
done
echo >working
until_true "the end of guest 2" test -e killed
read -r killed rest </proc/uptime

wait $b_worker
status=$?
read -r now rest </proc/uptime
[ $status = 3 ] || fail "the worker of b ended with $status, not 3"
grep "^error: .*server 1.*" b-worker.err || fail "the worker of b does not name its lost server"
echo "the worker of b ended between $killed and $now s"

until_true "the server of a to lose worker 1" grep -q "worker is lost" a-server.err
export STEPMESH_MESH_SCHEDULER_PORT=9001 STEPMESH_MESH_RANK=1
timeout 60 "$stepmesh" worker --rows 16 --dim 100 --iterations 20 >a-worker-3.out 2>a-worker-3.err ||
    fail "nobody can take the place of the lost worker of a"
kill -0 $a_worker || fail "the other worker of a has ended"
kill -INT $a_worker
wait $a_worker
status=$?
[ $status = 130 ] || fail "the other worker of a ended with $status"
cat a-worker-1.out
