// SPDX-License-Identifier: GPL-2.0
/*
 * The C half of kernel-lite; see helpers.h. It uses plain exports only: a module that imports a
 * GPL-only symbol cannot use the closed flavour of nvidia.ko.
 */
#include <linux/build_bug.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/slab.h>

#include "helpers.h"

/* Before 5.15, the function has the name that a macro has later. */
#ifndef printk
#define _printk printk
#endif

static_assert(sizeof(struct mutex) <= sizeof(struct kl_mutex));
static_assert(__alignof__(struct mutex) <= __alignof__(struct kl_mutex));
#ifdef CONFIG_LOCKDEP
static_assert(sizeof(struct lock_class_key) <=
	      sizeof(struct kl_lock_class_key));
#endif

void *kl_kmalloc(size_t size)
{
	return kmalloc(size, GFP_KERNEL);
}

void kl_kfree(const void *memory)
{
	kfree(memory);
}

void *kl_kvmalloc(size_t size)
{
	return kvmalloc(size, GFP_KERNEL);
}

void kl_kvfree(const void *memory)
{
	kvfree(memory);
}

void kl_mutex_init(struct kl_mutex *mutex, const char *name,
		   struct kl_lock_class_key *key)
{
	__mutex_init((struct mutex *)mutex, name, (struct lock_class_key *)key);
}

void kl_mutex_lock(struct kl_mutex *mutex)
{
	mutex_lock((struct mutex *)mutex);
}

int kl_mutex_trylock(struct kl_mutex *mutex)
{
	return mutex_trylock((struct mutex *)mutex);
}

void kl_mutex_unlock(struct kl_mutex *mutex)
{
	mutex_unlock((struct mutex *)mutex);
}

void kl_print(char level, const char *prefix, const char *text, size_t length)
{
	_printk(KERN_SOH "%c%s: %.*s", level, prefix, (int)length, text);
}
