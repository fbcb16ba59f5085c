//! The layout of a message's header: fixed, versioned, and read in place.
//!
//! The same bytes go through shared memory and over the network. All numbers are little-endian and
//! every part starts at a multiple of 8.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | `TsMQ` |
//! | 4 | 2 | version |
//! | 6 | 2 | flags: 1 there is a deadline, 2 times are relative |
//! | 8 | 4 | bytes of the whole header |
//! | 12 | 2 | bytes of the task's name |
//! | 14 | 2 | tensors |
//! | 16 | 4 | bytes of the source route |
//! | 20 | 4 | offset of the first tensor |
//! | 24 | 16 | request |
//! | 40 | 8 | deadline, ns |
//! | 48 | 16 | trace id |
//! | 64 | 8 | span id |
//! | 72 | 1 | trace flags, then 7 zeros |
//! | 80 | 8 | number of the message in its channel |
//! | 88 | 8 | when the request was accepted, ns |
//! | 96 | 8 | when the message was made, ns |
//! | 104 | | the source route, the task's name, zeros up to a multiple of 8 |
//!
//! Times are by the host's clock. Between hosts they are relative: the deadline is the time that
//! remains, the others are how long ago they were.
//!
//! And for each tensor:
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 1 | dtype, its number in ONNX |
//! | 1 | 1 | rank |
//! | 2 | 1 | place: 0 a frame that follows the header, 1 a buffer of a pool |
//! | 3 | 5 | zeros |
//! | 8 | 8 | bytes |
//! | 16 | 16 | owner and number of the pool |
//! | 32 | 4 | buffer of the pool, or number of the frame |
//! | 36 | 4 | generation of the buffer |
//! | 40 | 8 | offset into the buffer |
//! | 48 | 8 | fence to wait for; 0 none |
//! | 56 | | shape (8 bytes each), then strides in elements (8 bytes each) |
//!
//! [`HeaderView::parse`] checks every field before anything is believed. Strides may leave gaps,
//! and neither repeat elements nor run backwards.

use tessera_core::{DType, Error, PoolId, PoolSlot, Result, element_count};

use crate::ids::TraceContext;
use crate::wait::Deadline;

/// The version of the layout and of the protocols that carry it.
pub const VERSION: u16 = 2;

pub(crate) const MAGIC: [u8; 4] = *b"TsMQ";
const PREFIX_BYTES: usize = 104;
const DESCRIPTOR_BYTES: usize = 56;

/// Longest header that is believed.
pub const MAX_HEADER: usize = 1 << 20;
/// Most tensors of a message.
pub const MAX_TENSORS: usize = 1024;
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 32;

const HAS_DEADLINE: u16 = 1;
const TIMES_ARE_RELATIVE: u16 = 2;

/// Where a tensor's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorPlace {
    /// In a frame that follows the header, by its number.
    Frame(u32),
    /// In a buffer of a pool, so many bytes into it.
    Slot {
        /// The buffer.
        slot: PoolSlot,
        /// Bytes into it.
        offset: u64,
    },
}

/// A tensor as a header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDescriptor {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<usize>,
    /// Bytes from the first to the last.
    pub bytes: usize,
    /// Where they are.
    pub place: TensorPlace,
}

impl TensorDescriptor {
    /// A tensor whose elements lie one after the other.
    pub fn contiguous(dtype: DType, shape: &[usize], bytes: usize, place: TensorPlace) -> Self {
        Self { dtype, shape: shape.to_vec(), strides: row_major(shape), bytes, place }
    }

    /// Whether the elements lie one after the other.
    pub fn is_contiguous(&self) -> bool {
        element_count(&self.shape) == Some(0)
            || row_major(&self.shape)
                .iter()
                .zip(&self.strides)
                .zip(&self.shape)
                .all(|((expected, stride), &size)| size == 1 || expected == stride)
    }

