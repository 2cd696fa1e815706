/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What Rust needs from C: weak symbols of the two neighbours, parameters, and
 * what the kernel offers only as inline functions, macros or types whose
 * layout depends on its configuration. Every function may be called from any
 * task; what else it needs is said at its definition. Each C file has one job;
 * core.c (parameters, the core) and proc.c are nvidia-peermem's own, the others
 * belong to the pin layer.
 */
#ifndef NVPM_SHIM_H
#define NVPM_SHIM_H

#include "../../bindings/nv_p2p.h"
#include "../../bindings/peer_mem.h"

struct scatterlist;
struct seq_file;

/* A process, as the provider tells them apart, safe against number reuse. */
struct nvpm_process {
	uint64_t start_ns;
	uint32_t tgid;
};

/* One BAR of a PCI device bound to the provider's driver. */
struct nvpm_bar {
	uint64_t start;		/* CPU physical address of the first byte */
	uint64_t last;		/* ... of the last byte */
	uint64_t bus_offset;	/* bus address minus CPU address, wrapping */
	uint64_t device;	/* domain << 16 | bus << 8 | devfn */
};

/* Module parameters and the module's own reference. */
int nvpm_param_peerdirect_support(void);
int nvpm_param_persistent_api_support(void);
int nvpm_param_revocable_fallback(void);
int nvpm_module_get(void);
void nvpm_module_put(void);

/* The peer-memory core, weak: absent on kernels without the API. */
int nvpm_core_present(void);
int nvpm_uverbs_loaded(void);
void *nvpm_core_register(const struct peer_memory_client *client,
			 invalidate_peer_memory *invalidate);
void nvpm_core_unregister(void *handle);

/*
 * The provider (nvidia.ko), weak. Returns 1 when this module can use it, 0 until
 * it is loaded, and -ENOTSUPP if it has no persistent pins, as that of an
 * integrated GPU.
 */
int nvpm_provider_present(void);
int nvpm_p2p_get(uint64_t va, uint64_t length,
		 struct nvidia_p2p_page_table **table, uint64_t ticket);
int nvpm_p2p_put(uint64_t va, struct nvidia_p2p_page_table *table);
int nvpm_p2p_get_persistent(uint64_t va, uint64_t length,
			    struct nvidia_p2p_page_table **table);
int nvpm_p2p_put_persistent(uint64_t va, struct nvidia_p2p_page_table *table);
int nvpm_p2p_dma_map(struct device *dev, struct nvidia_p2p_page_table *table,
		     struct nvidia_p2p_dma_mapping **mapping);
int nvpm_p2p_dma_unmap(struct device *dev, struct nvidia_p2p_page_table *table,
		       struct nvidia_p2p_dma_mapping *mapping);

/* The free callback: a C function calls this one, in Rust. See callback.c. */
int nvpm_on_free(void *data);
void nvpm_free_callback(void *data);

/* The put gate: shared around a revocable get, exclusive around a revocable put. */
void nvpm_put_gate_lock_shared(void);
void nvpm_put_gate_unlock_shared(void);
void nvpm_put_gate_lock_exclusive(void);
void nvpm_put_gate_unlock_exclusive(void);

/* Tasks and time. */
void nvpm_current_process(struct nvpm_process *process);
void nvpm_current_comm(uint8_t comm[16]);
uint64_t nvpm_current_task(void);
uint64_t nvpm_now_ns(void);
uint64_t nvpm_real_ns(void);
void nvpm_cond_resched(void);
void nvpm_pause(void);
void nvpm_preempt_disable(void);
void nvpm_preempt_enable(void);
int nvpm_is_killed(void);

/* DMA. */
uint64_t nvpm_page_size(void);
int nvpm_device_is_pci(struct device *dev);
uint64_t nvpm_device_number(struct device *dev);
uint64_t nvpm_device_segment_limit(struct device *dev);
int nvpm_provider_bar(uint64_t address, struct nvpm_bar *bar);
void nvpm_forget_gpus(void);
int nvpm_dma_map(struct device *dev, uint64_t address, uint64_t length,
		 uint64_t *dma);
void nvpm_dma_unmap(struct device *dev, uint64_t dma, uint64_t length);

/* Tracepoints; see trace.h. */
#define NVPM_TRACE_ACQUIRE	0
#define NVPM_TRACE_PIN		1
#define NVPM_TRACE_MAP		2
#define NVPM_TRACE_UNMAP	3
#define NVPM_TRACE_PUT		4
#define NVPM_TRACE_REVOKE	5
#define NVPM_TRACE_ORPHAN	6

struct nvpm_traced {
	uint64_t ticket;
	uint64_t va;
	uint64_t length;
	uint32_t revocable;
};

extern uint32_t nvpm_trace_listened;
void nvpm_trace_registration(uint32_t event, const struct nvpm_traced *traced,
			     int ret, uint64_t ns);
void nvpm_trace_late_callback(uint64_t ticket);
void nvpm_trace_failure(uint64_t va, uint64_t length, int err,
			const uint8_t *reason, size_t reason_length);

/*
 * sg_table, whose layout depends on the configuration. Room for one with one
 * entry lies inside of its registration: most need no other memory.
 */
struct nvpm_sg_room {
	uint64_t words[6];
};

struct sg_table *nvpm_sg_alloc(int entries, struct nvpm_sg_room *room);
void nvpm_sg_free(struct sg_table *table);
struct scatterlist *nvpm_sg_first(struct sg_table *table);
struct scatterlist *nvpm_sg_set(struct scatterlist *entry, uint64_t dma,
				uint32_t length);
int nvpm_sg_publish(struct sg_table *to, const struct sg_table *from);

/*
 * /proc/driver/nvidia-peermem: proc.c has the seq_files, Rust the contents.
 * nvpm_proc_seek() moves *at to the first row of a list from there on, or
 * answers 0; nvpm_proc_row() writes that row, unless it is gone by now.
 */
#define NVPM_PROC_REGISTRATIONS	0
#define NVPM_PROC_FAILURES	1
#define NVPM_PROC_CALLBACKS	2
int nvpm_proc_create(void);
void nvpm_proc_remove(void);
void nvpm_proc_write(struct seq_file *seq, const uint8_t *text, size_t length);
void nvpm_proc_stats(struct seq_file *seq);
int nvpm_proc_seek(uint32_t list, uint64_t *at);
void nvpm_proc_row(uint32_t list, uint64_t at, struct seq_file *seq);

#endif
