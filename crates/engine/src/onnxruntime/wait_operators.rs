//! Operators of ours, in sessions of ONNX Runtime, that wait for parts of the weights.
//!
//! Each hands a weight on in the memory that it is in: ONNX Runtime is told that output and input
//! are the same memory.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ort::AsPointer;
use ort::session::builder::SessionBuilder;
use ort_sys::{
    ONNXTensorElementDataType as ElementType, OrtApi, OrtCustomOp,
    OrtCustomOpInputOutputCharacteristic as Characteristic, OrtKernelContext, OrtKernelInfo,
    OrtStatusPtr,
};
use tessera_core::{DType, Result};

use super::ort_value::check_status;
use super::weight_layout::{AWAITED_TYPES, PART_ATTRIBUTE, WAIT_DOMAIN, wait_operator_name};

/// Knows how to wait for parts of weights.
pub(super) trait AwaitParts: Send + Sync {
    /// Where the operators run: a provider of ONNX Runtime; null for the CPU.
    fn provider(&self) -> *const c_char;

    /// Has what is put into the stream from now on wait for a part.
    fn await_part(&self, part: usize, stream: *mut c_void) -> Result<()>;

    /// Copies a weight in the stream, where ONNX Runtime would not hand it on as it is.
    ///
    /// # Safety
    /// There are so many bytes at both addresses.
    unsafe fn copy_weight(
        &self,
        from: *const u8,
        to: *mut u8,
        len: usize,
        stream: *mut c_void,
    ) -> Result<()>;
}

/// The operators of one session. They must live longer than it does.
pub(super) struct WaitOperators {
    domain: NonNull<ort_sys::OrtCustomOpDomain>,
    operators: Box<[WaitOperator]>,
}

// SAFETY: what is behind the pointers is only read once it is made.
unsafe impl Send for WaitOperators {}
// SAFETY: as above.
unsafe impl Sync for WaitOperators {}

/// What waits for weights of one element type.
#[repr(C)]
struct WaitOperator {
    // First: ONNX Runtime has the address of this one.
    functions: OrtCustomOp,
    name: CString,
    element_type: ElementType,
    waiter: Arc<dyn AwaitParts>,
}

/// What waits for one weight.
struct WaitKernel {
    waiter: Arc<dyn AwaitParts>,
    part: usize,
}

impl WaitOperators {
    /// Operators that wait as `waiter` does.
    pub(super) fn new(waiter: &Arc<dyn AwaitParts>) -> ort::Result<Self> {
        let domain_name = CString::new(WAIT_DOMAIN).map_err(ort::Error::wrap)?;
        let mut domain = ptr::null_mut();
        // SAFETY: the name is copied; the domain is written.
        check_status(unsafe {
            (ort::api().CreateCustomOpDomain)(domain_name.as_ptr(), &raw mut domain)
        })?;
        let domain = NonNull::new(domain).ok_or_else(|| ort::Error::new("no domain"))?;
        let operators = AWAITED_TYPES.into_iter().filter_map(|number| {
            let (element_type, name) = (element_type(number)?, wait_operator_name(number));
            let (name, waiter) = (CString::new(name).ok()?, Arc::clone(waiter));
            Some(WaitOperator { functions: functions(), name, element_type, waiter })
        });
        let made = Self { domain, operators: operators.collect() };
        for operator in &made.operators {
            // SAFETY: the operators stay where they are for as long as the domain does.
            check_status(unsafe {
                let operator: *const WaitOperator = operator;
                (ort::api().CustomOpDomain_Add)(domain.as_ptr(), operator.cast())
            })?;
        }
        Ok(made)
    }

    /// Lets a session have them.
    pub(super) fn add_to_session(&self, builder: &mut SessionBuilder) -> ort::Result<()> {
        // SAFETY: both are valid.
        check_status(unsafe {
            (ort::api().AddCustomOpDomain)(builder.ptr_mut(), self.domain.as_ptr())
        })
    }
}

impl Drop for WaitOperators {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and released once.
        unsafe { (ort::api().ReleaseCustomOpDomain)(self.domain.as_ptr()) };
    }
}

/// The element type that ONNX gives a number.
fn element_type(number: i32) -> Option<ElementType> {
    use ElementType as Type;
    Some(match number {
        1 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        2 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        3 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        4 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        5 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        6 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        7 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        10 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        11 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        12 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        13 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        16 => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        _ => return None,
    })
}

