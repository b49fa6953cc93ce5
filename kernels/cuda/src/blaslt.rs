//! Matrix products with epilogues through cuBLASLt, and the search over its algorithms.
//!
//! Everything is stated row-major, `D[m][n] = epilogue(alpha A[m][k] · B[k][n] + C[m][n] + bias[n])`; cuBLASLt thinks
//! column-major, so the operands change places inside.

use super::{
    calls::blaslt as calls,
    device::{DeviceError, Stream},
    libraries::{BlasLt, Missing},
};
use cudarc::cublaslt::sys;
use std::{ffi::c_void, fmt, mem, ptr, rc::Rc};

/// Most algorithms that a search returns.
pub const MAX_ALGORITHMS: usize = 64;

/// Element type of the operands; products are summed in f32, those of integers in i32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    F16,
    Bf16,
    F32,
    /// f32 in memory, TF32 in the products.
    Tf32,
    /// 8-bit integers, also as result. B must be transposed, and so for the next.
    Int8,
    /// 8-bit floats of 4 exponent bits; the result is bfloat16.
    F8E4m3,
}

/// What is done to a sum before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    None,
    Relu,
    /// The tanh approximation, which is all that the library has.
    GeluTanh,
}

/// A product, completely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    pub element: Element,
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub batch: u64,
    /// B is stored `[n][k]`.
    pub b_transposed: bool,
    /// Elements between rows.
    pub lda: u64,
    pub ldb: u64,
    pub ldc: u64,
    pub ldd: u64,
    /// Elements between the matrices of a batch; 0 repeats one.
    pub stride_a: i64,
    pub stride_b: i64,
    pub stride_c: i64,
    pub stride_d: i64,
    pub alpha: f32,
    /// A bias of n elements, of the operands' type.
    pub bias: bool,
    /// C is added.
    pub residual: bool,
    pub epilogue: Epilogue,
}

impl Product {
    /// `[m][k] · [k][n]`, dense, one of it.
    pub fn dense(element: Element, m: u64, n: u64, k: u64) -> Self {
        Self {
            element,
            m,
            n,
            k,
            batch: 1,
            b_transposed: false,
            lda: k,
            ldb: n,
            ldc: n,
            ldd: n,
            stride_a: 0,
            stride_b: 0,
            stride_c: 0,
            stride_d: 0,
            alpha: 1.0,
            bias: false,
            residual: false,
            epilogue: Epilogue::None,
        }
    }

    /// B as `[n][k]`, as weights often lie.
    pub fn with_transposed_b(self) -> Self {
        Self { b_transposed: true, ldb: self.k, ..self }
    }
}

/// Why the library would not.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BlasError {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("cuBLASLt cannot {what}: {reason}")]
    Library { what: &'static str, reason: String },
}

type Result<T> = std::result::Result<T, BlasError>;

fn check(what: &'static str, status: sys::cublasStatus_t) -> Result<()> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(BlasError::Library { what, reason: format!("{status:?}") })
}

/// The library for the device whose context is current.
#[derive(Clone)]
pub struct Handle(Rc<HandleInner>);

struct HandleInner(sys::cublasLtHandle_t);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cublaslt::Handle")
    }
}

impl Drop for HandleInner {
    fn drop(&mut self) {
        // SAFETY: made by `cublasLtCreate`, destroyed once.
        unsafe { calls::cublasLtDestroy(self.0) };
    }
}

impl Handle {
    /// Of the device that `Gpu::open` made current on this thread.
    pub fn new() -> Result<Self> {
        BlasLt::get()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the library writes the handle.
        check("start", unsafe { calls::cublasLtCreate(&mut handle) })?;
        Ok(Self(Rc::new(HandleInner(handle))))
    }
}

/// One of the library's ways to compute a product; its bytes mean something to the same library version only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Algorithm {
    pub words: [u64; 8],
    pub workspace_bytes: usize,
    /// The library's own guess of how well it fills the device.
    pub waves: f32,
}

/// A product with its descriptors, ready to run.
pub struct Prepared {
    handle: Handle,
    product: Product,
    description: sys::cublasLtMatmulDesc_t,
    /// Of the library's A, B, C and D: our B, A, C and D.
    layouts: [sys::cublasLtMatrixLayout_t; 4],
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prepared({:?})", self.product)
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: all were made by this type and are destroyed once.
        unsafe {
            if !self.description.is_null() {
                calls::cublasLtMatmulDescDestroy(self.description);
            }
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                calls::cublasLtMatrixLayoutDestroy(layout);
            }
        }
    }
}

