#!/bin/busybox sh
# The first process of the guest. It loads the modules, mounts the host's files read-only with the
# guest's own /proc, /sys, /dev, /run and /tmp over them, and goes on there with guest.sh.

die() {
    /bin/busybox echo "guest: $*" >/dev/console
    /bin/busybox echo o >/proc/sysrq-trigger
    /bin/busybox sleep 60
}

mount() {
    /bin/busybox mount "$@" || die "cannot mount $*"
}

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in $(/bin/busybox cat /modules/order); do
    /bin/busybox insmod "/modules/$module" || die "cannot load $module"
done

nine_p=trans=virtio,version=9p2000.L,msize=1048576
# Nobody changes the host's files while a guest reads them, so it may keep what it has read.
mount -t 9p -o $nine_p,cache=loose,ro host /host
mount --bind /host /bare
mount -t proc proc /host/proc
mount -t sysfs sysfs /host/sys
mount -t devtmpfs devtmpfs /host/dev
/bin/busybox mkdir -p /host/dev/pts /host/dev/shm
mount -t devpts -o ptmxmode=666 devpts /host/dev/pts
mount -t tmpfs -o mode=1777 tmpfs /host/dev/shm
mount -t tmpfs -o mode=755 tmpfs /host/run
mount -t tmpfs -o mode=1777 tmpfs /host/tmp
/bin/busybox mkdir /host/run/stepmesh
mount -t 9p -o $nine_p,cache=none run /host/run/stepmesh

# What the run needs of the folders that are covered now.
while IFS= read -r kept; do
    /bin/busybox mkdir -p "/host$kept"
    mount --bind "/bare$kept" "/host$kept"
done </host/run/stepmesh/keep

exec /bin/busybox chroot /host /bin/sh /run/stepmesh/guest.sh
die "cannot start the host's /bin/sh"
