// SPDX-License-Identifier: GPL-2.0

//! `cuGetProcAddress`: finds the functions of this library by name and version.

use std::ffi::{c_char, c_int, c_void, CStr};

use crate::code::Code;
use crate::*;

/// A name, the first version of CUDA in which it means this function, and the function.
type Entry = (&'static str, c_int, *const c_void);

/// SYMBOL_NOT_FOUND and VERSION_NOT_SUFFICIENT of `CUdriverProcAddressQueryResult`.
const NO_SYMBOL: c_int = 1;
const OLD_VERSION: c_int = 2;

macro_rules! entries {
    ($($name:literal $version:literal $function:ident;)*) => {
        [$(($name, $version, $function as *const c_void)),*]
    };
}

fn entries() -> impl Iterator<Item = Entry> {
    entries! {
        "cuInit" 2000 cuInit;
        "cuDriverGetVersion" 2020 cuDriverGetVersion;
        "cuDeviceGetCount" 2000 cuDeviceGetCount;
        "cuDeviceGet" 2000 cuDeviceGet;
        "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute;
        "cuDeviceGetName" 2000 cuDeviceGetName;
        "cuDeviceGetPCIBusId" 4010 cuDeviceGetPCIBusId;
        "cuDeviceGetByPCIBusId" 4010 cuDeviceGetByPCIBusId;
        "cuDeviceGetUuid" 9020 cuDeviceGetUuid;
        "cuDeviceGetUuid" 11040 cuDeviceGetUuid_v2;
        "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2;
        "cuCtxCreate" 3020 cuCtxCreate_v2;
        "cuCtxCreate" 12050 cuCtxCreate_v4;
        "cuCtxDestroy" 4000 cuCtxDestroy_v2;
        "cuCtxSetCurrent" 4000 cuCtxSetCurrent;
        "cuCtxGetCurrent" 4000 cuCtxGetCurrent;
        "cuCtxGetDevice" 2000 cuCtxGetDevice;
        "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2;
        "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2;
        "cuCtxSynchronize" 2000 cuCtxSynchronize;
        "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain;
        "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2;
        "cuDevicePrimaryCtxReset" 11000 cuDevicePrimaryCtxReset_v2;
        "cuDevicePrimaryCtxGetState" 7000 cuDevicePrimaryCtxGetState;
        "cuDeviceCanAccessPeer" 4000 cuDeviceCanAccessPeer;
        "cuCtxGetId" 12000 cuCtxGetId;
        "cuCtxGetFlags" 7000 cuCtxGetFlags;
        "cuCtxSetFlags" 12010 cuCtxSetFlags;
        "cuStreamCreate" 2000 cuStreamCreate;
        "cuStreamCreateWithPriority" 5050 cuStreamCreateWithPriority;
        "cuStreamDestroy" 4000 cuStreamDestroy_v2;
        "cuStreamQuery" 2000 cuStreamQuery;
        "cuStreamSynchronize" 2000 cuStreamSynchronize;
        "cuStreamWaitEvent" 3020 cuStreamWaitEvent;
        "cuStreamAddCallback" 5000 cuStreamAddCallback;
        "cuLaunchHostFunc" 10000 cuLaunchHostFunc;
        "cuEventCreate" 2000 cuEventCreate;
        "cuEventDestroy" 4000 cuEventDestroy_v2;
        "cuEventRecord" 2000 cuEventRecord;
        "cuEventQuery" 2000 cuEventQuery;
        "cuEventSynchronize" 2000 cuEventSynchronize;
        "cuMemcpyAsync" 4000 cuMemcpyAsync;
        "cuMemcpyHtoDAsync" 3020 cuMemcpyHtoDAsync_v2;
        "cuMemcpyDtoHAsync" 3020 cuMemcpyDtoHAsync_v2;
        "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2;
        "cuMemsetD8Async" 3020 cuMemsetD8Async;
        "cuMemHostRegister" 6050 cuMemHostRegister_v2;
        "cuMemHostUnregister" 4000 cuMemHostUnregister;
        "cuMemHostGetDevicePointer" 3020 cuMemHostGetDevicePointer_v2;
        "cuMemRangeGetAttribute" 8000 cuMemRangeGetAttribute;
        "cuMemRetainAllocationHandle" 11000 cuMemRetainAllocationHandle;
        "cuMemGetAllocationPropertiesFromHandle" 10020 cuMemGetAllocationPropertiesFromHandle;
        "cuMemExportToShareableHandle" 10020 cuMemExportToShareableHandle;
        "cuMemImportFromShareableHandle" 10020 cuMemImportFromShareableHandle;
        "cuIpcGetMemHandle" 4010 cuIpcGetMemHandle;
        "cuIpcOpenMemHandle" 11000 cuIpcOpenMemHandle_v2;
        "cuIpcCloseMemHandle" 4010 cuIpcCloseMemHandle;
        "cuMemPoolExportPointer" 11020 cuMemPoolExportPointer;
        "cuMemPoolExportToShareableHandle" 11020 cuMemPoolExportToShareableHandle;
        "cuMemPoolImportFromShareableHandle" 11020 cuMemPoolImportFromShareableHandle;
        "cuMemPoolImportPointer" 11020 cuMemPoolImportPointer;
        "cuMemPoolSetAccess" 11020 cuMemPoolSetAccess;
        "cuMemPoolDestroy" 11020 cuMemPoolDestroy;
        "cuMemGetInfo" 3020 cuMemGetInfo_v2;
        "cuMemAlloc" 3020 cuMemAlloc_v2;
        "cuMemAllocManaged" 6000 cuMemAllocManaged;
        "cuMemFree" 3020 cuMemFree_v2;
        "cuMemAllocHost" 3020 cuMemAllocHost_v2;
        "cuMemHostAlloc" 2020 cuMemHostAlloc;
        "cuMemFreeHost" 2000 cuMemFreeHost;
        "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2;
        "cuMemcpy" 4000 cuMemcpy;
        "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2;
        "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2;
        "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2;
        "cuMemsetD8" 3020 cuMemsetD8_v2;
        "cuMemsetD16" 3020 cuMemsetD16_v2;
        "cuMemsetD32" 3020 cuMemsetD32_v2;
        "cuPointerGetAttribute" 4000 cuPointerGetAttribute;
        "cuPointerGetAttributes" 7000 cuPointerGetAttributes;
        "cuPointerSetAttribute" 6000 cuPointerSetAttribute;
        "cuMemGetAllocationGranularity" 10020 cuMemGetAllocationGranularity;
        "cuMemAddressReserve" 10020 cuMemAddressReserve;
        "cuMemAddressFree" 10020 cuMemAddressFree;
        "cuMemCreate" 10020 cuMemCreate;
        "cuMemRelease" 10020 cuMemRelease;
        "cuMemMap" 10020 cuMemMap;
        "cuMemSetAccess" 10020 cuMemSetAccess;
        "cuMemUnmap" 10020 cuMemUnmap;
        "cuMemGetHandleForAddressRange" 11070 cuMemGetHandleForAddressRange;
        "cuFlushGPUDirectRDMAWrites" 11030 cuFlushGPUDirectRDMAWrites;
        "cuGetErrorName" 6000 cuGetErrorName;
        "cuGetErrorString" 6000 cuGetErrorString;
        "cuGetProcAddress" 11030 cuGetProcAddress;
        "cuGetProcAddress" 12000 cuGetProcAddress_v2;
    }
    .into_iter()
}

/// Returns the newest function that a version knows by this name, or the code and the reason.
fn lookup(name: &str, version: c_int) -> Result<*const c_void, (Code, c_int)> {
    entries().filter(|e| e.0 == name && e.1 <= version).max_by_key(|e| e.1).map(|e| e.2).ok_or_else(|| {
        let known = entries().any(|e| e.0 == name);
        (Code::NotFound, if known { OLD_VERSION } else { NO_SYMBOL })
    })
}

/// Finds a function, or returns the code and the reason.
///
/// # Safety
///
/// `name` is NULL or a C string, `to` NULL or good for writing a pointer.
pub unsafe fn proc_address(name: *const c_char, to: *mut *const c_void, version: c_int) -> Result<(), (Code, c_int)> {
    let bad = (Code::InvalidValue, NO_SYMBOL);
    if name.is_null() {
        return Err(bad);
    }
    // SAFETY: not NULL, so a C string, says the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| bad)?;
    let found = lookup(name, version);
    // SAFETY: the caller's promise.
    unsafe { put(to, found.unwrap_or(std::ptr::null())) }.map_err(|_| bad)?;
    found.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_what_its_version_knew() {
        let v2 = cuCtxCreate_v2 as *const c_void;
        let v4 = cuCtxCreate_v4 as *const c_void;
        assert_eq!(lookup("cuCtxCreate", 3020), Ok(v2));
        assert_eq!(lookup("cuCtxCreate", 12040), Ok(v2));
        assert_eq!(lookup("cuCtxCreate", 13000), Ok(v4));
        assert_eq!(lookup("cuCtxCreate", 3010), Err((Code::NotFound, OLD_VERSION)));
        assert_eq!(lookup("cuLaunch", 13000), Err((Code::NotFound, NO_SYMBOL)));
    }

    /// The list has every function that perftest 25.07 and later asks for, with the version that it
    /// names.
    #[test]
    fn perftest_finds_all_it_asks_for() {
        for (name, version) in [
            ("cuInit", 2000),
            ("cuDeviceGetCount", 2000),
            ("cuDeviceGet", 2000),
            ("cuDeviceGetAttribute", 2000),
            ("cuDeviceGetName", 2000),
            ("cuCtxCreate", 3020),
            ("cuDevicePrimaryCtxRetain", 7000),
            ("cuCtxSetCurrent", 4000),
            ("cuCtxDestroy", 4000),
            ("cuDeviceGetByPCIBusId", 11030),
            ("cuMemAllocHost", 3020),
            ("cuMemAlloc", 3020),
            ("cuMemFreeHost", 3020),
            ("cuMemFree", 3020),
            ("cuMemcpy", 11030),
            ("cuMemcpyDtoD", 3020),
            ("cuMemGetHandleForAddressRange", 11070),
            ("cuDriverGetVersion", 2020),
            ("cuCtxSynchronize", 11030),
            ("cuMemAllocManaged", 11030),
        ] {
            assert!(lookup(name, version).is_ok(), "{name} {version}");
        }
    }
}
