// SPDX-License-Identifier: GPL-2.0
/*
 * What a test sees and steers, all of it the lab's own and not NVIDIA's: text
 * files in /sys/kernel/debug/nvidia_lab/. The files driver and accounting are here;
 * lab.c (config, cost, faults, holds), log.c (allocations, chunks) and rm.c (pins,
 * bar1) have the others. Each has a table of what its names mean.
 *
 * A write may hold several lines; each line is one command. An unknown name or
 * a bad value is -EINVAL, and the lines before it stay in force. Numbers are
 * decimal or hexadecimal with 0x.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "nvlab.h"

#define MAX_WORDS	3
#define MAX_WRITE	4096

/*
 * --- accounting: a line "name value" each ---
 *
 * Write "reset" to zero the counters (not the gauges), "forget_leaked" to zero
 * leaked_tables, "shut_down_idle" to end the pins of GPUs that nobody holds
 * open: those whose put has failed, "forgive" to end an unbind that waits for a
 * persistent pin, "use_gpu" to take the GPU lock alone, as an interrupt's work does:
 * hold point gpu_busy. After a test these must be 0: live_pins, live_persistent,
 * live_dma_bufs, live_mappings, live_allocations, bar1_used, leaked_tables,
 * callbacks_running, violations.
 */

static const char * const counter_names[NVLAB_ACCOUNT_COUNT] = {
	/* Gauges. */
	[NVLAB_ACCOUNT_LIVE_PINS] = "live_pins",	/* revocable pins */
	[NVLAB_ACCOUNT_LIVE_PERSISTENT] = "live_persistent",
	/* DMA mappings made by dma_map_pages, and handles of dma-bufs that are mapped */
	[NVLAB_ACCOUNT_LIVE_MAPPINGS] = "live_mappings",
	/* memory not yet given back: held by a handle, a persistent pin or a dma-buf */
	[NVLAB_ACCOUNT_LIVE_ALLOCATIONS] = "live_allocations",
	[NVLAB_ACCOUNT_LIVE_CLIENTS] = "live_clients",	/* open /dev/nvidiactl */
	/* until the file and its attachments are gone */
	[NVLAB_ACCOUNT_LIVE_DMA_BUFS] = "live_dma_bufs",
	[NVLAB_ACCOUNT_BAR1_USED] = "bar1_used",	/* bytes that extents map */
	[NVLAB_ACCOUNT_MEMORY_USED] = "memory_used",
	/* kernel memory of the page tables; what that takes in differs by flavour */
	[NVLAB_ACCOUNT_TABLE_BYTES] = "table_bytes",
	/* tables lost by nv-p2p.c's own bug, as nvlab-selftest's gaps shows */
	[NVLAB_ACCOUNT_LEAKED_TABLES] = "leaked_tables",
	[NVLAB_ACCOUNT_CALLBACKS_RUNNING] = "callbacks_running",
	/* Counters. */
	[NVLAB_ACCOUNT_GETS] = "gets",
	[NVLAB_ACCOUNT_GET_FAILURES] = "get_failures",
	[NVLAB_ACCOUNT_PUTS] = "puts",	/* all calls */
	[NVLAB_ACCOUNT_PUTS_NOT_FOUND] = "puts_not_found",	/* returned 0 and did nothing */
	[NVLAB_ACCOUNT_PUT_FAILURES] = "put_failures",
	[NVLAB_ACCOUNT_PERSISTENT_GETS] = "persistent_gets",
	[NVLAB_ACCOUNT_PERSISTENT_GET_FAILURES] = "persistent_get_failures",
	[NVLAB_ACCOUNT_PERSISTENT_PUTS] = "persistent_puts",
	[NVLAB_ACCOUNT_PERSISTENT_PUT_FAILURES] = "persistent_put_failures",
	[NVLAB_ACCOUNT_DMA_MAPS] = "dma_maps",
	/* of the tables that dma_map_pages mapped */
	[NVLAB_ACCOUNT_MAPPED_PAGES] = "mapped_pages",
	[NVLAB_ACCOUNT_DMA_UNMAPS] = "dma_unmaps",
	[NVLAB_ACCOUNT_DMA_BUFS] = "dma_bufs",	/* exported */
	[NVLAB_ACCOUNT_DMA_BUF_MAPS] = "dma_buf_maps",	/* of handles */
	[NVLAB_ACCOUNT_CALLBACKS] = "callbacks",
	/* calls by the owner of the RM API lock, answered -EIO */
	[NVLAB_ACCOUNT_REENTRIES] = "reentries",
	/* NIC accesses to a page of BAR1 that no extent maps */
	[NVLAB_ACCOUNT_VIOLATIONS] = "violations",
	[NVLAB_ACCOUNT_ALLOCS] = "allocs",
	[NVLAB_ACCOUNT_FREES] = "frees",
	/* get_ns to unmap_ns: in all exported calls of that kind */
	[NVLAB_ACCOUNT_GET_NS] = "get_ns",
	[NVLAB_ACCOUNT_PUT_NS] = "put_ns",
	[NVLAB_ACCOUNT_MAP_NS] = "map_ns",
	[NVLAB_ACCOUNT_UNMAP_NS] = "unmap_ns",
	[NVLAB_ACCOUNT_CALLBACK_NS] = "callback_ns",	/* in clients' free callbacks */
	[NVLAB_ACCOUNT_API_LOCK_HELD_NS] = "api_lock_held_ns",
};

