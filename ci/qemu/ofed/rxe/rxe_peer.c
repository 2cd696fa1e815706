// SPDX-License-Identifier: GPL-2.0
/*
 * Regions of rdma_rxe that are memory of another PCI device.
 *
 * What it models: a NIC like a ConnectX behind the peer-memory API
 * (docs/facts.md#calls, #invalidate, #nic-drivers). It knows DMA addresses
 * only and never looks at sg_page; it reads the sg list between dma_map and
 * the activation of the notifier and never again. It translates as mlx5's MTTs
 * do: the core chooses the page size, and a list that allows none is an error;
 * a table of one address per page is filled block by block, and each access
 * finds its address there. For a queue or a DevX umem the page size depends on
 * the DMA address alone. Its DMA device is the NIC's PCI function, and each
 * access goes through lab_pcie, hence through that function's IOMMU domain.
 * A NIC makes one key at a time, with the umem mapping lock held. The key works
 * before the notifier is active. An invalidation stops new
 * accesses, waits for those under way and leaves the MR dead: its users get
 * error completions. A fence takes time while the NIC still has access, and
 * may fail. The core does not learn that a fence in an invalidation failed. In
 * a deregistration it is the errno, and everything stays: umem, registration,
 * the client's module. Deregistering again is then possible, and fences again,
 * also an MR that is dead. So it is where the
 * key cannot be destroyed after the fence: the memory is unmapped by then, and
 * the umem is not released.
 *
 * Its faults are those of mlx5 in OFED 25.10, file and line beside each: a NIC
 * whose fences fail for good, or only seem to work; umems that are released
 * with their mapping lock held, without a stop, or never.
 *
 * And a NIC that imports dma-bufs as irdma, efa, bnxt_re and mana do, pinned
 * for as long as the MR lives (ib_umem_dmabuf_get_pinned()), for the same DMA
 * device and by the same tables. An exporter that wants to move such a buffer
 * cannot. mlx5 imports without pinning and would fault; the stand-in for
 * nvidia.ko never moves a buffer, so nobody can tell.
 *
 * On a core without the peer-memory API (../mainline) dma-bufs are all that is
 * left.
 *
 * /sys/kernel/debug/rxe_peer has its state and its faults: below.
 *
 * What it leaves out: mkeys and translation tables of a limited size, the mkey
 * cache, UMR work requests (small MRs are made by one, without the lock for new
 * keys), pages above 2 GiB, ATS, DMA that outlives a deregistration because the
 * PCIe fabric reorders it; drivers that never activate the notifier; whether the
 * key of a lost MR still works; that a NIC whose fences fail for good makes no new
 * key either; how a CQ, a QP or an SRQ begins in its page: there is no such object, an
 * MR without an invalidation stands for a DevX umem, which may begin anywhere. Of the
 * others mlx5 wants a start that is a multiple of 64 bytes, and of a 64th of the page,
 * for which it takes smaller pages, or refuses (mem.c,
 * __mlx5_umem_find_best_quantized_pgoff).
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/seq_file.h>
#include <linux/wait_bit.h>
#include <rdma/ib_peer_lab.h>
#include <rdma/ib_umem.h>
#include <rdma/iter.h>

#include "rxe.h"
#include "rxe_loc.h"
#include "lab_pcie.h"

static unsigned int peer_max_seg = SZ_2G;
module_param(peer_max_seg, uint, 0444);
MODULE_PARM_DESC(peer_max_seg, "DMA segment limit in bytes that the NIC announces (2 GiB), 0: the device's, 64 KiB for PCI");

static char *peer_dma_device = "pci";
module_param(peer_dma_device, charp, 0444);
MODULE_PARM_DESC(peer_dma_device, "DMA device given to peer clients: pci (the netdev's PCI ancestor), platform (which then does the accesses, too) or none (NULL)");

enum peer_state {
	PEER_LIVE,
	PEER_FENCE_FAILED,	/* asked to die, but live */
	PEER_KILLED,
};

static unsigned int peer_dma_bits;
module_param(peer_dma_bits, uint, 0444);
MODULE_PARM_DESC(peer_dma_bits, "bits of the DMA addresses that the NIC takes, 0: the device's own");

