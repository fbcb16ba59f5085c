//! Mutates headers of messages and has them parsed: nothing may panic, allocate much, or be
//! believed that does not hold.
//!
//! The headers are built by hand after the tables at the head of `src/layout.rs`, so that these are
//! checked too. `TESSERA_FUZZ_SECONDS` says for how long (5 unless told), `TESSERA_FUZZ_SEED` from
//! where, and `TESSERA_FUZZ_CASE` repeats one case of a seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::Any;
use std::hint::black_box;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::network::Network;
use common::random::Random;
use tessera_core::{DType, PoolId, PoolSlot, element_count};
use tessera_tensormq::layout::{HeaderView, MAX_RANK, TensorDescriptor, TensorPlace, VERSION};
use tessera_tensormq::{Deadline, TraceContext};

const NETWORK: Network = Network::Tcp;

/// Most bytes that reading a header may ask for at once. The largest is the list of the tensors
/// that are there; how many and how large ones it promises, and how long a route, must not be
/// believed to this.
const MOST_AT_ONCE: usize = 1 << 15;
/// Bytes of a header before its route.
const PREFIX: usize = 104;

/// The largest allocation since it was last set to 0.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Measured;

// SAFETY: the system's allocator does the work with what it is given; this only looks on.
unsafe impl GlobalAlloc for Measured {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the memory came from `alloc` above, that is from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Measured = Measured;

/// Integers that arithmetic stumbles over; truncated where there is less room.
const EXTREMES: [u64; 22] = [
    0,
    1,
    2,
    3,
    7,
    8,
    32,
    33,
    56,
    PREFIX as u64,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    1 << 63,
    u64::MAX,
];

/// A tensor, field by field as the table has them.
#[derive(Default)]
struct RawTensor {
    dtype: u8,
    place: u8,
    bytes: u64,
    owner: u64,
    pool: u64,
    number: u32,
    generation: u32,
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
}

impl RawTensor {
    fn write(&self, header: &mut Vec<u8>) {
        header.extend([self.dtype, self.shape.len() as u8, self.place, 0, 0, 0, 0, 0]);
        header.extend(self.bytes.to_le_bytes());
        header.extend(self.owner.to_le_bytes());
        header.extend(self.pool.to_le_bytes());
        header.extend(self.number.to_le_bytes());
        header.extend(self.generation.to_le_bytes());
        header.extend(self.offset.to_le_bytes());
        header.extend([0u8; 8]);
        for value in self.shape.iter().chain(&self.strides) {
            header.extend(value.to_le_bytes());
        }
    }
}

/// A header, field by field as the table has them.
#[derive(Default)]
struct RawHeader {
    flags: u16,
    task: String,
    route: Vec<u8>,
    request: u128,
    deadline: u64,
    trace: [u8; 16],
    span: [u8; 8],
    trace_flags: u8,
    sequence: u64,
    accepted: u64,
    made: u64,
    tensors: Vec<RawTensor>,
}

impl RawHeader {
    fn bytes(&self) -> Vec<u8> {
        let mut route_and_task = self.route.clone();
        route_and_task.extend(self.task.bytes());
        route_and_task.resize(route_and_task.len().next_multiple_of(8), 0);
        let start = PREFIX + route_and_task.len();
        let mut tensors = Vec::new();
        for tensor in &self.tensors {
            tensor.write(&mut tensors);
        }

        let mut header = b"TsMQ".to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend(self.flags.to_le_bytes());
        header.extend(((start + tensors.len()) as u32).to_le_bytes());
        header.extend((self.task.len() as u16).to_le_bytes());
        header.extend((self.tensors.len() as u16).to_le_bytes());
        header.extend((self.route.len() as u32).to_le_bytes());
        header.extend((start as u32).to_le_bytes());
        header.extend(self.request.to_le_bytes());
        header.extend(self.deadline.to_le_bytes());
        header.extend(self.trace);
        header.extend(self.span);
        header.extend([self.trace_flags, 0, 0, 0, 0, 0, 0, 0]);
        header.extend(self.sequence.to_le_bytes());
        header.extend(self.accepted.to_le_bytes());
        header.extend(self.made.to_le_bytes());
        header.extend(route_and_task);
        header.extend(tensors);
        header
    }
}

/// A tensor in a frame, its elements one after the other.
fn frame(dtype: DType, shape: &[u64], bytes: u64, number: u32) -> RawTensor {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let (dtype, shape) = (dtype.to_onnx() as u8, shape.to_vec());
    RawTensor { dtype, shape, strides, bytes, number, ..RawTensor::default() }
}

/// The same tensor in a buffer of a pool.
fn pooled(tensor: RawTensor) -> RawTensor {
    let (owner, pool, generation, offset) = (0xfeed_beef, 2, 9, 4096);
    RawTensor { place: 1, owner, pool, generation, offset, ..tensor }
}

/// A message as a unit sends it to the next on its host.
fn typical() -> RawHeader {
    RawHeader {
        flags: 1,
        task: "ants".to_owned(),
        route: b"\x00a source route\xff\xfe".to_vec(),
        request: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        deadline: 1 << 50,
        trace: *b"0123456789abcdef",
        span: *b"01234567",
        trace_flags: 1,
        sequence: 42,
        accepted: 1 << 48,
        made: 1 << 49,
        tensors: vec![
            pooled(frame(DType::F32, &[1, 3, 8, 8], 768, 5)),
            pooled(frame(DType::I64, &[4], 32, 6)),
        ],
    }
}

/// The headers that the mutations begin from.
fn seeds() -> Vec<Vec<u8>> {
    // As it goes to another host: frames, times that remain and have passed, and every kind of
    // tensor.
    let strided = RawTensor { strides: vec![1, 4], ..frame(DType::I16, &[3, 2], 14, 0) };
    let spread = RawTensor { strides: vec![5, 1], ..frame(DType::U8, &[4, 3], 18, 1) };
    let network = RawHeader {
        flags: 3,
        deadline: 2_000_000_000,
        accepted: 3_000_000,
        made: 1_000_000,
        tensors: vec![
            strided,
            spread,
            frame(DType::I4, &[3], 2, 2),
            frame(DType::String, &[2], 11, 3),
            frame(DType::F64, &[0, 5], 0, 4),
            frame(DType::Bool, &[], 1, 5),
        ],
        ..typical()
    };
    let long = RawHeader {
        task: "étape ".repeat(8),
        route: (0..=255).collect(),
        tensors: (0..16).map(|number| frame(DType::U8, &[2], 2, number)).collect(),
        ..RawHeader::default()
    };
    let deep = RawHeader {
        tensors: vec![frame(DType::C128, &[1; MAX_RANK], 16, 0)],
        ..RawHeader::default()
    };
    // Nobody who waits for it, and it goes to another host.
    let reply = RawHeader { flags: 2, route: vec![0xff; 5], accepted: 7, ..RawHeader::default() };
    let all = [RawHeader::default(), typical(), network, long, deep, reply];
    all.iter().map(RawHeader::bytes).collect()
}

/// Changes a header somewhere.
fn mutate(header: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(header.len() + 1);
    let length = random.below(24usize.min(header.len() - at + 1));
    match random.below(9) {
        0 if at < header.len() => header[at] ^= 1 << random.below(8),
        1 if at < header.len() => header[at] = random.next() as u8,
        2 => header.truncate(at),
        3 => {
            // The head of one header, the tail of another.
            header.truncate(at);
            header.extend_from_slice(&other[random.below(other.len())..]);
        }
        4 => {
            // A piece of another header in the place of a piece of this one.
            let from = random.below(other.len());
            let piece = &other[from..other.len().min(from + length)];
            let end = header.len().min(at + piece.len());
            header[at..end].copy_from_slice(&piece[..end - at]);
        }
        5 => {
            let new: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            drop(header.splice(at..at, new));
        }
        6 => drop(header.drain(at..at + length)),
        _ => {
            let size = [2, 4, 8][random.below(3)];
            let at = at / size * size;
            let mut value = EXTREMES[random.below(EXTREMES.len())];
            if random.one_in(4) {
                // Just before and just after what matters to this very header.
                value = (header.len() as u64).wrapping_add(random.below(17) as u64).wrapping_sub(8);
            }
            if let Some(target) = header.get_mut(at..at + size) {
                target.copy_from_slice(&value.to_le_bytes()[..size]);
            }
        }
    }
}

/// One case: a header, changed.
fn case(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut header = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut header, other, random);
    }
    // Most would be refused for their first bytes or their length alone, and reach nothing else.
    if header.len() >= 12 && !random.one_in(8) {
        header[..4].copy_from_slice(b"TsMQ");
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        let len = header.len() as u32;
        header[8..12].copy_from_slice(&len.to_le_bytes());
    }
    header
}

