//! Tensors as ONNX Runtime's values, over memory that stays ours.

use std::ffi::c_void;
use std::ptr;
use std::ptr::NonNull;
use std::sync::Arc;

use ort_sys::ONNXTensorElementDataType as ElementType;
use tessera_core::{DType, Error, MemoryLocation, Region, Tensor, TensorMut, element_count};

/// The result of a call of the C interface.
pub(super) fn check_status(status: ort_sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: the status comes straight from the call, and is released by the error made of it.
    unsafe { ort::Error::result_from_status(status) }
}

/// A value of ONNX Runtime that is released when dropped.
pub(super) struct OrtValue(NonNull<ort_sys::OrtValue>);

// SAFETY: a value is a reference-counted handle with no ties to a thread; we never change one
// after it was made, save in the run that it is an output of.
unsafe impl Send for OrtValue {}
// SAFETY: as above: shared values are only read.
unsafe impl Sync for OrtValue {}

impl Drop for OrtValue {
    fn drop(&mut self) {
        // SAFETY: the pointer is ours and is released once.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) }
    }
}

impl OrtValue {
    pub(super) fn as_ptr(&self) -> *mut ort_sys::OrtValue {
        self.0.as_ptr()
    }

    /// Takes over a value that a run returned.
    ///
    /// # Safety
    /// The pointer must be a value that nobody else releases.
    pub(super) unsafe fn from_raw(pointer: *mut ort_sys::OrtValue) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    /// A value over the memory of `tensor`, which must outlive it and which runs only read.
    pub(super) fn over_tensor(tensor: &Tensor) -> ort::Result<Self> {
        match (tensor.data_pointer(), tensor.strings()) {
            (Some(pointer), _) => Self::over_memory(
                tensor.location(),
                pointer.cast_mut().cast(),
                tensor.byte_len(),
                tensor.dtype(),
                tensor.shape(),
            ),
            (None, Some(strings)) => Self::of_strings(tensor.shape(), strings),
            (None, None) => Err(ort::Error::new("a tensor without memory")),
        }
    }

    /// A value over the memory of `tensor`, which must outlive it and which a run writes.
    pub(super) fn over_tensor_mut(tensor: &mut TensorMut) -> ort::Result<Self> {
        let len = element_count(tensor.shape()).and_then(|count| tensor.dtype().byte_len(count));
        let pointer = tensor.address().as_ptr().cast();
        let (location, dtype) = (tensor.location(), tensor.dtype());
        Self::over_memory(location, pointer, len.unwrap_or(0), dtype, tensor.shape())
    }

    /// A value over memory of a GPU.
    ///
    /// # Safety
    /// A tensor of this kind must be there whenever it is read or written through this value.
    pub(super) unsafe fn at_address(
        location: MemoryLocation,
        address: usize,
        dtype: DType,
        shape: &[usize],
    ) -> ort::Result<Self> {
        let len = element_count(shape).and_then(|count| dtype.byte_len(count)).unwrap_or(0);
        let pointer = ptr::with_exposed_provenance_mut::<c_void>(address);
        Self::over_memory(location, pointer, len, dtype, shape)
    }