    /// The elements one after the other, copied from `source` where the strides say they are.
    pub(crate) fn gather_elements(&self, source: &[u8]) -> Result<Vec<u8>> {
        let wrong = || Error::invalid("strides that leave the tensor's bytes");
        let size = self.dtype.byte_len(1).ok_or_else(wrong)?;
        let count = element_count(&self.shape).ok_or_else(wrong)?;
        let mut target = Vec::new();
        target
            .try_reserve_exact(count.checked_mul(size).ok_or_else(wrong)?)
            .map_err(|_| wrong())?;
        let mut index = vec![0usize; self.shape.len()];
        for _ in 0..count {
            let element: usize = index.iter().zip(&self.strides).map(|(i, s)| i * s).sum();
            let bytes = source.get(element * size..(element + 1) * size).ok_or_else(wrong)?;
            target.extend_from_slice(bytes);
            for (position, &size) in index.iter_mut().zip(&self.shape).rev() {
                *position += 1;
                if *position < size {
                    break;
                }
                *position = 0;
            }
        }
        Ok(target)
    }

    fn encoded_len(&self) -> usize {
        DESCRIPTOR_BYTES + self.shape.len() * 16
    }
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// The part of a header that stays the same from unit to unit: all but the tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope(Box<[u8]>);

impl Envelope {
    pub(crate) fn new(request: u128, task: &str, route: &[u8]) -> Result<Self> {
        let long = |what: &str, len: usize, most: usize| {
            Error::usage(format!("{what} of {len} is more than {most}"))
        };
        if task.len() > usize::from(u16::MAX) {
            return Err(long("a task's name with a length", task.len(), usize::from(u16::MAX)));
        }
        let len = (PREFIX_BYTES + route.len() + task.len()).next_multiple_of(8);
        if len > MAX_HEADER {
            return Err(long("a header with a length", len, MAX_HEADER));
        }
        let mut bytes = Vec::with_capacity(len);
        bytes.resize(PREFIX_BYTES, 0);
        bytes.extend_from_slice(route);
        bytes.extend_from_slice(task.as_bytes());
        bytes.resize(len, 0);
        write_at(&mut bytes, 0, &MAGIC);
        write_at(&mut bytes, 4, &VERSION.to_le_bytes());
        write_at(&mut bytes, 8, &(len as u32).to_le_bytes());
        write_at(&mut bytes, 12, &(task.len() as u16).to_le_bytes());
        write_at(&mut bytes, 16, &(route.len() as u32).to_le_bytes());
        write_at(&mut bytes, 20, &(len as u32).to_le_bytes());
        write_at(&mut bytes, 24, &request.to_le_bytes());
        Ok(Self(bytes.into()))
    }

    /// The same with another source route.
    pub(crate) fn with_route(&self, route: &[u8]) -> Result<Self> {
        let view = self.view();
        let mut envelope = Self::new(view.request(), view.task(), route)?;
        // Flags, deadline and trace, and when it was accepted.
        for range in [6..8, 40..80, 88..96] {
            let (start, field) = (range.start, &self.0[range]);
            write_at(&mut envelope.0, start, field);
        }
        Ok(envelope)
    }

    pub(crate) fn view(&self) -> HeaderView<'_> {
        HeaderView { bytes: &self.0 }
    }

    pub(crate) fn set_deadline(&mut self, deadline: Option<Deadline>) {
        let flags = if deadline.is_some() { HAS_DEADLINE } else { 0 };
        write_at(&mut self.0, 6, &flags.to_le_bytes());
        let nanoseconds = deadline.map_or(0, Deadline::nanoseconds);
        write_at(&mut self.0, 40, &nanoseconds.to_le_bytes());
    }

    pub(crate) fn set_trace(&mut self, trace: TraceContext) {
        write_at(&mut self.0, 48, &trace.trace);
        write_at(&mut self.0, 64, &trace.span);
        write_at(&mut self.0, 72, &[trace.flags]);
    }

    /// When the request was accepted, and when the message was made, by the host's clock.
    pub(crate) fn set_times(&mut self, accepted: u64, made: u64) {
        write_at(&mut self.0, 88, &accepted.to_le_bytes());
        write_at(&mut self.0, 96, &made.to_le_bytes());
    }

