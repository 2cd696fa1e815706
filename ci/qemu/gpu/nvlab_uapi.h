/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Control interface of the lab's nvidia.ko: what the lab's libcuda.so and the
 * guest tests say to /dev/nvidiactl. Not NVIDIA's own interface, which is large,
 * versioned with the driver and not needed here.
 *
 * Opening /dev/nvidiactl makes one client of the resource manager (RM), bound
 * to the opener's process. The memory of a client goes when the last reference
 * to the open file goes. User space reserves a GPU address by mapping
 * /dev/nvidia<gpu> at offset 0: the mapping can be seen in /proc/PID/maps and
 * by mincore(2), holds no page, makes get_user_pages fail with -EFAULT and a
 * load of the CPU fault with SIGBUS. The mapping and the memory know nothing
 * of each other: user space passes the address to NVLAB_IOC_ALLOC.
 *
 * Errors: -EINVAL for a bad argument, -ENOENT for an unknown handle, -ENOMEM
 * when video memory is full, -ENODEV for an unknown GPU, -EFAULT for a bad
 * user pointer.
 */
#ifndef NVLAB_UAPI_H
#define NVLAB_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Video memory is handed out in units of 2 MiB and pinned in units of 64 KiB. */
#define NVLAB_BACKING_SIZE	(2UL << 20)
#define NVLAB_GPU_PAGE		(64UL << 10)

struct nvlab_info {
	__u32 gpu;		/* in */
	__u32 gpus;		/* how many there are */
	__u64 memory;		/* bytes of video memory = size of the BAR */
	__u64 memory_free;
	__u64 bar1_size;	/* bytes that may be pinned at once, reserve included */
	__u8  uuid[16];
	__u32 domain;
	__u32 bus;
	__u32 device;
	__u32 function;
	__u32 dma_buf;		/* 1: NVLAB_IOC_EXPORT works */
	__u32 pad;
};

/* Physical layout of an allocation's 64 KiB pages. */
#define NVLAB_LAYOUT_DEFAULT	0	/* what debugfs `config` says */
#define NVLAB_LAYOUT_CONTIGUOUS	1	/* one run, 2 MiB aligned */
#define NVLAB_LAYOUT_2M		2	/* no two neighbouring 2 MiB blocks contiguous */
#define NVLAB_LAYOUT_64K	3	/* no two neighbouring 64 KiB pages contiguous */
#define NVLAB_LAYOUT_SHUFFLED	4	/* random order of 64 KiB pages */

#define NVLAB_ALLOC_COHERENT	1	/* CPU-cacheable memory outside any BAR */
#define NVLAB_ALLOC_UNMAPPED	2	/* no address: NVLAB_IOC_REGISTER gives one */
#define NVLAB_ALLOC_SMALL	4	/* in pages of 64 KiB: address and end, too */

struct nvlab_alloc {
	__u32 gpu;		/* in */
	__u32 layout;		/* in */
	__u32 flags;		/* in */
	__u32 pad;		/* in, zero */
	__u64 va;		/* in, a multiple of 2 MiB, or of 64 KiB with NVLAB_ALLOC_SMALL */
	__u64 size;		/* in, > 0 */
	__u64 handle;		/* out, never reused */
	__u64 backing;		/* out, size rounded up: what can be pinned */
};

struct nvlab_handle {
	__u64 handle;
};

struct nvlab_register {
	__u64 handle;
	__u64 va;
};

struct nvlab_copy {
	__u64 handle;
	__u64 offset;
	__u64 len;
	__u64 user;		/* user pointer */
};

struct nvlab_copy_dtod {
	__u64 dst_handle;
	__u64 dst_offset;
	__u64 src_handle;
	__u64 src_offset;
	__u64 len;
};

struct nvlab_fill {
	__u64 handle;
	__u64 offset;
	__u64 len;		/* a multiple of width */
	__u32 value;
	__u32 width;		/* 1, 2 or 4 bytes */
};

struct nvlab_crc {
	__u64 handle;
	__u64 offset;
	__u64 len;
	__u32 crc;		/* out, CRC-32 as zlib's */
	__u32 pad;
};

struct nvlab_pid {
	__u32 pid;		/* thread group id in the initial pid namespace */
};

/* One piece of a dma-buf: bytes of one handle, in pages of the CPU. */
struct nvlab_part {
	__u64 handle;
	__u64 offset;
	__u64 len;
};

struct nvlab_export {
	__u64 parts;		/* in, user pointer: struct nvlab_part, in the buffer's order */
	__u32 count;		/* in, at most NVLAB_EXPORT_MAX */
	__u32 gpu;		/* in, which has all of them */
	__s32 fd;		/* out, close-on-exec */
	__u32 forced;		/* in, 1: to PCIe; -EINVAL in fronts before 580 */
};