fn data_type(element: Element) -> sys::cudaDataType_t {
    match element {
        Element::F16 => sys::cudaDataType_t::CUDA_R_16F,
        Element::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        Element::F32 | Element::Tf32 => sys::cudaDataType_t::CUDA_R_32F,
        Element::Int8 => sys::cudaDataType_t::CUDA_R_8I,
        Element::F8E4m3 => sys::cudaDataType_t::CUDA_R_8F_E4M3,
    }
}

/// What the library stores results as.
fn result_type(element: Element) -> sys::cudaDataType_t {
    match element {
        Element::F8E4m3 => sys::cudaDataType_t::CUDA_R_16BF,
        other => data_type(other),
    }
}

impl Prepared {
    pub fn new(handle: &Handle, product: Product) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let compute = match product.element {
            Element::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            Element::Int8 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32I,
            _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let mut prepared =
            Self { handle: handle.clone(), product, description: ptr::null_mut(), layouts: [ptr::null_mut(); 4] };
        let scale = sys::cudaDataType_t::CUDA_R_32F;
        // SAFETY: the library writes the description.
        let made = unsafe { calls::cublasLtMatmulDescCreate(&mut prepared.description, compute, scale) };
        check("describe a product", made)?;
        // Row-major X is column-major X transposed: D' = B' · A'.
        let (b_rows, b_cols) = if product.b_transposed { (product.k, product.n) } else { (product.n, product.k) };
        let shapes = [
            (b_rows, b_cols, product.ldb, product.stride_b),
            (product.k, product.m, product.lda, product.stride_a),
            (product.n, product.m, product.ldc, product.stride_c),
            (product.n, product.m, product.ldd, product.stride_d),
        ];
        let (given, made) = (data_type(product.element), result_type(product.element));
        let kinds = [given, given, made, made];
        for ((layout, (rows, cols, ld, _)), kind) in prepared.layouts.iter_mut().zip(shapes).zip(kinds) {
            // SAFETY: the library writes the layout.
            let made = unsafe { calls::cublasLtMatrixLayoutCreate(layout, kind, rows, cols, ld.cast_signed()) };
            check("describe a matrix", made)?;
        }
        if product.batch > 1 {
            let count = i32::try_from(product.batch).unwrap_or(i32::MAX);
            for (layout, (.., stride)) in prepared.layouts.iter().zip(shapes) {
                prepared.set_layout(
                    *layout,
                    sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                    &count,
                )?;
                let attribute = sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                prepared.set_layout(*layout, attribute, &stride)?;
            }
        }
        // `cublasOperation_t`: 0 as it is, 1 transposed.
        prepared.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &u32::from(product.b_transposed))?;
        use sys::cublasLtEpilogue_t as Kind;
        let epilogue = match (product.epilogue, product.bias) {
            (Epilogue::None, false) => Kind::CUBLASLT_EPILOGUE_DEFAULT,
            (Epilogue::None, true) => Kind::CUBLASLT_EPILOGUE_BIAS,
            (Epilogue::Relu, false) => Kind::CUBLASLT_EPILOGUE_RELU,
            (Epilogue::Relu, true) => Kind::CUBLASLT_EPILOGUE_RELU_BIAS,
            (Epilogue::GeluTanh, false) => Kind::CUBLASLT_EPILOGUE_GELU,
            (Epilogue::GeluTanh, true) => Kind::CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        prepared.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
        Ok(prepared)
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the description is alive; the library copies `size_of::<T>()` bytes of a plain value.
        let set = unsafe {
            calls::cublasLtMatmulDescSetAttribute(
                self.description,
                attribute,
                ptr::from_ref(value).cast(),
                mem::size_of::<T>(),
            )
        };
        check("set a product's attribute", set)
    }

    fn set_layout<T>(
        &self,
        layout: sys::cublasLtMatrixLayout_t,
        attribute: sys::cublasLtMatrixLayoutAttribute_t,
        value: &T,
    ) -> Result<()> {
        // SAFETY: as in `set`.
        let set = unsafe {
            calls::cublasLtMatrixLayoutSetAttribute(layout, attribute, ptr::from_ref(value).cast(), mem::size_of::<T>())
        };
        check("set a matrix's attribute", set)
    }