    /// Writes the whole header: this, the message's number, and its tensors.
    pub(crate) fn encode_header(
        &self,
        sequence: u64,
        clock: TimeEncoding,
        tensors: &[TensorDescriptor],
    ) -> Result<Vec<u8>> {
        let len = self.0.len() + tensors.iter().map(TensorDescriptor::encoded_len).sum::<usize>();
        if tensors.len() > MAX_TENSORS {
            let count = tensors.len();
            return Err(Error::usage(format!(
                "a message with {count} tensors; {MAX_TENSORS} at most"
            )));
        }
        if let Some(tensor) = tensors.iter().find(|tensor| tensor.shape.len() > MAX_RANK) {
            let rank = tensor.shape.len();
            return Err(Error::usage(format!("a tensor of rank {rank}; {MAX_RANK} at most")));
        }
        if len > MAX_HEADER {
            return Err(Error::usage(format!("a header of {len} bytes; {MAX_HEADER} at most")));
        }
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&self.0);
        write_at(&mut bytes, 8, &(len as u32).to_le_bytes());
        write_at(&mut bytes, 14, &(tensors.len() as u16).to_le_bytes());
        write_at(&mut bytes, 80, &sequence.to_le_bytes());
        if clock == TimeEncoding::Relative {
            self.encode_relative_times(&mut bytes);
        }
        for tensor in tensors {
            encode_tensor(&mut bytes, tensor);
        }
        Ok(bytes)
    }

    /// Writes times as another host can read them.
    fn encode_relative_times(&self, bytes: &mut [u8]) {
        let (view, now) = (self.view(), Deadline::now().nanoseconds());
        let mut flags = TIMES_ARE_RELATIVE;
        if let Some(deadline) = view.deadline() {
            flags |= HAS_DEADLINE;
            let remaining = u64::try_from(deadline.remaining().as_nanos()).unwrap_or(u64::MAX);
            write_at(bytes, 40, &remaining.to_le_bytes());
        }
        write_at(bytes, 6, &flags.to_le_bytes());
        for (offset, time) in [(88, view.accepted()), (96, view.made())] {
            write_at(bytes, offset, &now.saturating_sub(time).to_le_bytes());
        }
    }
}

/// How a header tells times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeEncoding {
    /// By the clock of the host, which all its processes share.
    HostClock,
    #[cfg_attr(not(feature = "zeromq"), allow(dead_code, reason = "for transports between hosts"))]
    /// As the time that remains, or that has passed, for another host.
    Relative,
}

fn encode_tensor(bytes: &mut Vec<u8>, tensor: &TensorDescriptor) {
    let (kind, pool, number, generation, offset) = match tensor.place {
        TensorPlace::Frame(number) => (0, PoolId { owner: 0, number: 0 }, number, 0, 0),
        TensorPlace::Slot { slot, offset } => (1, slot.pool, slot.slot, slot.generation, offset),
    };
    bytes.extend([tensor.dtype.to_onnx() as u8, tensor.shape.len() as u8, kind, 0, 0, 0, 0, 0]);
    bytes.extend((tensor.bytes as u64).to_le_bytes());
    bytes.extend(pool.owner.to_le_bytes());
    bytes.extend(pool.number.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    for value in tensor.shape.iter().chain(&tensor.strides) {
        bytes.extend((*value as u64).to_le_bytes());
    }
}

fn write_at(bytes: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(target) = bytes.get_mut(offset..offset + value.len()) {
        target.copy_from_slice(value);
    }
}

/// A header that was checked, read where it lies.
#[derive(Clone, Copy, Debug)]
pub struct HeaderView<'a> {
    bytes: &'a [u8],
}