struct rxe_peer_mr {
	struct list_head list;
	struct rxe_mr *mr;
	struct device *initiator;
	bool can_fence;		/* the umem has a notifier */
	bool stopped;		/* by a deregistration that then failed */
	rwlock_t lock;		/* readers: who begins an access; writer: the fence */
	atomic_t accesses;	/* begun and not over */
	enum peer_state state;
	unsigned int sg_entries;
	unsigned int longest_entry;	/* bytes */
	u64 cuts;		/* OR of the addresses where neighbours meet */
	unsigned int page_shift;
	u64 start;		/* iova of the first byte */
	u64 into;		/* where in the first page that is */
	size_t nr_mtts;
	dma_addr_t mtt[] __counted_by(nr_mtts);
};

static LIST_HEAD(live_mrs);
static DEFINE_MUTEX(live_mrs_lock);

static struct {
	atomic64_t wr_bytes, rd_bytes, atomics;	/* by the NIC, through BAR addresses */
	/* Accesses that the fabric did not take; those that met a killed MR. */
	atomic64_t dma_errors, killed_accesses;
	atomic64_t mrs_registered, mrs_failed, mrs_killed;	/* killed: by invalidation */
	atomic64_t fences, fence_failures;
	atomic64_t sg_entries, bytes;		/* of all registrations so far */
	atomic64_t last_sg_entries, last_page_size, last_mtts;
} stats;
static atomic64_t mrs_live, mtt_bytes;

/* A fence takes this long, and the NIC still reaches the memory meanwhile. */
static u32 fence_us;
/*
 * The next n fences fail and their MRs stay live; a deregistration then fails
 * with -EIO and can be tried again.
 */
static atomic_t fence_fail;
/* 1: each fence fails with -EFAULT, as after one failed recovery (umr.c:369). */
static u32 fence_broken;
/*
 * 1: a fence returns at once and stops nothing, as where the NIC has reported an
 * internal error (umr.c:426).
 */
static u32 internal_error;
/*
 * The next n deregistrations fail with -EIO after the stop: the core has
 * unmapped, and the key is still there (mr.c:2234-2241).
 */
static atomic_t destroy_fail;
/*
 * The next n deregistrations do not stop the notifier, as those of an mkey of
 * the cache that ibv_rereg_mr() has moved from host to GPU memory.
 */
static atomic_t skip_stop;
/* The next n registrations fail with -ENOMEM: mapped, the notifier not armed. */
static atomic_t fail_mkey;
/*
 * The next n registrations fail with -EFAULT, and so does the fence that undoes
 * them. Nobody looks at that: the umem stays, mapped and locked (mr.c:1576).
 */
static atomic_t lose_mr;
/*
 * The next n re-registrations from host to GPU memory fail with -EFAULT. The
 * umem is released with its mapping lock held (mr.c:2018-2024).
 */
static atomic_t rereg_fail;
/* The task whose re-registration is to fail in this way. */
static struct task_struct *rereg_fails_for;
/* The next n registrations ask for no invalidation, as a CQ or a DevX umem does. */
static atomic_t no_invalidation;

/*
 * Writes by the NIC to GPU memory are acknowledged and lost: 1 to memory of
 * peer clients, 2 to dma-bufs, 3 to both. Users met it (Mooncake#3281).
 */
static u32 lose_writes;
/* Each access to GPU memory takes so much longer, as users met it (nixl#1754). */
static u32 slow_us;

static bool take_one(atomic_t *switched)
{
	return atomic_dec_if_positive(switched) >= 0;
}

struct ib_umem *rxe_peer_umem_get(struct rxe_dev *rxe, struct rxe_mr *mr,
				  u64 start, u64 length, int access)
{
	struct ib_umem *umem;

	mr->peer_can_fence = atomic_read(&no_invalidation) <= 0;
	umem = ib_umem_get_peer(&rxe->ib_dev, start, length, access,
				mr->peer_can_fence ? IB_PEER_MEM_INVAL_SUPP : 0);
	if (!IS_ERR(umem) && rxe_peer_is_umem(umem) && !mr->peer_can_fence)
		take_one(&no_invalidation);
	return umem;
}

