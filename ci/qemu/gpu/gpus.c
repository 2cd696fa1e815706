// SPDX-License-Identifier: GPL-2.0
/*
 * The GPUs and who uses them.
 *
 * Models: an unbind takes the GPU off the list first and then waits until nobody uses it, as in
 * 595. A persistent pin that is put after that, or a dma-buf that ends, leaves its reference
 * behind, and the unbind never ends (docs/facts.md#persistent). A GPU is started by the first who
 * opens it and shut down by the last who closes it, under its ldata_lock
 * (kernel-open/nvidia/nv.c, nv_open_device). Who has memory has it open, and so has a persistent
 * pin or a dma-buf.
 *
 * Left out: a program that has allocated nothing is no user. A test can end the unbind's wait
 * (nvlab_gpus_forgive()), which nothing ends in the real driver.
 */
#define pr_fmt(fmt) "nvidia_lab: " fmt

#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/wait_bit.h>

#include "nvlab.h"

/* The GPUs by number, without those whose unbind has begun. */
static struct nvlab_gpu *gpus[NVLAB_MAX_GPUS];
/* All GPUs that RM knows: also those whose unbind has begun, until nobody uses them. */
static LIST_HEAD(attached);
static DEFINE_SPINLOCK(gpus_lock);

unsigned int nvlab_gpu_count(void)
{
	unsigned int i, count = 0;

	spin_lock(&gpus_lock);
	for (i = 0; i < NVLAB_MAX_GPUS; i++)
		count += !!gpus[i];
	spin_unlock(&gpus_lock);
	return count;
}

struct nvlab_gpu *nvlab_gpu_get(unsigned int index)
{
	struct nvlab_gpu *gpu = NULL;

	spin_lock(&gpus_lock);
	if (index < NVLAB_MAX_GPUS)
		gpu = gpus[index];
	if (gpu)
		atomic_inc(&gpu->handles);
	spin_unlock(&gpus_lock);
	return gpu;
}

struct nvlab_gpu *nvlab_rm_gpu_get(const u8 *uuid)
{
	struct nvlab_gpu *gpu, *found = NULL;

	spin_lock(&gpus_lock);
	list_for_each_entry(gpu, &attached, node_attached) {
		if (memcmp(gpu->uuid, uuid, NVLAB_UUID_LEN))
			continue;
		atomic_inc(&gpu->handles);
		found = gpu;
		break;
	}
	spin_unlock(&gpus_lock);
	return found;
}

/* Drops a reference, under the lock: whoever waits in nvlab_gpus_remove() frees the GPU. */
void nvlab_gpu_put(struct nvlab_gpu *gpu)
{
	spin_lock(&gpus_lock);
	atomic_dec(&gpu->handles);
	wake_up_var(gpus);
	spin_unlock(&gpus_lock);
}

int nvlab_gpu_pin(struct nvlab_gpu *gpu)
{
	int err = -ENODEV;

	spin_lock(&gpus_lock);
	if (gpus[gpu->index] == gpu) {
		atomic_inc(&gpu->users);
		err = 0;
	}
	spin_unlock(&gpus_lock);
	return err;
}

/*
 * Drops a persistent pin's reference. The GPU is looked up for that, so one that is not on the list
 * any more keeps the reference.
 */
void nvlab_gpu_unpin(struct nvlab_gpu *gpu)
{
	spin_lock(&gpus_lock);
	if (gpus[gpu->index] == gpu)
		WARN_ONCE(atomic_dec_return(&gpu->users) < 0,
			  "nvlab: more puts of the GPU than gets: a persistent pin was put twice\n");
	spin_unlock(&gpus_lock);
}

void nvlab_gpu_opened(struct nvlab_gpu *gpu)
{
	if (!gpu->opens++)
		nvlab_spend(ktime_get(), NVLAB_T_GPU_START, NVLAB_T_PIN_GIB, 0, NVLAB_ALL);
}

void nvlab_gpu_closed(struct nvlab_gpu *gpu)
{
	if (!--gpu->opens)
		nvlab_spend(ktime_get(), NVLAB_T_GPU_STOP, NVLAB_T_PIN_GIB, 0, NVLAB_ALL);
}

void nvlab_gpu_open(struct nvlab_gpu *gpu)
{
	mutex_lock(&gpu->ldata_lock);
	nvlab_gpu_opened(gpu);
	mutex_unlock(&gpu->ldata_lock);
}

void nvlab_gpu_close(struct nvlab_gpu *gpu)
{
	mutex_lock(&gpu->ldata_lock);
	nvlab_gpu_closed(gpu);
	mutex_unlock(&gpu->ldata_lock);
}

static bool forgiven;	/* under gpus_lock */

void nvlab_gpus_forgive(void)
{
	spin_lock(&gpus_lock);
	forgiven = true;
	wake_up_var(gpus);
	spin_unlock(&gpus_lock);
}

/* Takes the GPU from RM, unless it is in use. */
static bool gpu_detach(struct nvlab_gpu *gpu)
{
	bool used;

	spin_lock(&gpus_lock);
	used = atomic_read(&gpu->handles) ||
	       (atomic_read(&gpu->users) && !forgiven);
	if (!used)
		list_del_init(&gpu->node_attached);
	spin_unlock(&gpus_lock);
	return !used;
}

int nvlab_gpus_number(void)
{
	int i;

	for (i = 0; i < NVLAB_MAX_GPUS; i++)
		if (!gpus[i])
			return i;
	return -ENOSPC;
}

void nvlab_gpus_add(struct nvlab_gpu *gpu)
{
	spin_lock(&gpus_lock);
	gpus[gpu->index] = gpu;
	list_add_tail(&gpu->node_attached, &attached);
	spin_unlock(&gpus_lock);
}

void nvlab_gpus_remove(struct nvlab_gpu *gpu)
{
	spin_lock(&gpus_lock);
	gpus[gpu->index] = NULL;
	forgiven = false;
	spin_unlock(&gpus_lock);
	if (gpu_detach(gpu))
		return;
	pr_notice("GPU %u is removed while it is in use: waiting\n", gpu->index);
	wait_var_event(gpus, gpu_detach(gpu));
}
