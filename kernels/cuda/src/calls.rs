//! The functions of NVRTC, cuBLASLt and cuDNN that are called, and one of the driver's, each found by name in the very file
//! that was chosen.
//!
//! The bindings' own functions would ask the loader for a name without a version first, and so call whatever a developer's
//! link leads to; only their types are used.

#![expect(non_snake_case, reason = "functions keep the names that the libraries give them")]

/// A module with the functions of one library: calling one before the library was opened panics, which the library's
/// token (`libraries::Dnn`, ...) rules out.
macro_rules! library {
    (
        $(#[$doc:meta])*
        $module:ident, $title:literal:
        use $bindings:ident::sys::*;
        $(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*
    ) => {
        $(#[$doc])*
        pub mod $module {
            use libloading::os::unix::Library;
            use std::{ffi::*, sync::OnceLock};
            use cudarc::$bindings::sys::*;

            /// What must be there.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            #[derive(Debug)]
            struct Table {
                $($name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)*
            }

            static TABLE: OnceLock<Table> = OnceLock::new();

            /// From now on the functions are those of `library`, for the first one given; otherwise says which is missing.
            pub fn open(library: &'static Library) -> Result<(), &'static str> {
                // SAFETY: each function has the type that the library's headers give it.
                let table = unsafe {
                    Table { $($name: *library.get(stringify!($name).as_bytes()).map_err(|_| stringify!($name))?,)* }
                };
                TABLE.get_or_init(|| table);
                Ok(())
            }

            fn table() -> &'static Table {
                TABLE.get().expect(concat!($title, " was opened before it is called"))
            }

            $(
                /// # Safety
                /// As the library's own documentation says.
                #[allow(clippy::too_many_arguments, reason = "as many as the library's function has")]
                pub unsafe fn $name($($argument: $kind),*) $(-> $result)? {
                    // SAFETY: as the caller vouches.
                    unsafe { (table().$name)($($argument),*) }
                }
            )*
        }
    };
}

/// The driver is called through the bindings, one function apart: CUDA 12.8 gave it another name, and the bindings know
/// only that one. Drivers before it are in use everywhere.
pub mod driver {
    use cudarc::driver::sys::{CUevent, CUresult};
    use libloading::os::unix::Library;
    use std::sync::OnceLock;

    /// What the bindings look up, and would panic without.
    pub const NAMES: &[&str] = &[
        "cuInit",
        "cuDeviceGetUuid_v2",
        "cuDevicePrimaryCtxRetain",
        "cuModuleLoadData",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuGraphInstantiateWithFlags",
        "cuProfilerStart",
    ];

    type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

    static ELAPSED: OnceLock<Elapsed> = OnceLock::new();

    /// As the other modules' `open`.
    pub fn open(library: &'static Library) -> Result<(), &'static str> {
        // SAFETY: both have the type that the library's headers give them.
        let found = unsafe {
            let newer = library.get::<Elapsed>(b"cuEventElapsedTime_v2");
            newer.or_else(|_| library.get::<Elapsed>(b"cuEventElapsedTime"))
        };
        let found = *found.map_err(|_| "cuEventElapsedTime")?;
        ELAPSED.get_or_init(|| found);
        Ok(())
    }

    /// # Safety
    /// As the library's own documentation says.
    pub unsafe fn cuEventElapsedTime(ms: *mut f32, from: CUevent, to: CUevent) -> CUresult {
        let elapsed = ELAPSED.get().expect("the driver was opened before it is called");
        // SAFETY: as the caller vouches.
        unsafe { elapsed(ms, from, to) }
    }
}

library! {
    /// CUDA C++ to machine code.
    nvrtc, "NVRTC":
    use nvrtc::sys::*;
    fn nvrtcCreateProgram(
        program: *mut nvrtcProgram, text: *const c_char, name: *const c_char, headers: c_int,
        sources: *const *const c_char, names: *const *const c_char
    ) -> nvrtcResult;
    fn nvrtcCompileProgram(program: nvrtcProgram, count: c_int, options: *const *const c_char) -> nvrtcResult;
    fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> nvrtcResult;
    fn nvrtcGetProgramLogSize(program: nvrtcProgram, bytes: *mut usize) -> nvrtcResult;
    fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char) -> nvrtcResult;
    fn nvrtcGetCUBINSize(program: nvrtcProgram, bytes: *mut usize) -> nvrtcResult;
    fn nvrtcGetCUBIN(program: nvrtcProgram, cubin: *mut c_char) -> nvrtcResult;
    fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> nvrtcResult;
    fn nvrtcGetSupportedArchs(archs: *mut c_int) -> nvrtcResult;
}

library! {
    /// Matrix products.
    blaslt, "cuBLASLt":
    use cublaslt::sys::*;
    fn cublasLtCreate(handle: *mut cublasLtHandle_t) -> cublasStatus_t;
    fn cublasLtDestroy(handle: cublasLtHandle_t) -> cublasStatus_t;
    fn cublasLtMatmulDescCreate(
        description: *mut cublasLtMatmulDesc_t, compute: cublasComputeType_t, scale: cudaDataType_t
    ) -> cublasStatus_t;
    fn cublasLtMatmulDescDestroy(description: cublasLtMatmulDesc_t) -> cublasStatus_t;
    fn cublasLtMatmulDescSetAttribute(
        description: cublasLtMatmulDesc_t, attribute: cublasLtMatmulDescAttributes_t, value: *const c_void, bytes: usize
    ) -> cublasStatus_t;
    fn cublasLtMatrixLayoutCreate(
        layout: *mut cublasLtMatrixLayout_t, kind: cudaDataType_t, rows: u64, columns: u64, pitch: i64
    ) -> cublasStatus_t;
    fn cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t) -> cublasStatus_t;
    fn cublasLtMatrixLayoutSetAttribute(
        layout: cublasLtMatrixLayout_t, attribute: cublasLtMatrixLayoutAttribute_t, value: *const c_void, bytes: usize
    ) -> cublasStatus_t;
    fn cublasLtMatmulPreferenceCreate(preference: *mut cublasLtMatmulPreference_t) -> cublasStatus_t;
    fn cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t) -> cublasStatus_t;
    fn cublasLtMatmulPreferenceSetAttribute(
        preference: cublasLtMatmulPreference_t, attribute: cublasLtMatmulPreferenceAttributes_t,
        value: *const c_void, bytes: usize
    ) -> cublasStatus_t;
    fn cublasLtMatmulAlgoGetHeuristic(
        handle: cublasLtHandle_t, description: cublasLtMatmulDesc_t, a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t, c: cublasLtMatrixLayout_t, d: cublasLtMatrixLayout_t,
        preference: cublasLtMatmulPreference_t, wanted: c_int, found: *mut cublasLtMatmulHeuristicResult_t,
        count: *mut c_int
    ) -> cublasStatus_t;
    fn cublasLtMatmulAlgoCheck(
        handle: cublasLtHandle_t, description: cublasLtMatmulDesc_t, a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t, c: cublasLtMatrixLayout_t, d: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t, result: *mut cublasLtMatmulHeuristicResult_t
    ) -> cublasStatus_t;
    fn cublasLtMatmul(
        handle: cublasLtHandle_t, description: cublasLtMatmulDesc_t, alpha: *const c_void, a: *const c_void,
        a_layout: cublasLtMatrixLayout_t, b: *const c_void, b_layout: cublasLtMatrixLayout_t, beta: *const c_void,
        c: *const c_void, c_layout: cublasLtMatrixLayout_t, d: *mut c_void, d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t, workspace: *mut c_void, workspace_bytes: usize, stream: cudaStream_t
    ) -> cublasStatus_t;
}

library! {
    /// Convolutions and attention.
    dnn, "cuDNN":
    use cudnn::sys::*;
    fn cudnnCreate(handle: *mut cudnnHandle_t) -> cudnnStatus_t;
    fn cudnnDestroy(handle: cudnnHandle_t) -> cudnnStatus_t;
    fn cudnnSetStream(handle: cudnnHandle_t, stream: cudaStream_t) -> cudnnStatus_t;
    fn cudnnGetLastErrorString(message: *mut c_char, bytes: usize);
    fn cudnnBackendCreateDescriptor(
        kind: cudnnBackendDescriptorType_t, descriptor: *mut cudnnBackendDescriptor_t
    ) -> cudnnStatus_t;
    fn cudnnBackendDestroyDescriptor(descriptor: cudnnBackendDescriptor_t) -> cudnnStatus_t;
    fn cudnnBackendSetAttribute(
        descriptor: cudnnBackendDescriptor_t, name: cudnnBackendAttributeName_t, kind: cudnnBackendAttributeType_t,
        count: i64, values: *const c_void
    ) -> cudnnStatus_t;
    fn cudnnBackendGetAttribute(
        descriptor: cudnnBackendDescriptor_t, name: cudnnBackendAttributeName_t, kind: cudnnBackendAttributeType_t,
        room: i64, count: *mut i64, values: *mut c_void
    ) -> cudnnStatus_t;
    fn cudnnBackendFinalize(descriptor: cudnnBackendDescriptor_t) -> cudnnStatus_t;
    fn cudnnBackendExecute(
        handle: cudnnHandle_t, plan: cudnnBackendDescriptor_t, pack: cudnnBackendDescriptor_t
    ) -> cudnnStatus_t;
}