bool rxe_peer_is_umem(const struct ib_umem *umem)
{
	return ib_peer_lab_is_peer(umem);
}

/* Returns whose list it is, for messages. */
static const char *owner(struct ib_umem *umem)
{
	return umem->is_dmabuf ? "of a dma-buf" : ib_peer_lab_client_name(umem);
}

/* What mlx5 asks for: any power of two from 4 KiB to 2 GiB. */
#define PAGE_SIZES	GENMASK(31, PAGE_SHIFT)

/*
 * Returns the page size that the NIC chooses. An MR begins at its iova. A DevX umem has none; it
 * begins anywhere in a page of the NIC's adapter (devx.c:2277). How a queue chooses its pages is
 * left out, see above.
 */
static unsigned long best_page_size(struct ib_umem *umem, u64 iova, bool queue)
{
	if (queue)
		return ib_umem_find_best_pgoff(umem, PAGE_SIZES, PAGE_SIZE - 1);
	return ib_umem_find_best_pgsz(umem, PAGE_SIZES, iova);
}

/*
 * Reads the sg list into a table of addresses. Beside this, only best_page_size() looks at the
 * list.
 */
static struct rxe_peer_mr *read_sgl(struct ib_umem *umem, u64 iova, bool queue)
{
	unsigned long size = best_page_size(umem, iova, queue);
	struct sg_table *sgt = &umem->sgt_append.sgt;
	struct ib_block_iter block;
	struct rxe_peer_mr *peer;
	struct scatterlist *sg;
	dma_addr_t end = 0;
	size_t count, n = 0;
	int i;

	if (!size) {
		pr_err("rxe_peer: client %s: no page size fits the sg list of %u entries\n",
		       owner(umem), sgt->nents);
		return ERR_PTR(-EINVAL);
	}
	count = ib_umem_num_dma_blocks(umem, size);
	peer = kvzalloc_flex(*peer, mtt, count);
	if (!peer)
		return ERR_PTR(-ENOMEM);
	peer->nr_mtts = count;
	peer->page_shift = ilog2(size);
	peer->start = iova;
	peer->into = umem->iova & (size - 1);
	peer->sg_entries = sgt->nents;
	for_each_sgtable_dma_sg(sgt, sg, i) {
		if (i && sg_dma_address(sg) == end)
			peer->cuts |= end;
		end = sg_dma_address(sg) + sg_dma_len(sg);
		peer->longest_entry = max(peer->longest_entry, sg_dma_len(sg));
	}
	rdma_umem_for_each_dma_block(umem, &block, size)
		peer->mtt[n++] = rdma_block_iter_dma_address(&block);
	if (n < count) {
		pr_err("rxe_peer: client %s: the sg list ends after %zu pages of %lu, the umem of %zu bytes needs %zu\n",
		       owner(umem), n, size, umem->length, count);
		kvfree(peer);
		return ERR_PTR(-EINVAL);
	}
	return peer;
}

/* Makes a key. mlx5 makes one at a time, where it cannot use a UMR (mr.c:1552). */
static struct rxe_peer_mr *create_mkey(struct rxe_dev *rxe,
				       struct ib_umem *umem, u64 iova,
				       bool queue)
{
	struct rxe_peer_mr *peer;

	guard(mutex)(&rxe->peer_mkey_lock);
	peer = read_sgl(umem, iova, queue);
	if (IS_ERR(peer))
		return peer;
	if (rxe_peer_is_umem(umem))
		ib_peer_lab_hold_mkey(umem);
	if (!take_one(&fail_mkey))
		return peer;
	kvfree(peer);
	return ERR_PTR(-ENOMEM);
}

int rxe_peer_mr_init(struct rxe_dev *rxe, struct rxe_mr *mr,
		     struct ib_umem *umem)
{
	bool queue = rxe_peer_is_umem(umem) && !mr->peer_can_fence;
	struct rxe_peer_mr *peer;
	int err;