fn assert_sound(tensor: &TensorDescriptor) {
    let TensorDescriptor { dtype, shape, strides, bytes, place } = tensor;
    assert!(shape.len() <= MAX_RANK && shape.len() == strides.len());
    if let TensorPlace::Slot { offset, .. } = place {
        assert!(offset.checked_add(*bytes as u64).is_some(), "{tensor:?}");
    }
    let count = element_count(shape).unwrap();
    if tensor.is_contiguous() {
        // Strings have no size that follows from their shape.
        assert_eq!(dtype.byte_len(count).unwrap_or(*bytes), *bytes, "{tensor:?}");
    } else {
        let width = dtype.bits_per_element().unwrap() / 8;
        let last = shape.iter().zip(strides).try_fold(0usize, |last, (size, stride)| {
            last.checked_add((size - 1).checked_mul(*stride)?)
        });
        let end = last.and_then(|last| last.checked_mul(width)?.checked_add(width));
        assert!(end.is_some_and(|end| end <= *bytes), "{tensor:?}");
    }
}

/// Reads all that there is to a header; returns whether it was believed.
fn read(header: &[u8]) -> bool {
    let view = match HeaderView::parse(header) {
        Ok(view) => view,
        Err(error) => {
            let error = error.to_string();
            assert!(!error.is_empty() && !error.contains('\n'), "{error:?}");
            return false;
        }
    };
    black_box((view.request(), view.deadline(), view.trace(), view.sequence()));
    black_box((view.accepted(), view.made()));
    let route = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
    assert_eq!(view.route().len(), route as usize);
    assert!(PREFIX + view.route().len() + view.task().len() <= header.len());
    assert_eq!(view.route(), &header[PREFIX..PREFIX + view.route().len()]);
    let mut tensors = 0;
    for tensor in view.tensors() {
        assert_sound(&tensor);
        tensors += 1;
    }
    assert_eq!(tensors, u16::from_le_bytes([header[14], header[15]]));
    true
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something that is no text")
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is \"{text}\", expected a number")))
}