static int accounting_show(struct seq_file *s, void *unused)
{
	unsigned int i;

	for (i = 0; i < NVLAB_ACCOUNT_COUNT; i++)
		seq_printf(s, "%s %lld\n", counter_names[i],
			   atomic64_read(&nvlab_accounting[i]));
	return 0;
}

static int accounting_write(int words, char **word)
{
	unsigned int i;

	if (words == 1 && !strcmp(word[0], "shut_down_idle"))
		return nvlab_rm_shut_down_idle();
	if (words == 1 && !strcmp(word[0], "forgive")) {
		nvlab_gpus_forgive();
		return 0;
	}
	if (words == 1 && !strcmp(word[0], "use_gpu")) {
		nvlab_gpu_lock();
		nvlab_hold(NVLAB_H_GPU_BUSY);
		nvlab_gpu_unlock();
		return 0;
	}
	/* The tables themselves stay until the module goes. */
	if (words == 1 && !strcmp(word[0], "forget_leaked")) {
		atomic64_set(&nvlab_accounting[NVLAB_ACCOUNT_LEAKED_TABLES], 0);
		return 0;
	}
	if (words != 1 || strcmp(word[0], "reset"))
		return -EINVAL;
	for (i = NVLAB_ACCOUNT_FIRST_COUNTER; i < NVLAB_ACCOUNT_COUNT; i++)
		atomic64_set(&nvlab_accounting[i], 0);
	return 0;
}

/* --- driver: a line "name value" each: flavour (nvidia, odd, closed) and version --- */

static int driver_show(struct seq_file *s, void *unused)
{
	seq_printf(s, "flavour %s\nversion %s\n", NVLAB_FLAVOUR, NVLAB_VERSION);
	return 0;
}

static const struct nvlab_file driver_file = { "driver", driver_show, NULL };
static const struct nvlab_file accounting_file = {
	"accounting", accounting_show, accounting_write
};

static const struct nvlab_file * const files[] = {
	&driver_file,
	&accounting_file,
	&nvlab_config_file,
	&nvlab_cost_file,
	&nvlab_faults_file,
	&nvlab_holds_file,
	&nvlab_allocations_file,
	&nvlab_chunks_file,
	&nvlab_pins_file,
	&nvlab_bar1_file,
};

static int lab_open(struct inode *inode, struct file *file)
{
	const struct nvlab_file *f = inode->i_private;

	return single_open(file, f->show, NULL);
}

/* Runs the command in a line. */
static int lab_line(const struct nvlab_file *f, char *line)
{
	char *word[MAX_WORDS];
	int words = 0;
	char *w;

	while ((w = strsep(&line, " \t"))) {
		if (!*w)
			continue;
		if (words == MAX_WORDS)
			return -EINVAL;
		word[words++] = w;
	}
	return words ? f->write(words, word) : 0;
}

static ssize_t lab_write(struct file *file, const char __user *user, size_t len,
			 loff_t *pos)
{
	const struct nvlab_file *f = file_inode(file)->i_private;
	char *text, *rest, *line;
	int err = 0;

	if (!f->write)
		return -EPERM;
	if (len > MAX_WRITE)
		return -E2BIG;
	text = memdup_user_nul(user, len);
	if (IS_ERR(text))
		return PTR_ERR(text);
	rest = text;
	while (!err && (line = strsep(&rest, "\n")))
		err = lab_line(f, line);
	kfree(text);
	return err ? err : len;
}

static const struct file_operations lab_fops = {
	.owner = THIS_MODULE,
	.open = lab_open,
	.read = seq_read,
	.write = lab_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static struct dentry *lab_dir;

int nvlab_debugfs_init(void)
{
	unsigned int i;

	lab_dir = debugfs_create_dir("nvidia_lab", NULL);
	for (i = 0; i < ARRAY_SIZE(files); i++)
		debugfs_create_file(files[i]->name, files[i]->write ? 0600 : 0400, lab_dir,
				    (void *)files[i], &lab_fops);
	return PTR_ERR_OR_ZERO(lab_dir);
}

void nvlab_debugfs_exit(void)
{
	debugfs_remove(lab_dir);
	nvlab_log_exit();
}