	/* Refused as for ordinary host memory: no GPU's memory persists. */
	err = -EINVAL;
	if (mr->access & IB_ACCESS_FLUSH_PERSISTENT)
		goto err_umem;
	peer = create_mkey(rxe, umem, mr->ibmr.iova, queue);
	if (IS_ERR(peer)) {
		err = PTR_ERR(peer);
		goto err_umem;
	}
	err = -ENODEV;
	if (!rxe->peer_initiator) {
		rxe_err_mr(mr, "no PCI device behind the netdev: peer memory cannot be reached\n");
		goto err_peer;
	}
	err = -EFAULT;
	if (take_one(&lose_mr))
		goto err_lost;
	if (cmpxchg(&rereg_fails_for, current, NULL) == current)
		goto err_unstopped;

	peer->mr = mr;
	peer->initiator = get_device(rxe->peer_initiator);
	peer->can_fence = mr->peer_can_fence;
	rwlock_init(&peer->lock);
	mr->umem = umem;
	mr->peer = peer;
	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->state = RXE_MR_STATE_VALID;

	mutex_lock(&live_mrs_lock);
	list_add_tail(&peer->list, &live_mrs);
	mutex_unlock(&live_mrs_lock);
	atomic64_inc(&mrs_live);
	atomic64_add(struct_size(peer, mtt, peer->nr_mtts), &mtt_bytes);
	atomic64_inc(&stats.mrs_registered);
	atomic64_add(peer->sg_entries, &stats.sg_entries);
	atomic64_add(umem->length, &stats.bytes);
	atomic64_set(&stats.last_sg_entries, peer->sg_entries);
	atomic64_set(&stats.last_page_size, BIT_ULL(peer->page_shift));
	atomic64_set(&stats.last_mtts, peer->nr_mtts);
	return 0;

err_peer:
	kvfree(peer);
err_umem:
	atomic64_inc(&stats.mrs_failed);
	if (mr->peer_can_fence)
		ib_umem_stop_invalidation_notifier(umem);
	ib_umem_release(umem);
	return err;

err_unstopped:
	ib_umem_release(umem);
err_lost:
	atomic64_inc(&stats.mrs_failed);
	kvfree(peer);
	return err;
}

struct ib_mr *rxe_peer_reg_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				  u64 iova, int fd, int access,
#if KERNEL_VERSION(6, 17, 0) <= LINUX_VERSION_CODE
				  struct ib_dmah *dmah,
#endif
				  struct uverbs_attr_bundle *attrs)
{
	struct rxe_dev *rxe = to_rdev(ibpd->device);
	struct ib_umem_dmabuf *umem;
	struct rxe_mr *mr;
	int err;

	if (access & ~RXE_ACCESS_SUPPORTED_MR || !rxe->peer_initiator)
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc_obj(*mr);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = rxe_add_to_pool(&rxe->mr_pool, mr);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_get(to_rpd(ibpd));
	mr->ibmr.pd = ibpd;
	mr->ibmr.device = ibpd->device;
	mr->ibmr.iova = iova;
	mr->ibmr.length = length;
	rxe_mr_init(access, mr);
	umem = ib_umem_dmabuf_get_pinned_with_dma_device(&rxe->ib_dev,
							 rxe->peer_initiator,
							 offset, length, fd,
							 access);
	err = IS_ERR(umem) ? PTR_ERR(umem) :
			     rxe_peer_mr_init(rxe, mr, &umem->umem);
	if (err) {
		rxe_cleanup(mr);
		kfree(mr);
		return ERR_PTR(err);
	}
	rxe_finalize(mr);
	return &mr->ibmr;
}

/*
 * Stops the NIC's accesses. When this returns 0 without an internal error, no access runs and none
 * will start. Until fence_us are over, the NIC goes on as before.
 */
static int fence(struct rxe_peer_mr *peer)
{
	int err = 0;

	atomic64_inc(&stats.fences);
	if (internal_error)
		return 0;
	if (fence_us)
		fsleep(fence_us);
	if (fence_broken)
		err = -EFAULT;
	else if (take_one(&fence_fail))
		err = -EIO;
	if (err) {
		atomic64_inc(&stats.fence_failures);
		write_lock_bh(&peer->lock);
		if (peer->state == PEER_LIVE)
			peer->state = PEER_FENCE_FAILED;
		write_unlock_bh(&peer->lock);
		return err;
	}
	write_lock_bh(&peer->lock);
	peer->state = PEER_KILLED;
	write_unlock_bh(&peer->lock);
	wait_var_event(&peer->accesses, !atomic_read(&peer->accesses));
	return 0;
}

