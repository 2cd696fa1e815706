// SPDX-License-Identifier: GPL-2.0
/* /proc/driver/nvidia-peermem: the files themselves; see shim.h. */
#include <linux/capability.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "shim.h"

static struct proc_dir_entry *nvpm_proc;

void nvpm_proc_write(struct seq_file *seq, const uint8_t *text, size_t length)
{
	seq_write(seq, text, length);
}

static int nvpm_stats_show(struct seq_file *seq, void *unused)
{
	nvpm_proc_stats(seq);
	return 0;
}

static u32 nvpm_list(struct seq_file *seq)
{
	return (unsigned long)seq->private;
}

static void *nvpm_rows_seek(struct seq_file *seq, loff_t *pos)
{
	u64 at = *pos;

	if (!nvpm_proc_seek(nvpm_list(seq), &at))
		return NULL;
	*pos = at;
	return pos;
}

static void *nvpm_rows_start(struct seq_file *seq, loff_t *pos)
{
	return nvpm_rows_seek(seq, pos);
}

static void *nvpm_rows_next(struct seq_file *seq, void *v, loff_t *pos)
{
	++*pos;
	return nvpm_rows_seek(seq, pos);
}

static int nvpm_rows_show(struct seq_file *seq, void *v)
{
	nvpm_proc_row(nvpm_list(seq), *(loff_t *)v, seq);
	return 0;
}

static void nvpm_rows_stop(struct seq_file *seq, void *v)
{
}

static const struct seq_operations nvpm_rows = {
	.start = nvpm_rows_start,
	.next = nvpm_rows_next,
	.stop = nvpm_rows_stop,
	.show = nvpm_rows_show,
};

/* The mode is not enough: uid 0 of a container would see everybody's processes and addresses. */
static int nvpm_rows_open(struct file *file, unsigned long list)
{
	int ret;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	ret = seq_open(file, &nvpm_rows);
	if (!ret)
		((struct seq_file *)file->private_data)->private = (void *)list;
	return ret;
}

/*
 * pde_data() is PDE_DATA() before 5.17, and some kernels of distributions have the new name
 * earlier. So no file needs it: each has its own open().
 */
#define NVPM_ROWS_FILE(name, list)						\
static int nvpm_##name##_open(struct inode *inode, struct file *file)	\
{										\
	return nvpm_rows_open(file, list);					\
}										\
static const struct proc_ops nvpm_##name##_ops = {				\
	.proc_open = nvpm_##name##_open,					\
	.proc_read_iter = seq_read_iter,					\
	.proc_lseek = seq_lseek,						\
	.proc_release = seq_release,						\
}

NVPM_ROWS_FILE(registrations, NVPM_PROC_REGISTRATIONS);
NVPM_ROWS_FILE(failures, NVPM_PROC_FAILURES);
NVPM_ROWS_FILE(callbacks, NVPM_PROC_CALLBACKS);

/* Returns 0 or -ENOMEM, and leaves nothing behind then. */
int nvpm_proc_create(void)
{
	nvpm_proc = proc_mkdir("driver/nvidia-peermem", NULL);
	if (!nvpm_proc)
		return -ENOMEM;
	if (proc_create_single("stats", 0444, nvpm_proc, nvpm_stats_show) &&
	    proc_create("registrations", 0400, nvpm_proc, &nvpm_registrations_ops) &&
	    proc_create("failures", 0400, nvpm_proc, &nvpm_failures_ops) &&
	    proc_create("callbacks", 0400, nvpm_proc, &nvpm_callbacks_ops))
		return 0;
	nvpm_proc_remove();
	return -ENOMEM;
}

/* Waits until nobody reads any more. */
void nvpm_proc_remove(void)
{
	proc_remove(nvpm_proc);
}
