# What the guest does once it sees the host's files: it brings up the network and the RDMA device,
# runs the command, notes its exit status and powers off. /run/stepmesh is the folder of this run.

die() {
    echo "guest: $*" >/dev/console
    echo o >/proc/sysrq-trigger
    sleep 60
}

. /run/stepmesh/guest.env

echo "stepmesh-$GUEST_INDEX" >/proc/sys/kernel/hostname
mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=none out "$GUEST_OUT_DIR" ||
    die "cannot mount $GUEST_OUT_DIR"

ip link set lo up || die "no loopback device"
if [ -e /sys/class/net/eth0 ]; then
    net=eth0
    ip link set eth0 up mtu "$GUEST_MTU" || die "cannot bring up eth0"
else
    net=v0
    ip link add v0 mtu "$GUEST_MTU" type veth peer name v1 mtu "$GUEST_MTU" || die "no veth pair"
    ip link set v0 up && ip link set v1 up || die "cannot bring up the veth pair"
fi
ip addr add "10.10.0.$GUEST_INDEX/24" dev $net || die "cannot give $net an address"
rdma link add rxe0 type rxe netdev $net || die "cannot make rxe0 on $net"

# The device lists its addresses from a work queue: RoCE v2 over IPv4 is the second of them.
tries=0
gid=/sys/class/infiniband/rxe0/ports/1/gids/1
until grep -q ffff: $gid 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || die "rxe0 has no GID for the IPv4 address of $net"
    sleep 0.1
done

ulimit -l unlimited
ulimit -n 65536
echo up >/run/stepmesh/state
if [ -n "$GUEST_HAS_TERMINAL" ]; then
    setsid --ctty --wait sh /run/stepmesh/command.sh <>/dev/hvc0 >&0 2>&0
else
    sh /run/stepmesh/command.sh </dev/null >/dev/vport0p1 2>/dev/vport0p2
fi
echo "exit $?" >/run/stepmesh/state
echo o >/proc/sysrq-trigger
sleep 60