static void invalidate(struct ib_umem *umem, void *priv)
{
	struct rxe_mr *mr = priv;

	if (!fence(mr->peer))
		atomic64_inc(&stats.mrs_killed);
}

void rxe_peer_mr_activate(struct rxe_mr *mr)
{
	if (mr->peer && mr->peer->can_fence)
		ib_umem_activate_invalidation_notifier(mr->umem, invalidate,
						       mr);
}

int rxe_peer_mr_stop(struct rxe_mr *mr)
{
	struct rxe_peer_mr *peer = mr->peer;
	int err;

	if (!peer || !peer->can_fence)
		return 0;
	/* A second fence of a killed MR takes as long, and may fail. */
	err = fence(peer);
	if (err)
		return err;
	if (!take_one(&skip_stop)) {
		if (!peer->stopped)
			ib_umem_stop_invalidation_notifier(mr->umem);
		peer->stopped = true;
	}
	return take_one(&destroy_fail) ? -EIO : 0;
}

void rxe_peer_mr_unlist(struct rxe_mr *mr)
{
	if (!mr->peer)
		return;
	mutex_lock(&live_mrs_lock);
	list_del(&mr->peer->list);
	mutex_unlock(&live_mrs_lock);
}

void rxe_peer_mr_free(struct rxe_mr *mr)
{
	struct rxe_peer_mr *peer = mr->peer;

	if (!peer)
		return;
	atomic64_dec(&mrs_live);
	atomic64_sub(struct_size(peer, mtt, peer->nr_mtts), &mtt_bytes);
	put_device(peer->initiator);
	mr->peer = NULL;
	kvfree(peer);
}

/*
 * Returns whether a re-registration makes a new object. As with mlx5, new memory and every change
 * of a peer MR do. An MR of a dma-buf keeps its object, because it has no address from which a new
 * one could be made.
 */
bool rxe_peer_rereg_recreates(struct rxe_mr *mr, int flags)
{
	bool fails = !mr->peer && (flags & IB_MR_REREG_TRANS) &&
		     take_one(&rereg_fail);

	WRITE_ONCE(rereg_fails_for, fails ? current : NULL);
	return mr->umem && ((mr->peer && !mr->umem->is_dmabuf) ||
			    (flags & IB_MR_REREG_TRANS));
}

/* Returns the DMA address of @iova, and in *@left how many bytes follow in its page. */
static dma_addr_t dma_address(struct rxe_peer_mr *peer, u64 iova, u64 *left)
{
	u64 at = iova - peer->start + peer->into;
	u64 size = BIT_ULL(peer->page_shift);
	u64 into = at & (size - 1);

	*left = size - into;
	return peer->mtt[at >> peer->page_shift] + into;
}

/*
 * Begins an access, for which a fence waits from then on. Finds the DMA address of @iova, and how
 * many bytes of @length follow in one page. Returns 0 or -EFAULT.
 */
static int access_begin(struct rxe_peer_mr *peer, u64 iova, size_t length,
			dma_addr_t *addr, size_t *piece)
{
	u64 left;

	read_lock_bh(&peer->lock);
	if (peer->state == PEER_KILLED) {
		read_unlock_bh(&peer->lock);
		atomic64_inc(&stats.killed_accesses);
		return -EFAULT;
	}
	atomic_inc(&peer->accesses);
	read_unlock_bh(&peer->lock);
	*addr = dma_address(peer, iova, &left);
	*piece = min_t(u64, length, left);
	return 0;
}

static int access_end(struct rxe_peer_mr *peer, int err)
{
	if (atomic_dec_and_test(&peer->accesses))
		wake_up_var(&peer->accesses);
	if (!err)
		return 0;
	atomic64_inc(&stats.dma_errors);
	return -EFAULT;
}

