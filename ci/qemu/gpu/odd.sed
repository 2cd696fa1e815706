# SPDX-License-Identifier: GPL-2.0
# What the odd flavour's copies of NVIDIA's nv-p2p.h and nv-dmabuf.c get, which are as the package has
# them otherwise: the word that tables of version 2 end with, behind it what odd.c keeps of a table, and
# the function by which drivers from 570 on refuse a device that attaches.
s/^    uint8_t \*gpu_uuid;/&\n    uint32_t flags;\n    struct nvlab_real { struct nvidia_p2p_page **pages; void *made; uint32_t entries; bool coherent; } real;/
s/^static const struct dma_buf_ops nv_dma_buf_ops = {/int nvlab_odd_attach(struct dma_buf *buf, struct dma_buf_attachment *attach);\n&\n    .attach = nvlab_odd_attach,/