/// What ONNX Runtime asks of an operator.
fn functions() -> OrtCustomOp {
    OrtCustomOp {
        version: ort_sys::ORT_API_VERSION,
        CreateKernel: None,
        GetName: Some(name_of),
        GetExecutionProviderType: Some(provider_of),
        GetInputType: Some(input_type),
        GetInputTypeCount: Some(input_count),
        GetOutputType: Some(output_type),
        GetOutputTypeCount: Some(output_count),
        KernelCompute: None,
        KernelDestroy: Some(destroy_kernel),
        GetInputCharacteristic: Some(is_input_needed),
        GetOutputCharacteristic: Some(is_output_needed),
        GetInputMemoryType: Some(input_memory),
        GetVariadicInputMinArity: None,
        GetVariadicInputHomogeneity: None,
        GetVariadicOutputMinArity: None,
        GetVariadicOutputHomogeneity: None,
        CreateKernelV2: Some(create_kernel),
        KernelComputeV2: Some(compute),
        InferOutputShapeFn: None,
        GetStartVersion: None,
        GetEndVersion: None,
        GetMayInplace: None,
        ReleaseMayInplace: None,
        GetAliasMap: Some(alias_map),
        ReleaseAliasMap: Some(release_alias_map),
    }
}

/// The operator that ONNX Runtime asks about.
///
/// # Safety
/// It must be one of ours that is still there.
unsafe fn operator<'a>(operator: *const OrtCustomOp) -> &'a WaitOperator {
    // SAFETY: as the caller says; the functions are its first field.
    unsafe { &*operator.cast::<WaitOperator>() }
}

unsafe extern "system" fn name_of(of: *const OrtCustomOp) -> *const c_char {
    // SAFETY: ONNX Runtime asks about operators of ours.
    unsafe { operator(of) }.name.as_ptr()
}

unsafe extern "system" fn provider_of(of: *const OrtCustomOp) -> *const c_char {
    // SAFETY: ONNX Runtime asks about operators of ours.
    unsafe { operator(of) }.waiter.provider()
}

unsafe extern "system" fn input_type(of: *const OrtCustomOp, index: usize) -> ElementType {
    match index {
        // SAFETY: ONNX Runtime asks about operators of ours.
        0 => unsafe { operator(of) }.element_type,
        // What is beside the weight may be anything.
        _ => ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
    }
}

unsafe extern "system" fn input_count(_: *const OrtCustomOp) -> usize {
    2
}

unsafe extern "system" fn output_type(of: *const OrtCustomOp, _: usize) -> ElementType {
    // SAFETY: ONNX Runtime asks about operators of ours.
    unsafe { operator(of) }.element_type
}