int rxe_peer_copy(struct rxe_mr *mr, u64 iova, void *addr, unsigned int length,
		  enum rxe_mr_copy_dir dir)
{
	struct rxe_peer_mr *peer = mr->peer;
	dma_addr_t dma_addr;
	size_t piece;
	int err;

	if (slow_us)
		udelay(slow_us);
	if (dir == RXE_TO_MR_OBJ &&
	    lose_writes & (mr->umem->is_dmabuf ? 2 : 1))
		return 0;
	for (; length; length -= piece, iova += piece, addr += piece) {
		err = access_begin(peer, iova, length, &dma_addr, &piece);
		if (err)
			return err;
		if (dir == RXE_TO_MR_OBJ) {
			/* Begun, but its bytes are not there yet. */
			if (rxe_peer_is_umem(mr->umem))
				ib_peer_lab_hold_write(mr->umem);
			err = lab_pcie_write(peer->initiator, dma_addr, addr,
					     piece);
		} else {
			err = lab_pcie_read(peer->initiator, dma_addr, addr,
					    piece);
		}
		err = access_end(peer, err);
		if (err)
			return err;
		atomic64_add(piece, dir == RXE_TO_MR_OBJ ? &stats.wr_bytes :
							   &stats.rd_bytes);
	}
	return 0;
}

enum resp_states rxe_peer_atomic_op(struct rxe_mr *mr, u64 iova, int opcode,
				    u64 compare, u64 swap_add, u64 *orig_val)
{
	struct rxe_peer_mr *peer = mr->peer;
	dma_addr_t dma_addr;
	size_t piece;
	int err;

	if (mr_check_range(mr, iova, sizeof(u64)))
		return RESPST_ERR_RKEY_VIOLATION;
	if (iova & 7)
		return RESPST_ERR_MISALIGNED_ATOMIC;
	if (access_begin(peer, iova, sizeof(u64), &dma_addr, &piece))
		return RESPST_ERR_RKEY_VIOLATION;
	err = lab_pcie_atomic(peer->initiator, dma_addr,
			      opcode == IB_OPCODE_RC_COMPARE_SWAP ?
			      LAB_PCIE_COMPARE_SWAP : LAB_PCIE_FETCH_ADD,
			      swap_add, compare, orig_val);
	if (access_end(peer, err))
		return RESPST_ERR_RKEY_VIOLATION;
	atomic64_inc(&stats.atomics);
	return RESPST_NONE;
}

enum resp_states rxe_peer_atomic_write(struct rxe_mr *mr, u64 iova, u64 value)
{
	if (mr_check_range(mr, iova, sizeof(value)))
		return RESPST_ERR_RKEY_VIOLATION;
	if (iova & 7)
		return RESPST_ERR_MISALIGNED_ATOMIC;
	if (rxe_peer_copy(mr, iova, &value, sizeof(value), RXE_TO_MR_OBJ))
		return RESPST_ERR_RKEY_VIOLATION;
	atomic64_inc(&stats.atomics);
	return RESPST_NONE;
}

/* Makes a NIC that is no PCI device, as there are on Arm machines. */
static struct device *add_platform_device(void)
{
	struct platform_device *pdev;

	pdev = platform_device_register_simple("rxe_peer", PLATFORM_DEVID_AUTO,
					       NULL, 0);
	if (IS_ERR(pdev))
		return ERR_CAST(pdev);
	dma_coerce_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	return &pdev->dev;
}