impl<'a> HeaderView<'a> {
    /// Checks every field of a header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        Self::parse_with_tensors(bytes).map(|(view, _)| view)
    }

    /// The same, with the tensors, which checking has read already.
    pub(crate) fn parse_with_tensors(bytes: &'a [u8]) -> Result<(Self, Vec<TensorDescriptor>)> {
        let view = Self { bytes };
        let wrong = |what: &str| Err(Error::invalid(format!("a message's header: {what}")));
        if bytes.len() < PREFIX_BYTES {
            return wrong("cut short");
        }
        if bytes[..4] != MAGIC {
            return wrong("not one of TensorMQ");
        }
        check_version(view.u16_at(4))?;
        if view.u32_at(8) as usize != bytes.len() || bytes.len() > MAX_HEADER {
            return wrong("its length is not what it says");
        }
        let flags = view.u16_at(6);
        if flags & !(HAS_DEADLINE | TIMES_ARE_RELATIVE) != 0 {
            return wrong("unknown flags");
        }
        if bytes[73..80].iter().any(|&byte| byte != 0) {
            return wrong("bytes that must be zero are not");
        }
        if flags & HAS_DEADLINE == 0 && view.u64_at(40) != 0 {
            return wrong("a deadline where it says there is none");
        }
        if usize::from(view.u16_at(14)) > MAX_TENSORS {
            return wrong("too many tensors");
        }
        let task = PREFIX_BYTES.saturating_add(view.u32_at(16) as usize);
        let end = task.saturating_add(usize::from(view.u16_at(12)));
        let tensors = view.u32_at(20) as usize;
        if end > bytes.len() || tensors != end.next_multiple_of(8) || tensors > bytes.len() {
            return wrong("a route and a name that don't end where the tensors begin");
        }
        if std::str::from_utf8(&bytes[task..end]).is_err() {
            return wrong("a name that is not UTF-8");
        }
        if bytes[end..tensors].iter().any(|&byte| byte != 0) {
            return wrong("bytes that must be zero are not");
        }
        let mut offset = tensors;
        let mut descriptors = Vec::new();
        for index in 0..view.u16_at(14) {
            let (descriptor, next) = view
                .parse_tensor(offset)
                .map_err(|what| Error::invalid(format!("tensor {index} of a message: {what}")))?;
            descriptors.push(descriptor);
            offset = next;
        }
        if offset != bytes.len() {
            return wrong("it does not end after the last tensor");
        }
        Ok((view, descriptors))
    }

    /// The request that the message belongs to.
    pub fn request(&self) -> u128 {
        u128::from_le_bytes(self.array_at(24))
    }

    /// The task that the client called.
    pub fn task(&self) -> &'a str {
        let start = PREFIX_BYTES + self.u32_at(16) as usize;
        self.text_at(start, usize::from(self.u16_at(12)))
    }

    /// The source route, which means nothing here.
    pub fn route(&self) -> &'a [u8] {
        let len = self.u32_at(16) as usize;
        self.bytes.get(PREFIX_BYTES..PREFIX_BYTES + len).unwrap_or_default()
    }

    /// When the request was accepted, by this host's clock, in nanoseconds.
    pub fn accepted(&self) -> u64 {
        self.host_time_at(88)
    }

    /// When the message was made, by this host's clock, in nanoseconds.
    pub fn made(&self) -> u64 {
        self.host_time_at(96)
    }

    fn host_time_at(&self, offset: usize) -> u64 {
        let time = self.u64_at(offset);
        if self.u16_at(6) & TIMES_ARE_RELATIVE == 0 {
            return time;
        }
        Deadline::now().nanoseconds().saturating_sub(time)
    }

    /// When the request must be answered, by this host's clock.
    pub fn deadline(&self) -> Option<Deadline> {
        let (nanoseconds, flags) = (self.u64_at(40), self.u16_at(6));
        if flags & HAS_DEADLINE == 0 {
            return None;
        }
        Some(if flags & TIMES_ARE_RELATIVE == 0 {
            Deadline::from_nanoseconds(nanoseconds)
        } else {
            Deadline::after(std::time::Duration::from_nanos(nanoseconds))
        })
    }

    /// Where the request is in a trace.
    pub fn trace(&self) -> TraceContext {
        TraceContext {
            trace: self.array_at(48),
            span: self.array_at(64),
            flags: self.array_at::<1>(72)[0],
        }
    }

    /// The message's number in its channel.
    pub fn sequence(&self) -> u64 {
        u64::from_le_bytes(self.array_at(80))
    }

    /// The tensors.
    pub fn tensors(&self) -> impl Iterator<Item = TensorDescriptor> + use<'a> {
        let view = *self;
        let mut offset = view.u32_at(20) as usize;
        (0..view.u16_at(14)).filter_map(move |_| {
            let (descriptor, next) = view.parse_tensor(offset).ok()?;
            offset = next;
            Some(descriptor)
        })
    }

    /// Everything but the tensors, to keep; times that another host told count from now.
    pub(crate) fn envelope(&self) -> Envelope {
        let len = self.u32_at(20);
        let mut envelope = Envelope(self.bytes[..len as usize].into());
        write_at(&mut envelope.0, 8, &len.to_le_bytes());
        write_at(&mut envelope.0, 14, &0u16.to_le_bytes());
        write_at(&mut envelope.0, 80, &0u64.to_le_bytes());
        envelope.set_deadline(self.deadline());
        envelope.set_times(self.accepted(), self.made());
        envelope
    }

    fn parse_tensor(&self, at: usize) -> Result<(TensorDescriptor, usize), &'static str> {
        let fixed = self.bytes.get(at..).and_then(|rest| rest.get(..DESCRIPTOR_BYTES));
        let fixed = fixed.ok_or("cut short")?;
        let (rank, kind) = (usize::from(fixed[1]), fixed[2]);
        let dtype = DType::from_onnx(i32::from(fixed[0])).ok_or("an unknown dtype")?;
        if rank > MAX_RANK {
            return Err("too many dimensions");
        }
        if fixed[3..8].iter().any(|&byte| byte != 0) {
            return Err("bytes that must be zero are not");
        }
        let end = at + DESCRIPTOR_BYTES + rank * 16;
        if end > self.bytes.len() {
            return Err("cut short");
        }
        let sizes = |start: usize| -> Result<Vec<usize>, &'static str> {
            (0..rank)
                .map(|axis| usize::try_from(self.u64_at(start + 8 * axis)).map_err(|_| "a size"))
                .collect()
        };
        let shape = sizes(at + DESCRIPTOR_BYTES)?;
        let strides = sizes(at + DESCRIPTOR_BYTES + rank * 8)?;
        let bytes = usize::try_from(self.u64_at(at + 8)).map_err(|_| "a length that is no size")?;
        let pool = PoolId { owner: self.u64_at(at + 16), number: self.u64_at(at + 24) };
        let (number, generation) = (self.u32_at(at + 32), self.u32_at(at + 36));
        let offset = self.u64_at(at + 40);
        if self.u64_at(at + 48) != 0 {
            return Err("a fence, which host memory does not have");
        }
        let place = match kind {
            0 if pool.owner == 0 && pool.number == 0 && generation == 0 && offset == 0 => {
                TensorPlace::Frame(number)
            }
            0 => return Err("a frame that claims to be in a pool"),
            1 => TensorPlace::Slot { slot: PoolSlot { pool, slot: number, generation }, offset },
            _ => return Err("an unknown place"),
        };
        if offset.checked_add(bytes as u64).is_none() {
            return Err("an offset past the end of memory");
        }
        let descriptor = TensorDescriptor { dtype, shape, strides, bytes, place };
        check_extent(&descriptor)?;
        Ok((descriptor, end))
    }

    fn array_at<const N: usize>(&self, offset: usize) -> [u8; N] {
        let bytes = self.bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>());
        bytes.copied().unwrap_or([0; N])
    }

    fn u16_at(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.array_at(offset))
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.array_at(offset))
    }

    fn u64_at(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.array_at(offset))
    }

    fn text_at(&self, start: usize, len: usize) -> &'a str {
        let bytes = self.bytes.get(start..start + len).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Whether the bytes of a tensor are what its shape and strides need.