unsafe extern "system" fn output_count(_: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn is_input_needed(_: *const OrtCustomOp, index: usize) -> Characteristic {
    match index {
        0 => Characteristic::INPUT_OUTPUT_REQUIRED,
        _ => Characteristic::INPUT_OUTPUT_OPTIONAL,
    }
}

unsafe extern "system" fn is_output_needed(_: *const OrtCustomOp, _: usize) -> Characteristic {
    Characteristic::INPUT_OUTPUT_REQUIRED
}

unsafe extern "system" fn input_memory(_: *const OrtCustomOp, _: usize) -> ort_sys::OrtMemType {
    ort_sys::OrtMemType::OrtMemTypeDefault
}

/// The output is in the memory of the first input.
unsafe extern "system" fn alias_map(inputs: *mut *mut c_int, outputs: *mut *mut c_int) -> usize {
    for place in [inputs, outputs] {
        // SAFETY: ONNX Runtime reads what is written, and gives it back below.
        unsafe { *place = Box::into_raw(Box::new(0)) };
    }
    1
}

unsafe extern "system" fn release_alias_map(inputs: *mut c_int, outputs: *mut c_int) {
    for place in [inputs, outputs] {
        if !place.is_null() {
            // SAFETY: made by `alias_map`, and given back once.
            drop(unsafe { Box::from_raw(place) });
        }
    }
}

unsafe extern "system" fn create_kernel(
    of: *const OrtCustomOp,
    _: *const OrtApi,
    info: *const OrtKernelInfo,
    kernel: *mut *mut c_void,
) -> OrtStatusPtr {
    let make = || -> ort::Result<WaitKernel> {
        let name = CString::new(PART_ATTRIBUTE).map_err(ort::Error::wrap)?;
        let mut part = 0;
        // SAFETY: the description is valid; the number is written.
        check_status(unsafe {
            (ort::api().KernelInfoGetAttribute_int64)(info, name.as_ptr(), &raw mut part)
        })?;
        // SAFETY: ONNX Runtime asks about operators of ours.
        let waiter = Arc::clone(&unsafe { operator(of) }.waiter);
        Ok(WaitKernel { waiter, part: usize::try_from(part).unwrap_or(0) })
    };
    match make() {
        Ok(made) => {
            // SAFETY: where the kernel is wanted; it comes back to `destroy_kernel`.
            unsafe { *kernel = Box::into_raw(Box::new(made)).cast() };
            OrtStatusPtr::default()
        }
        Err(error) => status_of(&error.to_string()),
    }
}

unsafe extern "system" fn destroy_kernel(kernel: *mut c_void) {
    if !kernel.is_null() {
        // SAFETY: made by `create_kernel`, and given back once.
        drop(unsafe { Box::from_raw(kernel.cast::<WaitKernel>()) });
    }
}

unsafe extern "system" fn compute(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: made by `create_kernel`, and still there.
    let kernel = unsafe { &*kernel.cast::<WaitKernel>() };
    // SAFETY: the context is that of a run of this kernel.
    match unsafe { kernel.hand_weight_on(context) } {
        Ok(()) => OrtStatusPtr::default(),
        Err(error) => status_of(&error.to_string()),
    }
}

fn status_of(message: &str) -> OrtStatusPtr {
    let message = CString::new(message).unwrap_or_default();
    // SAFETY: the message is copied.
    unsafe { (ort::api().CreateStatus)(ort_sys::OrtErrorCode::ORT_FAIL, message.as_ptr()) }
}

impl WaitKernel {
    /// # Safety
    /// The context is that of a run of this kernel.
    unsafe fn hand_weight_on(&self, context: *mut OrtKernelContext) -> ort::Result<()> {
        let api = ort::api();
        let mut stream = ptr::null_mut();
        if !self.waiter.provider().is_null() {
            // SAFETY: the context is valid; the stream is written.
            check_status(unsafe {
                (api.KernelContext_GetGPUComputeStream)(context, &raw mut stream)
            })?;
        }
        self.waiter.await_part(self.part, stream).map_err(ort::Error::wrap)?;
        let (mut weight, mut handed_on) = (ptr::null(), ptr::null_mut());
        // SAFETY: the context is valid; the value is written.
        check_status(unsafe { (api.KernelContext_GetInput)(context, 0, &raw mut weight) })?;
        // SAFETY: the value is a tensor.
        let (shape, len) = unsafe { shape_and_bytes(weight) }?;
        // SAFETY: the context is valid; the shape is read, the value is written.
        check_status(unsafe {
            let (dims, count) = (shape.as_ptr(), shape.len());
            (api.KernelContext_GetOutput)(context, 0, dims, count, &raw mut handed_on)
        })?;
        let (mut from, mut to) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: both are tensors; what is there is only read.
        check_status(unsafe { (api.GetTensorMutableData)(weight.cast_mut(), &raw mut from) })?;
        // SAFETY: as above.
        check_status(unsafe { (api.GetTensorMutableData)(handed_on, &raw mut to) })?;
        if from == to {
            return Ok(());
        }
        // SAFETY: both are tensors of this shape and element type.
        unsafe { self.waiter.copy_weight(from.cast(), to.cast(), len, stream) }
            .map_err(ort::Error::wrap)
    }
}

/// The shape of a tensor, and the bytes that it takes.
///
/// # Safety
/// The value is a tensor.
unsafe fn shape_and_bytes(value: *const ort_sys::OrtValue) -> ort::Result<(Vec<i64>, usize)> {
    let api = ort::api();
    let mut info = ptr::null_mut();
    // SAFETY: the value is a tensor; what describes it is written, and released below.
    check_status(unsafe { (api.GetTensorTypeAndShape)(value, &raw mut info) })?;
    let read = || -> ort::Result<(Vec<i64>, usize)> {
        let mut rank = 0;
        // SAFETY: the description is valid; the number is written.
        check_status(unsafe { (api.GetDimensionsCount)(info, &raw mut rank) })?;
        let mut shape = vec![0; rank];
        // SAFETY: there is room for so many.
        check_status(unsafe { (api.GetDimensions)(info, shape.as_mut_ptr(), rank) })?;
        let mut element_type = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        // SAFETY: the description is valid; the type is written.
        check_status(unsafe { (api.GetTensorElementType)(info, &raw mut element_type) })?;
        let count = usize::try_from(shape.iter().product::<i64>()).ok();
        let dtype = DType::from_onnx(element_type as i32);
        let len = dtype.zip(count).and_then(|(dtype, count)| dtype.byte_len(count));
        Ok((shape, len.ok_or_else(|| ort::Error::new("a weight of unknown size"))?))
    };
    let read = read();
    // SAFETY: made above, and released once.
    unsafe { (api.ReleaseTensorTypeAndShapeInfo)(info) };
    read
}

#[cfg(test)]
#[path = "wait_operators_tests.rs"]
mod tests;