int rxe_peer_add_dev(struct rxe_dev *rxe, struct net_device *ndev)
{
	struct device *dev = ndev->dev.parent;
	int err;

	while (dev && !dev_is_pci(dev))
		dev = dev->parent;
	if (!strcmp(peer_dma_device, "platform")) {
		dev = add_platform_device();
		if (IS_ERR(dev))
			return PTR_ERR(dev);
	} else if (strcmp(peer_dma_device, "pci") &&
		   strcmp(peer_dma_device, "none")) {
		pr_err("rxe_peer: peer_dma_device=%s: must be pci, platform or none\n",
		       peer_dma_device);
		return -EINVAL;
	}
	mutex_init(&rxe->peer_mkey_lock);
	rxe->peer_initiator = get_device(dev);
	if (dev && peer_max_seg) {
		rxe->peer_device_max_seg = dma_get_max_seg_size(dev);
		dma_set_max_seg_size(dev, peer_max_seg);
	}
	if (dev && peer_dma_bits) {
		rxe->peer_device_mask = dma_get_mask(dev);
		err = dma_set_mask(dev, DMA_BIT_MASK(peer_dma_bits));
		if (err)
			return err;
	}
	if (!strcmp(peer_dma_device, "none"))
		return 0;
	return ib_peer_lab_set_dma_device(&rxe->ib_dev, dev);
}

/* Undoes rxe_peer_add_dev(), also after one that failed or was never called. */
void rxe_peer_remove_dev(struct rxe_dev *rxe)
{
	struct device *dev = rxe->peer_initiator;

	ib_peer_lab_set_dma_device(&rxe->ib_dev, NULL);
	if (!dev)
		return;
	if (rxe->peer_device_max_seg)
		dma_set_max_seg_size(dev, rxe->peer_device_max_seg);
	if (rxe->peer_device_mask)
		dma_set_mask(dev, rxe->peer_device_mask);
	if (dev_is_platform(dev))
		platform_device_unregister(to_platform_device(dev));
	put_device(dev);
}

/*
 * Does nothing, but lets the device go while a process has it open: because there is this method,
 * uverbs destroys the objects itself. There is no hardware that user space could still reach; its
 * queues are memory, which lives until it is unmapped.
 */
void rxe_peer_disassociate_ucontext(struct ib_ucontext *ibcontext)
{
}

