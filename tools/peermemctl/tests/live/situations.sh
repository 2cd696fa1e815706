#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# /init of a machine of the lab, made by boot.sh: brings the machine into one broken situation after
# the other, and at each records the tree and what doctor says live. Everything goes to ttyS1,
# between lines that begin with ===.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu NO_COLOR=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mount -t debugfs debugfs /sys/kernel/debug
exec >/dev/ttyS1 2>&1
# shellcheck disable=SC2013
for word in $(cat /proc/cmdline); do
	case $word in situations=*) situations=${word#*=} ;; esac
done

MODULES=/lib/modules/$(uname -r)
LAB=/sys/kernel/debug/nvidia_lab

shot() { # NAME TEXT...: one situation
	name=$1
	shift
	echo "=== tree $name"
	peermemctl record "$*"
	echo "=== doctor $name"
	peermemctl doctor
	echo "=== exit $?"
	echo "=== status $name"
	peermemctl status
	echo "=== exit $?"
}

# busybox sh would take its own applets, which know neither softdep nor depmod.d.
modprobe() { /usr/sbin/modprobe "$@"; }
insmod() { /usr/sbin/insmod "$@"; }
rmmod() { /usr/sbin/rmmod "$@"; }
depmod() { /usr/sbin/depmod "$@"; }

network() {
	# A module where the kernel is a distribution's.
	modprobe virtio_pci 2>/dev/null
	modprobe virtio_net 2>/dev/null
	ip link set lo up
	ip link set eth0 mtu 4200 up
	ip addr add 10.0.2.15/24 dev eth0
}

configured() { # what an admin of a working machine has done
	mkdir -p /etc/modules-load.d /etc/modprobe.d
	echo nvidia-peermem >/etc/modules-load.d/nvidia-peermem.conf
	rm -f /etc/modprobe.d/*
	ulimit -l unlimited
}

up() { # everything loaded, but the module
	modprobe ib_uverbs
	modprobe rdma_rxe
	modprobe nvidia
	rdma link add rxe0 type rxe netdev eth0
	sleep 1
}

held=0
hold() { # ARGS...: a process that registers GPU memory and stays
	held=$((held + 1))
	mkfifo /tmp/hold$held
	hold_program "$@" </tmp/hold$held >/tmp/held$held 2>&1 &
	eval "exec $((held + 2))>/tmp/hold$held"
	n=0
	while [ ! -s /tmp/held$held ] && [ $n -lt 600 ]; do
		sleep 0.1
		n=$((n + 1))
	done
	echo "# hold $*: $(cat /tmp/held$held)"
}

hold_program() {
	hold-memory "$@"
}

let_go() {
	while [ $held -gt 0 ]; do
		eval "exec $((held + 2))>&-"
		rm -f /tmp/hold$held
		held=$((held - 1))
	done
	wait
}

fault() { # "NAME VALUE [COUNT]"...: one refusal for a reason
	for line in "$@"; do
		echo "$line" >$LAB/faults
	done
	hold 131072
	let_go
	echo reset >$LAB/faults
}

# The boot of most situations.
plain() {
	shot nothing-loaded "a lab machine with everything installed and nothing loaded"
	modprobe nvidia
	shot no-rdma-core "nvidia.ko is loaded, the RDMA core is not"
	up
	rdma link delete rxe0
	modprobe nvidia-peermem
	shot no-rdma-device "all modules are loaded, and there is no RDMA device"
	rdma link add rxe0 type rxe netdev eth0
	sleep 1
	ulimit -l 64
	shot fresh "loaded by hand: nothing loads the module at boot, and users may lock 64 KiB"
	configured
	(ulimit -l 64 && shot memlock-users "users may lock 64 KiB")

	hold 4194304
	shot healthy "a lab machine that works, with one registration"
	let_go
	shot healthy-idle "a lab machine that works, with nothing registered"

	rmmod nvidia_peermem
	shot module-not-loaded "all there, but nobody loaded nvidia-peermem"
	echo "options nvidia-peermem persistent_api_support=2" >/etc/modprobe.d/peermem.conf
	modprobe nvidia-peermem
	shot parameter-value "modprobe.d has a value that the module does not take"
	echo "options nvidia-peermem peermem_mode=1" >/etc/modprobe.d/peermem.conf
	modprobe nvidia-peermem
	shot parameter-unknown "modprobe.d has a parameter that the module does not have"
	rmmod nvidia_peermem
	echo "blacklist nvidia-peermem" >/etc/modprobe.d/peermem.conf
	shot blacklisted "the module is blacklisted"
	rm /etc/modprobe.d/peermem.conf
	modprobe nvidia-peermem peerdirect_support=1
	shot plain-client "peerdirect_support=1 on a new core"
	rmmod nvidia_peermem
	modprobe nvidia-peermem persistent_api_support=0
	shot legacy "legacy mode, on purpose"

	echo 60000000 >/sys/kernel/debug/rxe_peer/fence_us
	hold 65536 0 65536 free
	let_go_of_last
	sleep 12
	shot callback-stuck "a free callback waits for the RDMA core"
	echo 0 >/sys/kernel/debug/rxe_peer/fence_us
	wait
	rmmod nvidia_peermem

	modprobe lab_second_client name=nv_mem
	modprobe nvidia-peermem
	shot name-taken "another module serves the client name nv_mem"
	rmmod lab_second_client
	rmmod nvidia
	insmod $MODULES/updates/nvidia-peermem.ko
	shot driver-not-loaded "nvidia.ko is not loaded; the last try to load nvidia-peermem said so"
	modprobe nvidia-peermem
	ip link set eth0 down
	sleep 1
	shot port-down "the port of the only RDMA device is down"
	network
	sleep 1
	mv /dev/nvidiactl /tmp/
	shot no-gpu-nodes "/dev/nvidiactl is missing"
	mv /tmp/nvidiactl /dev/
	mv /dev/infiniband /tmp/
	shot no-rdma-nodes "/dev/infiniband is missing"
	mv /tmp/infiniband /dev/

	hold 65536 0 65536 heir
	sleep 1
	shot stale-registration "a registration whose process is gone; a child has the RDMA device open"
	killall sleep
	let_go

	hold 226492416
	shot bar1-nearly-full "216 of 256 MiB of BAR1 are registered"
	hold 33554432
	shot bar1-refused "BAR1 had no room for one more registration"
	let_go
	echo "bar1_reserve 0" >$LAB/config
	hold 260046848
	shot bar1-full "248 of 256 MiB of BAR1 are registered"
	let_go
	echo reset >$LAB/config
}

# A user who may lock little.
user() {
	up
	configured
	modprobe nvidia-peermem
	chmod 666 /dev/nvidia* /dev/infiniband/* /dev/nvidiactl
	hold_program() { su nobody -s /bin/sh -c "ulimit -l 128; exec hold-memory $*"; }
	hold 65536
	shot memlock-process "a user's process with 128 KiB of memlock has the RDMA device open"
	let_go
	hold_program() { hold-memory "$@"; }
}

# Which file is loaded.
files() {
	up
	configured
	mkdir -p /etc/depmod.d
	echo "search updates built-in kernel" >/etc/depmod.d/search.conf
	depmod
	mv $MODULES/updates/nvidia-peermem.ko /tmp/ours.ko
	cp /situations/older.ko $MODULES/updates/nvidia-peermem.ko
	modprobe nvidia-peermem
	mv /tmp/ours.ko $MODULES/updates/nvidia-peermem.ko
	shot module-stale "an older build is loaded than the one that is installed"
	rmmod nvidia_peermem
	cp $MODULES/updates/nvidia-peermem.ko /tmp/ours.ko
	cp /situations/other-kernel.ko $MODULES/updates/nvidia-peermem.ko
	modprobe nvidia-peermem
	shot other-kernel "the installed file is built for another kernel"
	cp /tmp/ours.ko $MODULES/updates/nvidia-peermem.ko
	modprobe nvidia-peermem
	echo "search kernel updates" >/etc/depmod.d/search.conf
	depmod
	shot driver-of-other-stack "modprobe would load the kernel's own RDMA driver beside the core that has the API"
	echo "search updates built-in kernel" >/etc/depmod.d/search.conf
	rmmod nvidia_peermem
	rm $MODULES/updates/nvidia-peermem.ko
	depmod
	modprobe nvidia-peermem
	shot not-installed "no nvidia-peermem.ko is installed"
	cp /situations/stub.ko $MODULES/updates/nvidia-peermem.ko
	depmod
	modprobe nvidia-peermem
	shot nvidia-stub "NVIDIA's module, built where the API was not seen"
	cp /situations/nvidia_c.ko $MODULES/updates/nvidia-peermem.ko
	depmod
	modprobe nvidia-peermem
	shot nvidia-only "NVIDIA's C module, and ours is not installed"
	rmmod nvidia_peermem
	# modprobe heeds an install line only for a module without softdep, which ours has and
	# NVIDIA's has not.
	echo "install nvidia-peermem /bin/false" >/etc/modprobe.d/peermem.conf
	modprobe nvidia-peermem
	shot install-false "modprobe is told to run /bin/false instead of loading NVIDIA's module"
	rm /etc/modprobe.d/peermem.conf
	mkdir -p $MODULES/updates/dkms $MODULES/updates/nvidia-peermem-rust
	mv $MODULES/updates/nvidia-peermem.ko $MODULES/updates/dkms/
	cp /tmp/ours.ko $MODULES/updates/nvidia-peermem-rust/nvidia-peermem.ko
	echo "override nvidia-peermem * updates/dkms" >/etc/depmod.d/nvidia.conf
	depmod
	modprobe nvidia-peermem
	shot nvidia-wins "NVIDIA's file wins over ours"
	echo "override nvidia-peermem * updates/nvidia-peermem-rust" >/etc/depmod.d/nvidia.conf
	depmod
	shot nvidia-still-loaded "NVIDIA's module is loaded, ours would be from now on"
	rmmod nvidia_peermem
	modprobe nvidia-peermem
	shot healthy-two-files "a lab machine that works, with both files installed"
}

# The kernel's own RDMA core, and a GPU that goes.
core() {
	configured
	mkdir -p /etc/depmod.d
	echo "search kernel updates" >/etc/depmod.d/search.conf
	depmod
	up
	modprobe nvidia-peermem
	shot no-api "a mainline RDMA core, without the peer-memory API"
	rdma link delete rxe0
	for module in rdma_rxe rdma_ucm ib_uverbs ib_uverbs_support rdma_cm ib_cm iw_cm ib_umad ib_core; do
		grep -q "^$module " /proc/modules && rmmod $module
	done
	echo "search updates built-in kernel" >/etc/depmod.d/search.conf
	depmod
	up
	modprobe nvidia-peermem
	echo 1 >/sys/bus/pci/devices/0000:00:08.0/remove
	shot gpu-gone "the GPU has fallen off the bus"
}

let_go_of_last() {
	eval "exec $((held + 2))>&-"
	rm -f /tmp/hold$held
	held=$((held - 1))
}

# Each refusal leaves a row in failures. A new load each time, so that a tree has one reason.
refusals() {
	up
	configured
	modprobe nvidia-peermem
	again() {
		rmmod nvidia_peermem
		modprobe nvidia-peermem "$@"
	}
	again
	fault "persistent_errno 524" "get_errno 524"
	shot refused-no-fallback "the platform refuses both kinds of pins"
	again
	hold 4194304 0 65536
	let_go
	shot refused-hole "a registration longer than its allocation"
	again persistent_api_support=0
	hold 4194304 0 65536
	let_go
	shot refused-leaves-allocation "a revocable registration over two allocations"
	again
	fault "persistent_errno 16"
	shot refused-busy "the GPU is busy"
	again
	fault "persistent_errno 19"
	shot refused-no-gpu "the driver does not find the GPU"
	again
	fault "persistent_errno 5 1"
	shot refused-provider-fault "the driver fails on memory that it knows"
	again
	fault "persistent_errno 5"
	shot refused-unproven "the driver fails before it is known whose memory it is"
	again
	fault "map_topology 1"
	shot refused-topology "the driver says that GPU and NIC cannot reach each other"
	again
	fault "table_version 0x30000"
	shot refused-table "a page table of an unknown version"
	again
	fault "put_errno 5" "persistent_put_errno 5"
	shot put-errors "the driver fails to take a pin back"
	again
}

# A core whose API is in ib_uverbs, as in OFED 25.10: without that module, nothing exports it.
api_not_loaded() {
	configured
	depmod
	modprobe ib_core
	modprobe nvidia
	grep -q "^alias symbol:ib_register_peer_memory_client ib_uverbs$" $MODULES/modules.symbols || return 0
	shot api-not-loaded "ib_core is loaded, and ib_uverbs, which exports the peer-memory API, is not"
}

# Debian's own kernel: what only a kernel with symbol versions, signatures and cgroups has, or one
# without memory_peers.
distribution() {
	ours=$MODULES/updates/nvidia-peermem.ko
	api_not_loaded
	up
	configured
	modprobe nvidia-peermem
	insmod /situations/nv_peer_mem.ko name=nv_mem
	shot old-module-beside "the deprecated nv_peer_mem is loaded beside ours, on a core that takes two clients of one name"
	rmmod nv_peer_mem
	mkdir -p /var/lib
	mv /situations/dkms /var/lib/
	shot dkms-not-built "DKMS has the GPU driver and has not built it for the running kernel"
	rm -r /var/lib/dkms
	mv /situations/newer/* "$MODULES/.."
	shot newer-kernel "a newer kernel is installed, without nvidia-peermem"
	find "$MODULES/.." -mindepth 1 -maxdepth 1 ! -name "$(uname -r)" -exec rm -r {} +
	mkdir -p /tmp/cgroup
	mount -t cgroup -o devices none /tmp/cgroup
	mkdir /tmp/cgroup/container
	echo a >/tmp/cgroup/container/devices.deny
	echo "c 1:* rwm" >/tmp/cgroup/container/devices.allow
	echo "c 5:* rwm" >/tmp/cgroup/container/devices.allow
	echo $$ >/tmp/cgroup/container/cgroup.procs
	shot devices-forbidden "a container that was not given the devices"
	echo $$ >/tmp/cgroup/cgroup.procs
	rmdir /tmp/cgroup/container
	umount /tmp/cgroup
	rmmod nvidia_peermem

	cp $ours /tmp/ours.ko
	cp /situations/other-core.ko $ours
	modprobe nvidia-peermem
	shot other-core "the installed file is built against another RDMA core"
	# From here on the kernel takes less and less, until the next boot.
	mount -t securityfs securityfs /sys/kernel/security
	echo integrity >/sys/kernel/security/lockdown
	cp /tmp/ours.ko $ours
	modprobe nvidia-peermem
	shot locked-down "a locked-down kernel (Secure Boot), and a file that is not signed"
	cp /situations/unknown-key.ko $ours
	modprobe nvidia-peermem
	shot locked-down-unknown-key "a locked-down kernel (Secure Boot), and a file signed with a key that it does not know"
	echo 1 >/sys/module/module/parameters/sig_enforce
	modprobe nvidia-peermem
	shot unknown-key "the kernel takes signed modules only, and does not know the key"
	cp /tmp/ours.ko $ours
	modprobe nvidia-peermem
	shot unsigned "the kernel takes signed modules only, and the file is not signed"
}

# A pin whose owner lives, and another process deregistered it: only a revocable one stays.
orphan() {
	up
	configured
	modprobe nvidia-peermem persistent_api_support=0
	hold 65536 0 65536 child
	shot orphan "legacy mode, and a child deregistered what its parent registered"
	let_go
}

# Boots with other hardware: the machine works, except for one thing.
hardware() {
	up
	configured
	modprobe nvidia-peermem
	shot "$1" "$2"
	echo "=== topo $1"
	peermemctl topo
	echo "=== exit $?"
}

network
echo "=== begin $situations"
case $situations in
plain | user | refusals | files | core | distribution | orphan) $situations ;;
translating)
	hardware iommu-translating "an IOMMU that translates"
	rmmod nvidia_peermem
	cp /situations/nvidia_c.ko $MODULES/updates/nvidia-peermem.ko
	modprobe nvidia-peermem
	shot nvidia-iommu "NVIDIA's module behind an IOMMU that translates, on a new kernel"
	;;
identity)
	hardware healthy-iommu-identity "a lab machine that works, with an IOMMU that lets addresses through"
	# The kernel's own mark of a fault.
	echo 128 >/proc/sys/kernel/tainted
	shot kernel-fault "the kernel says that it has had a fault since it was booted"
	;;
acs)
	hardware acs-redirect "GPU and NIC below one switch, with an IOMMU that lets addresses through: the kernel switched ACS redirect on"
	# What the fix does, at the place where QEMU's ports have that word.
	for port in 0000:02:00.0 0000:02:01.0; do
		printf '\0\0' | dd of=/sys/bus/pci/devices/$port/config bs=2 seek=$((0x14e / 2)) conv=notrunc 2>/dev/null
	done
	shot healthy-acs-off "the same, after the fix: no port redirects"
	;;
switch) hardware healthy-switch "GPU and NIC below one switch without ACS redirect" ;;
node) hardware two-host-bridges "GPU and NIC below different host bridges" ;;
numa) hardware two-numa-nodes "GPU and NIC on different NUMA nodes" ;;
closed)
	mkdir -p /etc/depmod.d
	echo "search updates built-in kernel" >/etc/depmod.d/search.conf
	depmod
	up
	configured
	modprobe nvidia-peermem
	shot closed-flavour "the closed nvidia.ko, and a build of ours with GPL-only imports"
	;;
esac
echo "=== done"
poweroff -f
