// SPDX-License-Identifier: GPL-2.0

//! `CUresult`: the codes that this library returns, with their names.

use std::ffi::CStr;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    /// A parameter is out of its range.
    InvalidValue = 1,
    /// There is no memory of the requested kind.
    OutOfMemory = 2,
    /// `cuInit` was not called, or the process was forked after it.
    NotInitialized = 3,
    /// There is no GPU or no driver.
    NoDevice = 100,
    /// There is no such GPU.
    InvalidDevice = 101,
    /// No context is current, or the handle is not a context.
    InvalidContext = 201,
    /// The kernel refused the request.
    OperatingSystem = 304,
    /// There is no such stream or event.
    InvalidHandle = 400,
    /// There is no such function.
    NotFound = 500,
    /// The stream has work that is not done.
    NotReady = 600,
    /// The memory of the host is registered already.
    AlreadyRegistered = 712,
    /// The memory of the host is not registered.
    NotRegistered = 713,
    /// The process may not do this.
    NotPermitted = 800,
    /// This GPU cannot do this.
    NotSupported = 801,
    /// Anything else.
    Unknown = 999,
}

/// The result of functions inside the library.
pub type Res<T> = Result<T, Code>;

/// The value, name and sentence of every code, including success.
pub const NAMES: &[(u32, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (304, c"CUDA_ERROR_OPERATING_SYSTEM", c"OS call failed or operation not supported on this OS"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped"),
    (713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];
