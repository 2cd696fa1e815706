// SPDX-License-Identifier: GPL-2.0
fn main() {
    model::cli::main(model::world::Module { init: nvidia_peermem::init_module, exit: nvidia_peermem::cleanup_module })
}
