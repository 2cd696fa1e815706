// SPDX-License-Identifier: GPL-2.0

//! A driver of your own on the pin layer: GPU memory to and from QEMU's `edu` device.
//!
//! docs/own-driver.md explains it. The driver is these files:
//!
//! - this one: the module and the PCI driver
//! - [`memory`] one pinned range, and what the layer asks of a driver
//! - [`engine`] the device: its commands, its interrupt, and its end
//! - [`session`] the character device, and [`uapi`] its ioctls
//!
//! [`layer`] is nvidia-peermem's pin layer, as it is.

#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unreachable,
    clippy::unwrap_used
)]
// This driver leaves out parts of the layer.
#![allow(dead_code)]

mod engine;
mod memory;
mod session;
mod uapi;

#[path = "../../src/layer.rs"]
mod layer;

use engine::{Edu, Interrupt};
use kernel::device::Core;
use kernel::device_id::{IdArray, IdTable, RawDeviceId};
use kernel::dma::{Device, DmaMask};
use kernel::irq::{Flags, ThreadedRegistration};
use kernel::miscdevice::MiscDeviceRegistration;
use kernel::pci;
use kernel::prelude::*;
use kernel::sync::Arc;
use layer::*;
use session::Session;

module! {
    type: EduDma,
    name: "edu_dma",
    authors: ["The nvidia-peermem in Rust authors"],
    description: "GPU memory to and from QEMU's edu device",
    license: "GPL",
    params: {
        dma_bits: u32 {
            default: 28,
            description: "Number of address bits that the device can drive. It cannot be asked: give the number of bits of QEMU's dma_mask [default 28, QEMU's default]",
        },
    },
}

/// The module while it is loaded. The driver is dropped before the layer.
#[pin_data]
struct EduDma {
    #[pin]
    driver: kernel::driver::Registration<pci::Adapter<Driver>>,
    layer: Layer,
}

impl kernel::InPlaceModule for EduDma {
    fn init(module: &'static ThisModule) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let bits = *module_parameters::dma_bits.value();
            if !(1..=64).contains(&bits) {
                pr_err!(
                    "the module does not load with the invalid parameter dma_bits={}: use 28 (default), or as many bits as QEMU's dma_mask has, at most 64\n",
                    bits
                );
                return Err(EINVAL);
            }
            // SAFETY: Module init runs once, and the driver is not registered yet. It is dropped before
            // the layer.
            let layer = unsafe {
                engine::init();
                Layer::new()?
            };
            Ok(try_pin_init!(Self {
                driver <- kernel::driver::Registration::new(<Self as kernel::ModuleMetadata>::NAME, module),
                layer,
            }))
        })
    }
}

struct Driver;

/// QEMU's number, which is in no list that the kernel crate was made of.
// SAFETY: `Vendor` is a transparent wrapper of the number, and any number is one.
const QEMU: pci::Vendor = unsafe { core::mem::transmute::<u16, pci::Vendor>(0x1234) };

kernel::pci_device_table!(
    PCI_TABLE,
    MODULE_PCI_TABLE,
    <Driver as pci::Driver>::IdInfo,
    [(pci::DeviceId::from_id(QEMU, 0x11e8), ())]
);

/// The table without the crate's look-up by index, which can panic.
struct Ids;

const TABLE: &IdArray<pci::DeviceId, (), 1> = &PCI_TABLE;

impl IdTable<pci::DeviceId, ()> for Ids {
    fn as_ptr(&self) -> *const <pci::DeviceId as RawDeviceId>::RawType {
        TABLE.as_ptr()
    }

    fn id(&self, index: usize) -> &<pci::DeviceId as RawDeviceId>::RawType {
        TABLE.id(index)
    }

    fn info(&self, _index: usize) -> &() {
        &()
    }
}

/// The objects of a bound device. Files are dropped first, the interrupt last.
#[pin_data]
struct Bound {
    #[pin]
    node: MiscDeviceRegistration<Session>,
    edu: Arc<Edu>,
    #[pin]
    interrupt: ThreadedRegistration<Interrupt>,
}

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Bound;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &Ids;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Bound, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let bits = *module_parameters::dma_bits.value();
            // Check this before making the node, whose name would be taken.
            if engine::current().is_ok() {
                pr_err!("this driver serves one device, and has one: the second is left alone\n");
                return Err(EBUSY);
            }
            pdev.enable_device_mem()?;
            pdev.set_master();
            // SAFETY: Nothing is mapped for the device yet.
            unsafe { pdev.dma_set_mask_and_coherent(DmaMask::try_new(bits)?)? };
            let bar = pdev.iomap_region_sized(0, c"edu_dma")?;
            let edu = Edu::new(pdev, bar, bits)?;
            let vector = *pdev.alloc_irq_vectors(1, 1, pci::IrqTypes::all())?.start();
            let (known, handler) = (edu.clone(), Interrupt(edu.clone()));
            Ok(try_pin_init!(Bound {
                interrupt <- pdev.request_threaded_irq(vector, Flags::SHARED, c"edu-dma", Ok(handler)),
                node <- session::node(),
                edu,
                _: {
                    known.publish(session::own(&node)?)?;
                },
            }))
        })
    }

    fn unbind<'bound>(_pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Bound>) {
        this.edu.unbind();
    }
}