#define NVLAB_EXPORT_MAX	65536

#define NVLAB_IOC_INFO		_IOWR('N', 0, struct nvlab_info)
#define NVLAB_IOC_ALLOC		_IOWR('N', 1, struct nvlab_alloc)
/* Free memory: callbacks of all its pins, then the memory goes. */
#define NVLAB_IOC_FREE		_IOW('N', 2, struct nvlab_handle)
/* What cuMemUnmap does: callbacks of all its pins, the memory stays. */
#define NVLAB_IOC_UNREGISTER	_IOW('N', 3, struct nvlab_handle)
/* What cuMemMap does: make unregistered memory pinnable, at this address. */
#define NVLAB_IOC_REGISTER	_IOW('N', 4, struct nvlab_register)
#define NVLAB_IOC_WRITE		_IOW('N', 5, struct nvlab_copy)	/* host to GPU */
#define NVLAB_IOC_READ		_IOW('N', 6, struct nvlab_copy)	/* GPU to host */
#define NVLAB_IOC_COPY		_IOW('N', 7, struct nvlab_copy_dtod)
#define NVLAB_IOC_FILL		_IOW('N', 8, struct nvlab_fill)
#define NVLAB_IOC_CRC		_IOWR('N', 9, struct nvlab_crc)
/* Let another process pin this client's memory (as an MPS server does), and stop it. */
#define NVLAB_IOC_PID_ADD	_IOW('N', 10, struct nvlab_pid)
#define NVLAB_IOC_PID_DEL	_IOW('N', 11, struct nvlab_pid)
/* Make a dma-buf of this client's memory; -EOPNOTSUPP: the closed flavour has none. */
#define NVLAB_IOC_EXPORT	_IOWR('N', 12, struct nvlab_export)

/*
 * /dev/nvlab_gdr (module nvlab_gdr.ko): a second in-kernel user of nvidia_p2p_*,
 * as gdrdrv is. A pin belongs to the open file; closing it puts what is left.
 */
#define NVLAB_GDR_PERSISTENT	1	/* else revocable */
#define NVLAB_GDR_REENTER	2	/* the callback calls get_pages: -EIO: the lock is its own */
#define NVLAB_GDR_FORCE_PCIE	4	/* a persistent pin with NVIDIA's flag for that */

struct nvlab_gdr_pin {
	__u64 va;		/* in */
	__u64 len;		/* in */
	__u32 flags;		/* in */
	__u32 entries;		/* out */
	__u64 handle;		/* out */
	__u64 table;		/* out, the table's kernel address: the provider's key */
	__u64 first;		/* out, physical address of the first page */
};

struct nvlab_gdr_state {
	__u64 handle;		/* in */
	__u32 callbacks;	/* out, how often the free callback ran */
	__s32 reentry;		/* out, what get_pages answered inside the callback */
};

struct nvlab_gdr_map {
	__u64 handle;		/* in */
	__u32 domain;		/* in, the peer's PCI address */
	__u32 bus;
	__u32 device;
	__u32 function;
	__u64 first;		/* out, DMA address of the first page */
	__u64 entries;		/* out */
};

/* One access of a PCI device to a bus address, over the lab's PCIe fabric. */
struct nvlab_gdr_dma {
	__u32 domain;		/* in, the initiator's PCI address */
	__u32 bus;
	__u32 device;
	__u32 function;
	__u64 addr;		/* in */
	__u32 len;		/* in, at most NVLAB_GDR_DMA_MAX */
	__u32 write;		/* in, 0: read */
	__u8  data[64];		/* in or out */
};

#define NVLAB_GDR_DMA_MAX	64

/* Attach a PCI device to a dma-buf, and detach it again: does the exporter let it? */
struct nvlab_gdr_attach {
	__s32 fd;		/* in */
	__u32 domain;		/* in */
	__u32 bus;
	__u32 device;
	__u32 function;
	__u32 pad;
};

#define NVLAB_GDR_IOC_PIN	_IOWR('G', 0, struct nvlab_gdr_pin)
#define NVLAB_GDR_IOC_UNPIN	_IOW('G', 1, struct nvlab_handle)
#define NVLAB_GDR_IOC_STATE	_IOWR('G', 2, struct nvlab_gdr_state)
#define NVLAB_GDR_IOC_MAP	_IOWR('G', 3, struct nvlab_gdr_map)
#define NVLAB_GDR_IOC_UNMAP	_IOW('G', 4, struct nvlab_handle)
#define NVLAB_GDR_IOC_DMA	_IOWR('G', 5, struct nvlab_gdr_dma)
#define NVLAB_GDR_IOC_ATTACH	_IOW('G', 6, struct nvlab_gdr_attach)

#endif