    fn over_memory(
        location: MemoryLocation,
        pointer: *mut c_void,
        len: usize,
        dtype: DType,
        shape: &[usize],
    ) -> ort::Result<Self> {
        let shape: Vec<i64> = shape.iter().map(|&dim| dim as i64).collect();
        let info = match location {
            MemoryLocation::Host => MemoryInfo::on_host()?,
            MemoryLocation::Cuda(number) => MemoryInfo::on_gpu(number)?,
            other => return Err(ort::Error::new(format!("memory at {other:?}"))),
        };
        let mut value = ptr::null_mut();
        // SAFETY: pointer and length describe memory that the caller keeps alive for as long as the
        // value, the shape is copied, and the element type matches the length.
        check_status(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                info.0.as_ptr(),
                pointer,
                len,
                shape.as_ptr(),
                shape.len(),
                element_type(dtype),
                &raw mut value,
            )
        })?;
        NonNull::new(value).map(Self).ok_or_else(|| ort::Error::new("no value was made"))
    }

    fn of_strings(shape: &[usize], strings: &[Vec<u8>]) -> ort::Result<Self> {
        let shape: Vec<i64> = shape.iter().map(|&dim| dim as i64).collect();
        let mut allocator = ptr::null_mut();
        // SAFETY: the default allocator is never released and lives as long as the library.
        check_status(unsafe { (ort::api().GetAllocatorWithDefaultOptions)(&raw mut allocator) })?;
        let mut value = ptr::null_mut();
        // SAFETY: the allocator is valid and the shape is copied.
        check_status(unsafe {
            (ort::api().CreateTensorAsOrtValue)(
                allocator,
                shape.as_ptr(),
                shape.len(),
                ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
                &raw mut value,
            )
        })?;
        // SAFETY: the value was just made and nobody else has it.
        let value =
            unsafe { Self::from_raw(value) }.ok_or_else(|| ort::Error::new("no value was made"))?;
        for (index, text) in strings.iter().enumerate() {
            let mut buffer = ptr::null_mut();
            // SAFETY: the shape has as many elements as there are strings; the buffer is the
            // element's own, of the length that was asked for.
            check_status(unsafe {
                (ort::api().GetResizedStringTensorElementBuffer)(
                    value.as_ptr(),
                    index,
                    text.len(),
                    &raw mut buffer,
                )
            })?;
            // SAFETY: as above; the two don't overlap.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), text.len()) };
        }
        Ok(value)
    }

    /// The dtype and shape of the value, where it is a tensor.
    fn dtype_and_shape(&self) -> ort::Result<(DType, Vec<usize>)> {
        let mut is_tensor = 0;
        // SAFETY: the value is valid.
        check_status(unsafe { (ort::api().IsTensor)(self.as_ptr(), &raw mut is_tensor) })?;
        if is_tensor == 0 {
            return Err(ort::Error::new("a value that is no tensor"));
        }
        let mut info = ptr::null_mut();
        // SAFETY: the value is a tensor.
        check_status(unsafe { (ort::api().GetTensorTypeAndShape)(self.as_ptr(), &raw mut info) })?;
        let read = || {
            let mut rank = 0;
            // SAFETY: the description was just made.
            check_status(unsafe { (ort::api().GetDimensionsCount)(info, &raw mut rank) })?;
            let mut dims = vec![0i64; rank];
            // SAFETY: there is room for `rank` dimensions.
            check_status(unsafe { (ort::api().GetDimensions)(info, dims.as_mut_ptr(), rank) })?;
            let mut element = ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
            // SAFETY: as above.
            check_status(unsafe { (ort::api().GetTensorElementType)(info, &raw mut element) })?;
            let dtype = dtype_from(element)
                .ok_or_else(|| ort::Error::new(format!("element type {element:?}")))?;
            Ok((dtype, dims.into_iter().map(|dim| usize::try_from(dim).unwrap_or(0)).collect()))
        };
        let result = read();
        // SAFETY: the description is ours and is released once.
        unsafe { (ort::api().ReleaseTensorTypeAndShapeInfo)(info) };
        result
    }

    /// A value that a run allocated on the host, as a tensor that keeps it alive.
    pub(super) fn into_tensor(self) -> ort::Result<Tensor> {
        self.into_tensor_at(MemoryLocation::Host)
    }

    /// A value that a run allocated there, as a tensor that keeps it alive.
    pub(super) fn into_tensor_at(self, location: MemoryLocation) -> ort::Result<Tensor> {
        let (dtype, shape) = self.dtype_and_shape()?;
        let wrong = |error: Error| ort::Error::new(error.to_string());
        if dtype == DType::String {
            let strings = self.read_strings(element_count(&shape).unwrap_or(0))?;
            return Tensor::from_strings(&shape, strings).map_err(wrong);
        }
        let len = element_count(&shape).and_then(|count| dtype.byte_len(count)).unwrap_or(0);
        let mut data = ptr::null_mut();
        // SAFETY: the value is a tensor whose elements have a fixed size.
        check_status(unsafe { (ort::api().GetTensorMutableData)(self.as_ptr(), &raw mut data) })?;
        let address = NonNull::new(data.cast()).unwrap_or(NonNull::dangling());
        let region: Arc<dyn Region> =
            Arc::new(ValueRegion { location, address, len, _value: self });
        Tensor::from_region(dtype, &shape, region).map_err(wrong)
    }

    fn read_strings(&self, count: usize) -> ort::Result<Vec<Vec<u8>>> {
        let mut total = 0;
        // SAFETY: the value is a tensor of strings.
        check_status(unsafe {
            (ort::api().GetStringTensorDataLength)(self.as_ptr(), &raw mut total)
        })?;
        let mut bytes = vec![0u8; total];
        let mut offsets = vec![0usize; count];
        // SAFETY: there is room for all bytes and for an offset per string.
        check_status(unsafe {
            (ort::api().GetStringTensorContent)(
                self.as_ptr(),
                bytes.as_mut_ptr().cast(),
                total,
                offsets.as_mut_ptr(),
                count,
            )
        })?;
        let ends = offsets.iter().skip(1).copied().chain([total]);
        Ok(offsets
            .iter()
            .zip(ends)
            .map(|(&start, end)| bytes.get(start..end).unwrap_or_default().to_vec())
            .collect())
    }
}

