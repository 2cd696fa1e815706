/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The C half of kernel-lite: functions for what is inline, a macro or variadic in the kernel. The
 * Rust side is kernel/backend.rs.
 */
#ifndef KL_HELPERS_H
#define KL_HELPERS_H

#include <linux/types.h>

/* With lock debugging, struct mutex is three times as large as without. */
#if defined(CONFIG_DEBUG_MUTEXES) || defined(CONFIG_DEBUG_LOCK_ALLOC)
#define KL_MUTEX_WORDS 32
#else
#define KL_MUTEX_WORDS 8
#endif

struct kl_mutex {
	u64 words[KL_MUTEX_WORDS];
};

struct kl_lock_class_key {
	u64 words[4];
};

void *kl_kmalloc(size_t size);
void kl_kfree(const void *memory);
void *kl_kvmalloc(size_t size);
void kl_kvfree(const void *memory);
void kl_mutex_init(struct kl_mutex *mutex, const char *name,
		   struct kl_lock_class_key *key);
void kl_mutex_lock(struct kl_mutex *mutex);
int kl_mutex_trylock(struct kl_mutex *mutex);
void kl_mutex_unlock(struct kl_mutex *mutex);
void kl_print(char level, const char *prefix, const char *text, size_t length);

#endif
