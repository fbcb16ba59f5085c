//! The layout of a header from the inside: what is written comes back, and nothing else is believed.

use std::hint::black_box;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_core::{DType, Error, ErrorKind, PoolId, PoolSlot, element_count};

use crate::layout::{
    Clock, Descriptor, Envelope, MAX_HEADER, MAX_RANK, MAX_STEPS, MAX_TENSORS, Place, VERSION, View,
};
use crate::message::{Message, RequestId, TraceContext};
use crate::wait::Deadline;

/// Where the texts begin, as the head of `layout.rs` has it.
const PREFIX: usize = 96;
/// Bytes of a tensor's description without its shape and strides, as the head has it.
const DESCRIPTOR: usize = 56;

/// Everything that goes into a header.
#[derive(Clone, Debug)]
struct Sample {
    request: u128,
    task: String,
    path: Vec<String>,
    /// Steps of the path that are done.
    done: usize,
    deadline: Option<u64>,
    trace: TraceContext,
    sequence: u64,
    tensors: Vec<Descriptor>,
}

impl Sample {
    fn envelope(&self) -> Envelope {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let mut envelope = Envelope::new(self.request, &self.task, &path).unwrap();
        envelope.set_deadline(self.deadline.map(Deadline::from_nanoseconds));
        envelope.set_trace(self.trace);
        for _ in 0..self.done {
            envelope.advance();
        }
        envelope
    }

    fn header(&self) -> Vec<u8> {
        self.envelope().encode(self.sequence, Clock::Host, &self.tensors).unwrap()
    }

    fn assert_is(&self, view: &View<'_>) {
        assert_eq!(view.request(), self.request);
        assert_eq!(view.task(), self.task);
        assert_eq!(view.path().collect::<Vec<_>>(), self.path[self.done..]);
        assert_eq!(view.deadline().map(Deadline::nanoseconds), self.deadline);
        assert_eq!(view.trace(), self.trace);
        assert_eq!(view.sequence(), self.sequence);
        assert_eq!(view.tensors().collect::<Vec<_>>(), self.tensors);
    }
}

/// Elements from the first to the last that a tensor with these strides reaches.
fn extent(shape: &[usize], strides: &[usize]) -> usize {
    shape.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1
}

fn strided(dtype: DType, shape: Vec<usize>, strides: Vec<usize>, place: Place) -> Descriptor {
    let bytes = extent(&shape, &strides) * dtype.bytes(1).unwrap();
    Descriptor { dtype, shape, strides, bytes, place }
}

/// A message with every kind of tensor in it.
fn typical() -> Sample {
    let pool = PoolId { owner: 0x0123_4567_89ab_cdef, number: 3 };
    let place = Place::Slot { slot: PoolSlot { pool, slot: 5, generation: 6 }, offset: 64 };
    Sample {
        request: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        task: "ants".to_owned(),
        path: ["vision/0", "größe", "exit"].map(str::to_owned).to_vec(),
        done: 1,
        deadline: Some(1 << 50),
        trace: TraceContext { trace: [7; 16], span: [9; 8], flags: 1 },
        sequence: 42,
        tensors: vec![
            Descriptor::contiguous(DType::F32, &[2, 3], 24, place),
            strided(DType::I16, vec![3, 2], vec![1, 4], Place::Frame(0)),
            strided(DType::U8, vec![4, 3], vec![5, 1], Place::Frame(1)),
            Descriptor::contiguous(DType::I4, &[3], 2, Place::Frame(2)),
            Descriptor::contiguous(DType::String, &[2], 11, Place::Frame(3)),
            Descriptor::contiguous(DType::F64, &[0, 5], 0, place),
            Descriptor::contiguous(DType::Bool, &[], 1, Place::Frame(4)),
        ],
    }
}

/// A message of one tensor and no texts, so that the tensor begins where the prefix ends.
fn with_tensor(tensor: Descriptor) -> Vec<u8> {
    Envelope::new(1, "", &[]).unwrap().encode(1, Clock::Host, &[tensor]).unwrap()
}

fn put(header: &mut [u8], offset: usize, value: &[u8]) {
    header[offset..offset + value.len()].copy_from_slice(value);
}