fn check_extent(tensor: &TensorDescriptor) -> Result<(), &'static str> {
    let count = element_count(&tensor.shape).ok_or("more elements than there can be")?;
    if tensor.is_contiguous() {
        // Strings come as one piece of any length, which is taken apart later.
        return match tensor.dtype.bits_per_element() {
            None => Ok(()),
            Some(_) if tensor.dtype.byte_len(count) == Some(tensor.bytes) => Ok(()),
            Some(_) => Err("its length does not fit its shape"),
        };
    }
    let bits = tensor.dtype.bits_per_element().filter(|bits| bits % 8 == 0);
    let bits = bits.ok_or("strides for elements that can't have any")?;
    let last = tensor.shape.iter().zip(&tensor.strides).try_fold(0usize, |last, (size, stride)| {
        last.checked_add((size - 1).checked_mul(*stride)?)
    });
    let extent = last.and_then(|last| last.checked_add(1)?.checked_mul(bits / 8));
    // Strides may skip elements and not repeat them: a few bytes must not claim to be many.
    if tensor.dtype.byte_len(count).is_none_or(|bytes| bytes > tensor.bytes) {
        return Err("more elements than it has bytes for");
    }
    match extent {
        Some(extent) if extent == tensor.bytes => Ok(()),
        _ => Err("its strides leave its bytes"),
    }
}

/// Refuses a peer that speaks another version.
pub(crate) fn check_version(version: u16) -> Result<()> {
    match version {
        VERSION => Ok(()),
        other => Err(Error::unsupported(format!(
            "the peer speaks version {other} of TensorMQ, this process version {VERSION}"
        ))),
    }
}
