// SPDX-License-Identifier: GPL-2.0
/*
 * Hold points inside functions of the kernel, for moments of a client that
 * neither the core nor the provider sees: it maps and unmaps BAR memory by
 * itself. No real core has them; they only delay.
 *
 * A kprobe's handler may not sleep. It sends the thread to a function of the
 * same signature instead, which waits and then calls the one that was meant;
 * by then the point is disarmed. An optimized probe ignores where its handler
 * wants to go, and one on the function's ftrace site is never optimized. Where
 * there is neither CONFIG_KPROBES_ON_FTRACE nor an architecture without
 * CONFIG_OPTPROBES, such as arm64, nobody is ever stopped here. A probe costs
 * each call, so it is switched on when its point is first armed. Left out: two points armed at once stop one thread twice.
 */
#include <linux/dma-mapping.h>
#include <linux/kprobes.h>
#include <linux/ptrace.h>

#include "lab_trace.h"

#if defined(CONFIG_KPROBES_ON_FTRACE) || !defined(CONFIG_OPTPROBES)
static dma_addr_t held_map(struct device *dev, phys_addr_t addr, size_t size,
			   enum dma_data_direction dir, unsigned long attrs)
{
	lab_hold(LAB_IN_DMA_MAP, "-");
	return dma_map_resource(dev, addr, size, dir, attrs);
}

static void held_unmap(struct device *dev, dma_addr_t addr, size_t size,
		       enum dma_data_direction dir, unsigned long attrs)
{
	lab_hold(LAB_IN_DMA_UNMAP, "-");
	dma_unmap_resource(dev, addr, size, dir, attrs);
}

static int map_probed(struct kprobe *probe, struct pt_regs *regs)
{
	if (!lab_armed(LAB_IN_DMA_MAP))
		return 0;
	instruction_pointer_set(regs, (unsigned long)held_map);
	return 1;
}

static int unmap_probed(struct kprobe *probe, struct pt_regs *regs)
{
	if (!lab_armed(LAB_IN_DMA_UNMAP))
		return 0;
	instruction_pointer_set(regs, (unsigned long)held_unmap);
	return 1;
}

static struct kprobe map_probe = {
	.symbol_name = "dma_map_resource",
	.pre_handler = map_probed,
	.flags = KPROBE_FLAG_DISABLED,
};

static struct kprobe unmap_probe = {
	.symbol_name = "dma_unmap_resource",
	.pre_handler = unmap_probed,
	.flags = KPROBE_FLAG_DISABLED,
};

static struct kprobe *probes[] = { &map_probe, &unmap_probe };

int lab_probe_init(void)
{
	return register_kprobes(probes, ARRAY_SIZE(probes));
}

void lab_probe_exit(void)
{
	unregister_kprobes(probes, ARRAY_SIZE(probes));
}

int lab_probe_enable(enum lab_point point)
{
	switch (point) {
	case LAB_IN_DMA_MAP:
		return enable_kprobe(&map_probe);
	case LAB_IN_DMA_UNMAP:
		return enable_kprobe(&unmap_probe);
	default:
		return 0;
	}
}
#else
int lab_probe_init(void)
{
	return 0;
}

void lab_probe_exit(void)
{
}

int lab_probe_enable(enum lab_point point)
{
	return 0;
}
#endif