/// Makes the header say the length that it has, so that nothing is refused for that alone.
fn tell_length(header: &mut [u8]) {
    let len = header.len() as u32;
    put(header, 8, &len.to_le_bytes());
}

fn refused(header: &[u8]) -> Error {
    match View::parse(header) {
        Ok(_) => panic!("believed {header:02x?}"),
        Err(error) => error,
    }
}

/// What holds of everything that is believed, whoever wrote it.
fn assert_sound(view: &View<'_>) {
    black_box((view.request(), view.deadline(), view.trace(), view.sequence()));
    black_box((view.task().len(), view.path().map(str::len).sum::<usize>()));
    let tensors: Vec<Descriptor> = view.tensors().collect();
    for tensor in &tensors {
        let Descriptor { dtype, shape, strides, bytes, place } = tensor;
        assert_eq!(shape.len(), strides.len());
        if let Place::Slot { offset, .. } = place {
            assert!(offset.checked_add(*bytes as u64).is_some(), "{tensor:?}");
        }
        let count = element_count(shape).unwrap();
        if tensor.is_contiguous() {
            // Strings have no size that follows from their shape.
            let expected = dtype.bytes(count).unwrap_or(*bytes);
            assert_eq!(expected, *bytes, "{tensor:?}");
        } else {
            let size = dtype.bits().unwrap() / 8;
            let last = shape.iter().zip(strides).try_fold(0usize, |last, (size, stride)| {
                last.checked_add((size - 1).checked_mul(*stride)?)
            });
            let end = last.and_then(|last| last.checked_mul(size)?.checked_add(size));
            assert!(end.is_some_and(|end| end <= *bytes), "{tensor:?}");
        }
    }
    // Whoever passes it on writes a header that is believed too, and says the same.
    let again = view.envelope().encode(view.sequence(), Clock::Host, &tensors).unwrap();
    let again = View::parse(&again).unwrap();
    assert_eq!(again.request(), view.request());
    assert_eq!(again.task(), view.task());
    assert!(again.path().eq(view.path()));
    assert_eq!(again.trace(), view.trace());
    assert_eq!(again.sequence(), view.sequence());
    assert_eq!(again.tensors().collect::<Vec<_>>(), tensors);
}

fn any_text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..12).prop_map(|text| text.into_iter().collect::<String>())
}

fn any_dtype() -> impl Strategy<Value = DType> {
    (1..=26i32).prop_map(|number| DType::from_onnx(number).unwrap())
}

fn any_place() -> impl Strategy<Value = Place> {
    prop_oneof![
        any::<u32>().prop_map(Place::Frame),
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>()).prop_map(
            |(owner, number, slot, generation, offset)| {
                let pool = PoolId { owner, number };
                Place::Slot { slot: PoolSlot { pool, slot, generation }, offset }
            }
        ),
    ]
}

/// Sizes small enough that the count of a tensor of the highest rank is a number.
fn any_shape() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![1 => Just(0usize), 30 => 1usize..=3], 0..=MAX_RANK)
}