#[test]
fn no_header_makes_it_panic_or_allocate_much() {
    let seconds = setting("TESSERA_FUZZ_SECONDS").unwrap_or(5);
    let seed = setting("TESSERA_FUZZ_SEED").unwrap_or(20_261_115);
    let only = setting("TESSERA_FUZZ_CASE");
    println!("TESSERA_FUZZ_SEED={seed}");
    let seeds = seeds();
    for seed in &seeds {
        assert!(read(seed), "{seed:02x?}");
    }
    let started = Instant::now();
    let first = only.unwrap_or(0);
    let (mut number, mut believed) = (first, 0);
    while started.elapsed() < Duration::from_secs(seconds) {
        let header = case(&seeds, &mut Random::new(seed, number));
        let again = || format!("again with TESSERA_FUZZ_SEED={seed} TESSERA_FUZZ_CASE={number}");
        LARGEST.store(0, Ordering::Relaxed);
        match catch_unwind(|| read(&header)) {
            Ok(was_believed) => believed += u64::from(was_believed),
            Err(panic) => {
                panic!("{} at {header:02x?}; {}", said(panic.as_ref()), again());
            }
        }
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest <= MOST_AT_ONCE, "asked for {largest} bytes at {header:02x?}; {}", again());
        number += 1;
        if only.is_some() {
            break;
        }
    }
    let ran = number - first;
    println!("{ran} inputs, {believed} of which were believed");
    assert!(only.is_some() || seconds == 0 || believed > 0, "none of {ran} was believed");
}

#[test]
fn what_the_tables_say_is_what_is_read() {
    let raw = typical();
    let header = raw.bytes();
    let view = HeaderView::parse(&header).unwrap();
    assert_eq!(view.request(), raw.request);
    assert_eq!(view.task(), "ants");
    assert_eq!(view.route(), raw.route);
    assert_eq!(view.deadline().unwrap().nanoseconds(), raw.deadline);
    assert_eq!((view.accepted(), view.made()), (raw.accepted, raw.made));
    let trace = TraceContext { trace: raw.trace, span: raw.span, flags: raw.trace_flags };
    assert_eq!(view.trace(), trace);
    assert_eq!(view.sequence(), raw.sequence);
    let place = |slot| {
        let pool = PoolId { owner: 0xfeed_beef, number: 2 };
        TensorPlace::Slot { slot: PoolSlot { pool, slot, generation: 9 }, offset: 4096 }
    };
    let expected = [
        TensorDescriptor::contiguous(DType::F32, &[1, 3, 8, 8], 768, place(5)),
        TensorDescriptor::contiguous(DType::I64, &[4], 32, place(6)),
    ];
    assert_eq!(view.tensors().collect::<Vec<_>>(), expected);
}

#[test]
fn a_time_that_remains_is_counted_from_when_it_is_read() {
    let remaining = Duration::from_secs(3600);
    let deadline = remaining.as_nanos() as u64;
    let header = RawHeader { flags: 3, deadline, ..typical() }.bytes();
    let left = HeaderView::parse(&header).unwrap().deadline().unwrap().remaining();
    assert!(left <= remaining && left > remaining / 2);
}

#[test]
fn times_that_have_passed_are_counted_from_when_they_are_read() {
    let (accepted, made) = (20_000_000_000, 10_000_000_000);
    for flags in [2, 3] {
        let deadline = if flags == 3 { 1_000_000_000 } else { 0 };
        let header = RawHeader { flags, deadline, accepted, made, ..typical() }.bytes();
        let view = HeaderView::parse(&header).unwrap();
        let before = Deadline::now().nanoseconds();
        let read = [view.accepted(), view.made()];
        let after = Deadline::now().nanoseconds();
        for (time, ago) in read.into_iter().zip([accepted, made]) {
            let expected = before.saturating_sub(ago)..=after.saturating_sub(ago);
            assert!(expected.contains(&time), "{time} is not in {expected:?}");
        }
    }
}