    /// What the library proposes, best guess first. None means that it cannot compute this product.
    pub fn algorithms(&self, workspace_bytes: usize, most: usize) -> Result<Vec<Algorithm>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        if self.product.bias {
            // The choice depends on there being a pointer, not on where it leads.
            self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &ALIGNED_DUMMY)?;
        }
        let mut preference = ptr::null_mut();
        // SAFETY: the library writes the preference.
        check("make a preference", unsafe { calls::cublasLtMatmulPreferenceCreate(&mut preference) })?;
        let alignments = [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        let wanted = most.min(MAX_ALGORITHMS);
        // SAFETY: `cublasLtMatmulHeuristicResult_t` is plain data for which zero bytes are a valid value of every field.
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = vec![unsafe { mem::zeroed() }; wanted];
        let mut count = 0;
        // SAFETY: all descriptors are alive; the array has room for as many results as are asked for.
        let asked = unsafe {
            let set = |attribute: Preference, value: *const c_void, bytes: usize| {
                calls::cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes)
            };
            let bytes = ptr::from_ref(&workspace_bytes).cast();
            let mut asked = set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes, mem::size_of::<usize>());
            for attribute in alignments {
                if asked == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                    asked = set(attribute, ptr::from_ref(&OPERAND_ALIGNMENT_BYTES).cast(), mem::size_of::<u32>());
                }
            }
            if asked == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
                asked = calls::cublasLtMatmulAlgoGetHeuristic(
                    self.handle.0.0,
                    self.description,
                    self.layouts[0],
                    self.layouts[1],
                    self.layouts[2],
                    self.layouts[3],
                    preference,
                    i32::try_from(wanted).unwrap_or(i32::MAX),
                    found.as_mut_ptr(),
                    &mut count,
                );
            }
            calls::cublasLtMatmulPreferenceDestroy(preference);
            asked
        };
        if asked == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        check("propose algorithms", asked)?;
        found.truncate(usize::try_from(count).unwrap_or(0));
        let usable = found.iter().filter(|r| r.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(usable
            .map(|r| Algorithm { words: r.algo.data, workspace_bytes: r.workspaceSize, waves: r.wavesCount })
            .collect())
    }

    /// Workspace that an algorithm wants for this product here; an error when this library version on this device
    /// cannot compute it so.
    pub fn workspace_of(&self, algorithm: &Algorithm) -> Result<u64> {
        if self.product.bias {
            self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &ALIGNED_DUMMY)?;
        }
        let algo = sys::cublasLtMatmulAlgo_t { data: algorithm.words };
        // SAFETY: plain data for which zero bytes are a valid value of every field.
        let mut result: sys::cublasLtMatmulHeuristicResult_t = unsafe { mem::zeroed() };
        // SAFETY: descriptors are alive; the library reads the algorithm and writes the result.
        let checked = unsafe {
            calls::cublasLtMatmulAlgoCheck(
                self.handle.0.0,
                self.description,
                self.layouts[0],
                self.layouts[1],
                self.layouts[2],
                self.layouts[3],
                &algo,
                &mut result,
            )
        };
        check("use an algorithm", checked)?;
        Ok(result.workspaceSize as u64)
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The addresses lead to matrices as the product describes them, `workspace` to as many bytes as the algorithm
    /// wants, all on this handle's device and alive until it is done.
    pub unsafe fn run(&self, stream: &Stream, algorithm: &Algorithm, operands: Operands) -> Result<()> {
        if self.product.bias {
            self.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        let (alpha, beta) = (self.product.alpha, if self.product.residual { 1f32 } else { 0f32 });
        let algo = sys::cublasLtMatmulAlgo_t { data: algorithm.words };
        let c = if self.product.residual { operands.c } else { operands.d };
        // SAFETY: descriptors are alive; the rest is the caller's word.
        let queued = unsafe {
            calls::cublasLtMatmul(
                self.handle.0.0,
                self.description,
                ptr::from_ref(&alpha).cast(),
                operands.b as *const c_void,
                self.layouts[0],
                operands.a as *const c_void,
                self.layouts[1],
                ptr::from_ref(&beta).cast(),
                c as *const c_void,
                self.layouts[2],
                operands.d as *mut c_void,
                self.layouts[3],
                &algo,
                operands.workspace as *mut c_void,
                algorithm.workspace_bytes,
                stream.raw().cast(),
            )
        };
        check("run a product", queued)
    }
}

/// Where operands may begin: parts of wider tensors at any 16 bytes, less than what the library assumes by itself.
const OPERAND_ALIGNMENT_BYTES: u32 = 16;

/// An address of the alignment that real ones have.
const ALIGNED_DUMMY: u64 = 1 << 20;

/// Device addresses of a product; what it does not have is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    pub a: u64,
    pub b: u64,
    pub c: u64,
    pub d: u64,
    pub bias: u64,
    pub workspace: u64,
}