/// Memory of a value that ONNX Runtime allocated.
struct ValueRegion {
    location: MemoryLocation,
    address: NonNull<u8>,
    len: usize,
    _value: OrtValue,
}

// SAFETY: the memory belongs to the value, which can go anywhere, and is never written again.
unsafe impl Send for ValueRegion {}
// SAFETY: as above.
unsafe impl Sync for ValueRegion {}

impl Region for ValueRegion {
    fn location(&self) -> MemoryLocation {
        self.location
    }
    fn address(&self) -> NonNull<u8> {
        self.address
    }
    fn byte_len(&self) -> usize {
        self.len
    }
    fn bytes(&self) -> Option<&[u8]> {
        if self.location != MemoryLocation::Host {
            return None;
        }
        // SAFETY: the value owns `len` initialised bytes at the address for as long as it lives.
        Some(unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) })
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

/// A description of where memory is.
pub(super) struct MemoryInfo(NonNull<ort_sys::OrtMemoryInfo>);

impl MemoryInfo {
    pub(super) fn as_ptr(&self) -> *const ort_sys::OrtMemoryInfo {
        self.0.as_ptr()
    }

    pub(super) fn on_gpu(number: u32) -> ort::Result<Self> {
        let number = i32::try_from(number).map_err(|_| ort::Error::new("no such GPU"))?;
        let mut info = ptr::null_mut();
        // SAFETY: the name ends in a zero byte and is copied; the others are plain values.
        check_status(unsafe {
            (ort::api().CreateMemoryInfo)(
                c"Cuda".as_ptr(),
                ort_sys::OrtAllocatorType::OrtDeviceAllocator,
                number,
                ort_sys::OrtMemType::OrtMemTypeDefault,
                &raw mut info,
            )
        })?;
        NonNull::new(info).map(Self).ok_or_else(|| ort::Error::new("no memory description"))
    }

    pub(super) fn on_host() -> ort::Result<Self> {
        Self::on_host_in(ort_sys::OrtAllocatorType::OrtDeviceAllocator)
    }

    pub(super) fn on_host_in(allocator: ort_sys::OrtAllocatorType) -> ort::Result<Self> {
        let mut info = ptr::null_mut();
        // SAFETY: the arguments are plain values.
        check_status(unsafe {
            (ort::api().CreateCpuMemoryInfo)(
                allocator,
                ort_sys::OrtMemType::OrtMemTypeDefault,
                &raw mut info,
            )
        })?;
        NonNull::new(info).map(Self).ok_or_else(|| ort::Error::new("no memory description"))
    }
}

impl Drop for MemoryInfo {
    fn drop(&mut self) {
        // SAFETY: the description is ours and is released once.
        unsafe { (ort::api().ReleaseMemoryInfo)(self.0.as_ptr()) }
    }
}

/// The dtype of a session's input or output, where it is a tensor.
pub(super) fn dtype_of(declared: &ort::value::ValueType) -> Option<DType> {
    let ort::value::ValueType::Tensor { ty, .. } = declared else {
        return None;
    };
    dtype_from((*ty).into())
}

const ELEMENT_TYPES: &[(DType, ElementType)] = &[
    (DType::F32, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
    (DType::U8, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8),
    (DType::I8, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8),
    (DType::U16, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16),
    (DType::I16, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16),
    (DType::I32, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32),
    (DType::I64, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64),
    (DType::String, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING),
    (DType::Bool, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL),
    (DType::F16, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16),
    (DType::F64, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE),
    (DType::U32, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32),
    (DType::U64, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64),
    (DType::C64, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64),
    (DType::C128, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128),
    (DType::BF16, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16),
    (DType::F8E4M3FN, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN),
    (DType::F8E4M3FNUZ, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ),
    (DType::F8E5M2, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2),
    (DType::F8E5M2FNUZ, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ),
    (DType::U4, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4),
    (DType::I4, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4),
    (DType::F4E2M1, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1),
    (DType::U2, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2),
    (DType::I2, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2),
    (DType::F8E8M0, ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0),
];

fn element_type(dtype: DType) -> ElementType {
    let found = ELEMENT_TYPES.iter().find(|(known, _)| *known == dtype);
    found.map_or(ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, |(_, element)| *element)
}

fn dtype_from(element: ElementType) -> Option<DType> {
    ELEMENT_TYPES.iter().find(|(_, known)| *known == element).map(|(dtype, _)| *dtype)
}