fn any_descriptor() -> impl Strategy<Value = Descriptor> {
    (any_dtype(), any_shape(), any::<bool>(), vec(0usize..=9, MAX_RANK), any::<u16>(), any_place())
        .prop_map(|(dtype, shape, with_strides, mut strides, text, place)| {
            let whole = dtype.bits().is_some_and(|bits| bits % 8 == 0);
            let count = element_count(&shape).unwrap();
            strides.truncate(shape.len());
            let spread = || strided(DType::U8, shape.clone(), strides.clone(), place).bytes;
            // Fewer bytes than elements would repeat some, which is refused.
            let mut descriptor = if with_strides && whole && count > 0 && spread() >= count {
                strided(dtype, shape, strides, place)
            } else {
                // Strings are as long as they are.
                let bytes = dtype.bytes(count).unwrap_or(usize::from(text));
                Descriptor::contiguous(dtype, &shape, bytes, place)
            };
            let most = u64::MAX - descriptor.bytes as u64;
            if let Place::Slot { offset, .. } = &mut descriptor.place {
                *offset = most.min(*offset);
            }
            descriptor
        })
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let trace = (any::<[u8; 16]>(), any::<[u8; 8]>(), any::<u8>())
        .prop_map(|(trace, span, flags)| TraceContext { trace, span, flags });
    (
        any::<u128>(),
        any_text(),
        vec(any_text(), 0..6),
        0usize..6,
        proptest::option::of(any::<u64>()),
        trace,
        any::<u64>(),
        vec(any_descriptor(), 0..5),
    )
        .prop_map(|(request, task, path, done, deadline, trace, sequence, tensors)| {
            let done = done.min(path.len());
            Sample { request, task, path, done, deadline, trace, sequence, tensors }
        })
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_message_comes_back_field_by_field(sample in any_sample()) {
        let header = sample.header();
        let view = View::parse(&header).unwrap();
        sample.assert_is(&view);
        assert_sound(&view);
    }

    #[test]
    fn a_header_is_as_long_as_its_table_says(sample in any_sample()) {
        let text: usize = sample.path.iter().map(|step| step.len() + 2).sum();
        let text = text + sample.task.len();
        let tensors: usize =
            sample.tensors.iter().map(|tensor| DESCRIPTOR + 16 * tensor.shape.len()).sum();
        let len = (PREFIX + text).next_multiple_of(8) + tensors;
        prop_assert_eq!(sample.header().len(), len);
    }

    #[test]
    fn what_was_read_without_its_tensors_is_what_was_written(sample in any_sample()) {
        let header = sample.header();
        let view = View::parse(&header).unwrap();
        prop_assert_eq!(view.envelope(), sample.envelope());
    }

    #[test]
    fn a_message_goes_onward_step_by_step(sample in any_sample()) {
        let path: Vec<&str> = sample.path.iter().map(String::as_str).collect();
        let mut message = Message::new(RequestId(sample.request), &sample.task, &path)
            .unwrap()
            .with_trace(sample.trace);
        if let Some(deadline) = sample.deadline {
            message = message.with_deadline(Deadline::from_nanoseconds(deadline));
        }
        // Two more than there are: past the last step nothing is left, and it stays so.
        for done in 0..path.len() + 2 {
            let rest = &path[done.min(path.len())..];
            let remains: Vec<&str> = message.path().collect();
            prop_assert_eq!(remains, rest);
            prop_assert_eq!(message.request(), RequestId(sample.request));
            prop_assert_eq!(message.task(), &sample.task);
            prop_assert_eq!(message.deadline().map(Deadline::nanoseconds), sample.deadline);
            prop_assert_eq!(message.trace(), sample.trace);
            let header =
                message.envelope.encode(sample.sequence, Clock::Host, &sample.tensors).unwrap();
            let sent = Sample { done: done.min(path.len()), ..sample.clone() };
            sent.assert_is(&View::parse(&header).unwrap());
            message = message.onward(Vec::new());
        }
    }

    #[test]
    fn a_deadline_for_another_host_starts_where_it_is_read(seconds in 1u64..1_000_000) {
        let duration = Duration::from_secs(seconds);
        let deadline = Deadline::after(duration);
        let mut envelope = Envelope::new(1, "task", &[]).unwrap();
        envelope.set_deadline(Some(deadline));
        let header = envelope.encode(1, Clock::Remaining, &[]).unwrap();
        prop_assert_eq!(header[6], 3);
        let told = u64::from_le_bytes(header[40..48].try_into().unwrap());
        prop_assert!(Duration::from_nanos(told) <= duration);
        let view = View::parse(&header).unwrap();
        // The time on the way is not known, so the deadline can only become later.
        let read = view.deadline().unwrap();
        prop_assert!(read >= deadline);
        prop_assert!(read.nanoseconds() - deadline.nanoseconds() < 60_000_000_000);
        // Kept, it is a point in time and runs on no longer.
        let kept = view.envelope();
        prop_assert_eq!(kept.view().deadline(), kept.view().deadline());
        let again = kept.encode(1, Clock::Host, &[]).unwrap();
        prop_assert_eq!(View::parse(&again).unwrap().deadline(), kept.view().deadline());
    }

    #[test]
    fn a_header_that_is_cut_short_is_refused_at_every_length(sample in any_sample()) {
        let header = sample.header();
        for len in 0..header.len() {
            let mut short = header[..len].to_vec();
            refused(&short);
            if len >= PREFIX {
                tell_length(&mut short);
                refused(&short);
            }
        }
    }

    #[test]
    fn a_header_with_something_after_it_is_refused(
        sample in any_sample(),
        rest in prop_oneof![vec(any::<u8>(), 1..80), vec(Just(0u8), 1..80)],
    ) {
        let mut header = sample.header();
        header.extend(rest);
        refused(&header);
        tell_length(&mut header);
        refused(&header);
    }

    #[test]
    fn a_changed_byte_anywhere_is_refused_or_harmless(
        sample in any_sample(),
        change in 1u8..=255,
    ) {
        let mut header = sample.header();
        for offset in 0..header.len() {
            header[offset] ^= change;
            if let Ok(view) = View::parse(&header) {
                assert_sound(&view);
            }
            header[offset] ^= change;
        }
    }

    #[test]
    fn elements_are_gathered_from_where_the_strides_say(
        dtype in any_dtype().prop_filter("strides are in whole bytes", |dtype| {
            dtype.bits().is_some_and(|bits| bits % 8 == 0)
        }),
        axes in vec((1usize..=4, 0usize..=6), 0..=4),
    ) {
        let (shape, strides): (Vec<usize>, Vec<usize>) = axes.into_iter().unzip();
        let tensor = strided(dtype, shape, strides, Place::Frame(0));
        let source: Vec<u8> = (0..tensor.bytes).map(|at| (at * 31 + at / 251) as u8).collect();
        let elements: Vec<&[u8]> = source.chunks(dtype.bytes(1).unwrap()).collect();
        let expected = gather_naively(&tensor.shape, &tensor.strides, 0, &elements);
        prop_assert_eq!(tensor.gather(&source).unwrap(), expected);
        // The last byte belongs to the last element.
        let error = tensor.gather(&source[..source.len() - 1]).unwrap_err();
        prop_assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

/// What gathering means: along each axis in turn, element by element.
fn gather_naively(shape: &[usize], strides: &[usize], start: usize, elements: &[&[u8]]) -> Vec<u8> {
    match (shape.split_first(), strides.split_first()) {
        (Some((&size, shape)), Some((&stride, strides))) => (0..size)
            .flat_map(|index| gather_naively(shape, strides, start + index * stride, elements))
            .collect(),
        _ => elements[start].to_vec(),
    }
}

#[test]
fn elements_can_be_repeated_and_left_out() {
    let repeated = strided(DType::U16, vec![2, 2], vec![0, 1], Place::Frame(0));
    assert_eq!(repeated.gather(&[1, 2, 3, 4]).unwrap(), [1, 2, 3, 4, 1, 2, 3, 4]);
    let every_third = strided(DType::U8, vec![3], vec![3], Place::Frame(0));
    assert_eq!(every_third.gather(&[1, 0, 0, 2, 0, 0, 3]).unwrap(), [1, 2, 3]);
    let empty = Descriptor::contiguous(DType::U8, &[2, 0], 0, Place::Frame(0));
    assert!(empty.gather(&[]).unwrap().is_empty());
}

#[test]
fn every_single_changed_byte_is_refused_or_harmless() {
    let sample = typical();
    let mut header = sample.header();
    sample.assert_is(&View::parse(&header).unwrap());
    for offset in 0..header.len() {
        for change in 1..=255u8 {
            header[offset] ^= change;
            if let Ok(view) = View::parse(&header) {
                assert_sound(&view);
            }
            header[offset] ^= change;
        }
    }
    assert_eq!(header, sample.header());
}

#[test]
fn every_dtype_and_every_rank_comes_back() {
    for number in 1..=26 {
        let dtype = DType::from_onnx(number).unwrap();
        for rank in 0..=MAX_RANK {
            // One axis that is not of size 1, somewhere: its stride must not be lost.
            let mut shape = vec![1; rank];
            if let Some(size) = shape.get_mut(rank / 2) {
                *size = 3;
            }
            let count = element_count(&shape).unwrap();
            let bytes = dtype.bytes(count).unwrap_or(17);
            let tensor = Descriptor::contiguous(dtype, &shape, bytes, Place::Frame(0));
            let header = with_tensor(tensor.clone());
            let view = View::parse(&header).unwrap();
            assert_eq!(view.tensors().collect::<Vec<_>>(), [tensor]);
        }
    }
}

#[test]
fn the_length_of_a_tensor_must_fit_its_shape() {
    let place = Place::Frame(0);
    for (dtype, shape, bytes) in [
        (DType::F32, vec![2usize, 3], 23),
        (DType::F32, vec![2, 3], 25),
        (DType::I4, vec![3], 3),
        (DType::U2, vec![5], 1),
        (DType::F64, vec![0], 8),
        (DType::U8, vec![usize::MAX, 2], 0),
        (DType::C128, vec![usize::MAX], usize::MAX),
    ] {
        refused(&with_tensor(Descriptor::contiguous(dtype, &shape, bytes, place)));
    }
    for (dtype, shape, strides, bytes) in [
        // One element further than the bytes go, and one element less far.
        (DType::U16, vec![3, 2], vec![1, 4], 12),
        (DType::U16, vec![3, 2], vec![1, 4], 16),
        (DType::U16, vec![3, 2], vec![usize::MAX, 1], 14),
        (DType::U16, vec![3], vec![usize::MAX / 2], 2),
        // Elements that don't start at a byte, and elements that have no size.
        (DType::I4, vec![2], vec![2], 2),
        (DType::String, vec![2], vec![2], 3),
    ] {
        refused(&with_tensor(Descriptor { dtype, shape, strides, bytes, place }));
    }
}

#[test]
fn a_tensor_that_would_end_past_the_end_of_memory_is_refused() {
    let slot = PoolSlot { pool: PoolId { owner: 1, number: 2 }, slot: 3, generation: 4 };
    let at = |offset| {
        with_tensor(Descriptor::contiguous(DType::U8, &[8], 8, Place::Slot { slot, offset }))
    };
    assert!(View::parse(&at(u64::MAX - 8)).is_ok());
    refused(&at(u64::MAX - 7));
    refused(&at(u64::MAX));
}

#[test]
fn another_version_is_refused_and_both_are_named() {
    let mut header = typical().header();
    for version in (0..=u16::MAX).filter(|version| *version != VERSION) {
        put(&mut header, 4, &version.to_le_bytes());
        let error = refused(&header);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.to_string(),
            format!(
                "the peer speaks version {version} of TensorMQ, this process version {VERSION}"
            )
        );
    }
}

#[test]
fn another_magic_is_refused() {
    let mut header = typical().header();
    header[3] = b'q';
    assert_eq!(refused(&header).kind(), ErrorKind::Invalid);
    refused(&[]);
    refused(&[0; PREFIX]);
}

#[test]
fn bytes_that_must_be_zero_are_refused_where_they_are_not() {
    // A task of 3 bytes leaves 5 before the tensor.
    let task = Envelope::new(1, "ant", &[]).unwrap();
    let tensor = Descriptor::contiguous(DType::U8, &[4], 4, Place::Frame(0));
    let header = task.encode(1, Clock::Host, &[tensor]).unwrap();
    let tensor = PREFIX + 8;
    let of_prefix = (73..80).chain(88..96).chain(PREFIX + 3..PREFIX + 8);
    // Of a frame: the reserved bytes, pool, generation, offset, and the event.
    let of_tensor = (3..8).chain(16..32).chain(36..56).map(|offset| tensor + offset);
    for offset in of_prefix.chain(of_tensor) {
        let mut header = header.clone();
        assert_eq!(header[offset], 0, "{offset}");
        for value in [1, 0x80, 0xff] {
            header[offset] = value;
            refused(&header);
        }
    }
    // The event of a tensor in a pool: host memory has none.
    let slot = PoolSlot { pool: PoolId { owner: 1, number: 2 }, slot: 3, generation: 4 };
    let place = Place::Slot { slot, offset: 0 };
    let mut header = with_tensor(Descriptor::contiguous(DType::U8, &[4], 4, place));
    for offset in PREFIX + 48..PREFIX + 56 {
        header[offset] = 1;
        refused(&header);
        header[offset] = 0;
    }
    assert!(View::parse(&header).is_ok());
}

#[test]
fn flags_without_a_meaning_are_refused() {
    let mut header = typical().header();
    for flags in 0..=u16::MAX {
        put(&mut header, 6, &flags.to_le_bytes());
        // A time that remains is one only where there is a deadline, and this one has one.
        let known = [1, 3].contains(&flags);
        assert_eq!(View::parse(&header).is_ok(), known, "flags {flags:#x}");
    }
    put(&mut header, 6, &0u16.to_le_bytes());
    put(&mut header, 40, &[0; 8]);
    assert!(View::parse(&header).is_ok());
}

#[test]
fn more_steps_done_than_there_are_are_refused() {
    let mut header = typical().header();
    put(&mut header, 16, &3u16.to_le_bytes());
    assert_eq!(View::parse(&header).unwrap().path().count(), 0);
    put(&mut header, 16, &4u16.to_le_bytes());
    refused(&header);
}

#[test]
fn names_that_are_not_unicode_are_refused() {
    let header = Envelope::new(1, "task", &["é", "a"]).unwrap();
    let header = header.encode(1, Clock::Host, &[]).unwrap();
    assert!(View::parse(&header).is_ok());
    let mut task = header.clone();
    task[PREFIX + 4] = 0xff;
    refused(&task);
    // The same bytes, and a border in the middle of a character.
    let mut border = header;
    put(&mut border, PREFIX, &1u16.to_le_bytes());
    put(&mut border, PREFIX + 2, &2u16.to_le_bytes());
    refused(&border);
}

#[test]
fn a_dtype_or_a_place_that_is_unknown_is_refused() {
    let mut header = with_tensor(Descriptor::contiguous(DType::U8, &[4], 4, Place::Frame(7)));
    for dtype in (0..=255u8).filter(|&dtype| DType::from_onnx(dtype.into()).is_none()) {
        header[PREFIX] = dtype;
        refused(&header);
    }
    header[PREFIX] = DType::U8.onnx() as u8;
    for place in 2..=255 {
        header[PREFIX + 2] = place;
        refused(&header);
    }
}

#[test]
fn no_deadline_and_a_deadline_that_has_passed_can_be_told_to_another_host() {
    let mut envelope = Envelope::new(1, "task", &[]).unwrap();
    let header = envelope.encode(1, Clock::Remaining, &[]).unwrap();
    assert_eq!(View::parse(&header).unwrap().deadline(), None);
    envelope.set_deadline(Some(Deadline::from_nanoseconds(0)));
    let header = envelope.encode(1, Clock::Remaining, &[]).unwrap();
    assert_eq!(header[40..48], [0; 8]);
    assert!(View::parse(&header).unwrap().deadline().unwrap().has_passed());
    // As late as can be: the time that remains is added to now without an overflow.
    envelope.set_deadline(Some(Deadline::from_nanoseconds(u64::MAX)));
    let header = envelope.encode(1, Clock::Remaining, &[]).unwrap();
    assert!(!View::parse(&header).unwrap().deadline().unwrap().has_passed());
    envelope.set_deadline(None);
    assert_eq!(envelope.view().deadline(), None);
}

#[test]
fn what_is_too_much_to_write_is_an_error_of_the_caller() {
    let usage = |error: Error| assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    let longest = "x".repeat(usize::from(u16::MAX));
    let too_long = "x".repeat(usize::from(u16::MAX) + 1);

    assert!(Envelope::new(1, "task", &[""; MAX_STEPS]).is_ok());
    usage(Envelope::new(1, "task", &[""; MAX_STEPS + 1]).unwrap_err());
    assert!(Envelope::new(1, &longest, &[longest.as_str()]).is_ok());
    usage(Envelope::new(1, &too_long, &[]).unwrap_err());
    usage(Envelope::new(1, "task", &["step", too_long.as_str()]).unwrap_err());
    // Each step is short enough, and all of them together are not.
    usage(Envelope::new(1, "task", &[longest.as_str(); 17]).unwrap_err());
    usage(Message::new(RequestId(1), &too_long, &[]).unwrap_err());

    let envelope = Envelope::new(1, "task", &[]).unwrap();
    let encode = |tensors: &[Descriptor]| envelope.encode(1, Clock::Host, tensors);
    let scalar = Descriptor::contiguous(DType::U8, &[], 1, Place::Frame(0));
    let most = vec![scalar; MAX_TENSORS];
    let header = encode(&most).unwrap();
    assert_eq!(View::parse(&header).unwrap().tensors().count(), MAX_TENSORS);
    usage(encode(&[&most[..], &most[..1]].concat()).unwrap_err());

    let deep = |rank| Descriptor::contiguous(DType::U8, &vec![1; rank], 1, Place::Frame(0));
    assert!(encode(&[deep(MAX_RANK)]).is_ok());
    usage(encode(&[deep(MAX_RANK + 1)]).unwrap_err());

    // Each part is short enough, and the whole header is not.
    let envelope = Envelope::new(1, "task", &[longest.as_str(); 8]).unwrap();
    let tensors = vec![deep(MAX_RANK); MAX_TENSORS];
    usage(envelope.encode(1, Clock::Host, &tensors).unwrap_err());
}

#[test]
fn more_tensors_than_there_may_be_are_refused() {
    let scalar = Descriptor::contiguous(DType::U8, &[], 1, Place::Frame(0));
    let most = vec![scalar; MAX_TENSORS];
    let envelope = Envelope::new(1, "task", &[]).unwrap();
    let mut header = envelope.encode(1, Clock::Host, &most).unwrap();
    header.extend_from_within(header.len() - DESCRIPTOR..);
    put(&mut header, 18, &(MAX_TENSORS as u16 + 1).to_le_bytes());
    tell_length(&mut header);
    refused(&header);
    // It is the number: with one tensor taken off it is a header again.
    header.truncate(header.len() - DESCRIPTOR);
    put(&mut header, 18, &(MAX_TENSORS as u16).to_le_bytes());
    tell_length(&mut header);
    assert!(View::parse(&header).is_ok());
}

#[test]
fn more_dimensions_than_there_may_be_are_refused() {
    let one = [1; MAX_RANK];
    let mut header = with_tensor(Descriptor::contiguous(DType::U8, &one, 1, Place::Frame(0)));
    assert!(View::parse(&header).is_ok());
    header[PREFIX + 1] = MAX_RANK as u8 + 1;
    // One more size and one more stride, all of which are 1.
    header.extend_from_within(header.len() - 16..);
    tell_length(&mut header);
    refused(&header);
}

#[test]
fn more_steps_than_there_may_be_are_refused() {
    // Steps without a letter: their lengths are all that there is of them.
    let steps = |count: usize| {
        let mut header = Envelope::new(1, "", &[]).unwrap().encode(1, Clock::Host, &[]).unwrap();
        header.resize((PREFIX + 2 * count).next_multiple_of(8), 0);
        let len = header.len() as u32;
        put(&mut header, 14, &(count as u16).to_le_bytes());
        put(&mut header, 20, &len.to_le_bytes());
        tell_length(&mut header);
        header
    };
    assert_eq!(View::parse(&steps(MAX_STEPS)).unwrap().path().count(), MAX_STEPS);
    refused(&steps(MAX_STEPS + 1));
    refused(&steps(usize::from(u16::MAX)));
}

#[test]
fn a_header_longer_than_any_is_refused() {
    // Steps of the greatest length, all zeros, which is a character.
    let steps = |count: usize| {
        let mut header = Envelope::new(1, "", &[]).unwrap().encode(1, Clock::Host, &[]).unwrap();
        header.resize(PREFIX + 2 * count, 0xff);
        header.resize((header.len() + count * usize::from(u16::MAX)).next_multiple_of(8), 0);
        let len = header.len() as u32;
        put(&mut header, 14, &(count as u16).to_le_bytes());
        put(&mut header, 20, &len.to_le_bytes());
        tell_length(&mut header);
        header
    };
    let (longest, too_long) = (steps(15), steps(16));
    assert!(longest.len() <= MAX_HEADER && too_long.len() > MAX_HEADER);
    assert_eq!(View::parse(&longest).unwrap().path().count(), 15);
    refused(&too_long);
}
