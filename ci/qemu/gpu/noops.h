/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The exports of nvidia.ko that do nothing any more, for modules written
 * against NVIDIA's header, as in nv-p2p.c. In the module that is
 * called nvidia.ko: odd.c in the odd flavour, closed.c in the closed one.
 */

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	return 0;
}
NVLAB_EXPORT(nvidia_p2p_free_page_table);

int nvidia_p2p_free_dma_mapping(struct nvidia_p2p_dma_mapping *dma_mapping)
{
	return 0;
}
NVLAB_EXPORT(nvidia_p2p_free_dma_mapping);

int nvidia_p2p_init_mapping(u64 p2p_token, struct nvidia_p2p_params *params,
			    void (*destroy_callback)(void *data), void *data)
{
	return -ENOTSUPP;
}
NVLAB_EXPORT(nvidia_p2p_init_mapping);

int nvidia_p2p_destroy_mapping(u64 p2p_token)
{
	return -ENOTSUPP;
}
NVLAB_EXPORT(nvidia_p2p_destroy_mapping);