static int stats_show(struct seq_file *s, void *unused)
{
#define LINE(field) \
	seq_printf(s, #field " %lld\n", atomic64_read(&stats.field))
	LINE(wr_bytes);
	LINE(rd_bytes);
	LINE(atomics);
	LINE(dma_errors);
	LINE(killed_accesses);
	LINE(mrs_registered);
	LINE(mrs_failed);
	seq_printf(s, "mrs_live %lld\n", atomic64_read(&mrs_live));
	LINE(mrs_killed);
	LINE(fences);
	LINE(fence_failures);
	LINE(sg_entries);
	LINE(bytes);
	LINE(last_sg_entries);
	LINE(last_page_size);
	LINE(last_mtts);
	seq_printf(s, "mtt_bytes %lld\n", atomic64_read(&mtt_bytes));
#undef LINE
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

/*
 * Lists each live MR of peer memory or a dma-buf. For a dma-buf, addr is the offset. cut_align is
 * the largest power of two that divides every DMA address at which two sg entries meet, 0 where
 * none do.
 */
static int mrs_show(struct seq_file *s, void *unused)
{
	static const char * const names[] = {
		[PEER_LIVE] = "live",
		[PEER_FENCE_FAILED] = "fence_failed",
		[PEER_KILLED] = "killed",
	};
	struct rxe_peer_mr *peer;

	mutex_lock(&live_mrs_lock);
	list_for_each_entry(peer, &live_mrs, list)
		seq_printf(s, "lkey=0x%x rkey=0x%x addr=0x%lx length=%zu sg_entries=%u longest_entry=%u cut_align=%llu page_size=%llu mtts=%zu dma_buf=%u state=%s initiator=%s\n",
			   peer->mr->lkey, peer->mr->rkey,
			   peer->mr->umem->address, peer->mr->umem->length,
			   peer->sg_entries, peer->longest_entry,
			   peer->cuts & -peer->cuts,
			   BIT_ULL(peer->page_shift), peer->nr_mtts,
			   peer->mr->umem->is_dmabuf, names[peer->state],
			   dev_name(peer->initiator));
	mutex_unlock(&live_mrs_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mrs);

/*
 * Lists for each 64 KiB of each MR what the NIC puts on the bus, and what comes out (0: a fault).
 */
static int translations_show(struct seq_file *s, void *unused)
{
	struct iommu_domain *domain;
	struct rxe_peer_mr *peer;
	u64 at, start, left;
	phys_addr_t phys;
	dma_addr_t dma;

	mutex_lock(&live_mrs_lock);
	list_for_each_entry(peer, &live_mrs, list) {
		domain = iommu_get_domain_for_dev(peer->initiator);
		start = ALIGN_DOWN(peer->mr->ibmr.iova, PAGE_SIZE);
		for (at = 0; start + at < peer->mr->ibmr.iova +
					  peer->mr->ibmr.length; at += SZ_64K) {
			dma = dma_address(peer, start + at, &left);
			phys = domain ? iommu_iova_to_phys(domain, dma) : dma;
			seq_printf(s, "lkey=0x%x at=%llu dma=%pad phys=%pa\n",
				   peer->mr->lkey, at, &dma, &phys);
		}
	}
	mutex_unlock(&live_mrs_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(translations);

/* Zeroes the counters of stats, not mrs_live and mtt_bytes. */
static ssize_t reset_write(struct file *file, const char __user *buf,
			   size_t count, loff_t *pos)
{
	memset(&stats, 0, sizeof(stats));
	return count;
}

static const struct file_operations reset_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = reset_write,
};

/*
 * Reads the first bytes of a umem by its pages, as mlx5 reads the work queue of a QP or SRQ when it
 * handles a page fault. The file takes an lkey; the write fails with the errno of
 * ib_umem_copy_from().
 */
static ssize_t copy_from_write(struct file *file, const char __user *buf,
			       size_t count, loff_t *pos)
{
	struct rxe_peer_mr *peer;
	u8 bytes[64];
	u32 lkey;
	int ret;

	ret = kstrtou32_from_user(buf, count, 0, &lkey);
	if (ret)
		return ret;
	ret = -ENOENT;
	mutex_lock(&live_mrs_lock);
	list_for_each_entry(peer, &live_mrs, list) {
		if (peer->mr->lkey == lkey) {
			ret = ib_umem_copy_from(bytes, peer->mr->umem, 0,
						sizeof(bytes));
			break;
		}
	}
	mutex_unlock(&live_mrs_lock);
	return ret ?: count;
}

static const struct file_operations copy_from_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = copy_from_write,
};

static struct dentry *debugfs_dir;

void rxe_peer_module_init(void)
{
	debugfs_dir = debugfs_create_dir("rxe_peer", NULL);
	debugfs_create_file("stats", 0400, debugfs_dir, NULL, &stats_fops);
	debugfs_create_file("mrs", 0400, debugfs_dir, NULL, &mrs_fops);
	debugfs_create_file("translations", 0400, debugfs_dir, NULL,
			    &translations_fops);
	debugfs_create_file("reset", 0200, debugfs_dir, NULL, &reset_fops);
	debugfs_create_file("copy_from", 0200, debugfs_dir, NULL,
			    &copy_from_fops);
	debugfs_create_u32("fence_us", 0600, debugfs_dir, &fence_us);
	debugfs_create_u32("fence_broken", 0600, debugfs_dir, &fence_broken);
	debugfs_create_u32("internal_error", 0600, debugfs_dir,
			   &internal_error);
	debugfs_create_u32("lose_writes", 0600, debugfs_dir, &lose_writes);
	debugfs_create_u32("slow_us", 0600, debugfs_dir, &slow_us);
	debugfs_create_atomic_t("fence_fail", 0600, debugfs_dir, &fence_fail);
	debugfs_create_atomic_t("destroy_fail", 0600, debugfs_dir,
				&destroy_fail);
	debugfs_create_atomic_t("skip_stop", 0600, debugfs_dir, &skip_stop);
	debugfs_create_atomic_t("fail_mkey", 0600, debugfs_dir, &fail_mkey);
	debugfs_create_atomic_t("lose_mr", 0600, debugfs_dir, &lose_mr);
	debugfs_create_atomic_t("rereg_fail", 0600, debugfs_dir, &rereg_fail);
	debugfs_create_atomic_t("no_invalidation", 0600, debugfs_dir,
				&no_invalidation);
}

void rxe_peer_module_exit(void)
{
	debugfs_remove(debugfs_dir);
}
