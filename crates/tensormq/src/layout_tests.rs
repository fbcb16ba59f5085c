//! The layout of a header from the inside: what is written comes back, and nothing else is
//! believed.

use std::hint::black_box;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_core::{DType, Error, ErrorKind, PoolId, PoolSlot, element_count};

use crate::ids::{RequestId, TraceContext};
use crate::layout::{
    Envelope, HeaderView, MAX_HEADER, MAX_RANK, MAX_TENSORS, TensorDescriptor, TensorPlace,
    TimeEncoding, VERSION,
};
use crate::message::Message;
use crate::wait::Deadline;

/// Where the route begins, as the head of `layout.rs` has it.
const PREFIX: usize = 104;
/// Bytes of a tensor's description without its shape and strides, as the head has it.
const DESCRIPTOR: usize = 56;

/// Nanoseconds that no test needs from writing a header to reading it.
const A_WHILE: u64 = 60_000_000_000;

/// Everything that goes into a header.
#[derive(Clone, Debug)]
struct Sample {
    request: u128,
    task: String,
    route: Vec<u8>,
    deadline: Option<u64>,
    trace: TraceContext,
    accepted: u64,
    made: u64,
    sequence: u64,
    tensors: Vec<TensorDescriptor>,
}

impl Sample {
    fn envelope(&self) -> Envelope {
        let mut envelope = Envelope::new(self.request, &self.task, &self.route).unwrap();
        envelope.set_deadline(self.deadline.map(Deadline::from_nanoseconds));
        envelope.set_trace(self.trace);
        envelope.set_times(self.accepted, self.made);
        envelope
    }

    /// As one has it who received it.
    fn message(&self) -> Message {
        let (envelope, tensors) = (self.envelope(), Vec::new());
        Message { envelope, tensors, receipt: None, is_early_send: false }
    }

    fn header(&self) -> Vec<u8> {
        self.envelope()
            .encode_header(self.sequence, TimeEncoding::HostClock, &self.tensors)
            .unwrap()
    }

    fn assert_is(&self, view: &HeaderView<'_>) {
        assert_eq!(view.request(), self.request);
        assert_eq!(view.task(), self.task);
        assert_eq!(view.route(), self.route);
        assert_eq!(view.deadline().map(Deadline::nanoseconds), self.deadline);
        assert_eq!(view.trace(), self.trace);
        assert_eq!((view.accepted(), view.made()), (self.accepted, self.made));
        assert_eq!(view.sequence(), self.sequence);
        assert_eq!(view.tensors().collect::<Vec<_>>(), self.tensors);
    }
}

/// Elements from the first to the last that a tensor with these strides reaches.
fn extent(shape: &[usize], strides: &[usize]) -> usize {
    shape.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1
}

fn strided(
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    place: TensorPlace,
) -> TensorDescriptor {
    let bytes = extent(&shape, &strides) * dtype.byte_len(1).unwrap();
    TensorDescriptor { dtype, shape, strides, bytes, place }
}

/// A message with every kind of tensor in it.
fn typical() -> Sample {
    let pool = PoolId { owner: 0x0123_4567_89ab_cdef, number: 3 };
    let place = TensorPlace::Slot { slot: PoolSlot { pool, slot: 5, generation: 6 }, offset: 64 };
    Sample {
        request: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        task: "ants".to_owned(),
        route: b"\x00a source route\xff\xfe".to_vec(),
        deadline: Some(1 << 50),
        trace: TraceContext { trace: [7; 16], span: [9; 8], flags: 1 },
        accepted: 1 << 48,
        made: 1 << 49,
        sequence: 42,
        tensors: vec![
            TensorDescriptor::contiguous(DType::F32, &[2, 3], 24, place),
            strided(DType::I16, vec![3, 2], vec![1, 4], TensorPlace::Frame(0)),
            strided(DType::U8, vec![4, 3], vec![5, 1], TensorPlace::Frame(1)),
            TensorDescriptor::contiguous(DType::I4, &[3], 2, TensorPlace::Frame(2)),
            TensorDescriptor::contiguous(DType::String, &[2], 11, TensorPlace::Frame(3)),
            TensorDescriptor::contiguous(DType::F64, &[0, 5], 0, place),
            TensorDescriptor::contiguous(DType::Bool, &[], 1, TensorPlace::Frame(4)),
        ],
    }
}

/// A header with a route, a task and no tensors.
fn with_route(task: &str, route: &[u8]) -> Vec<u8> {
    Envelope::new(1, task, route).unwrap().encode_header(1, TimeEncoding::HostClock, &[]).unwrap()
}

/// A message of one tensor, no route and no name, so that the tensor begins where the prefix ends.
fn with_tensor(tensor: TensorDescriptor) -> Vec<u8> {
    Envelope::new(1, "", &[]).unwrap().encode_header(1, TimeEncoding::HostClock, &[tensor]).unwrap()
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
    match HeaderView::parse(header) {
        Ok(_) => panic!("believed {header:02x?}"),
        Err(error) => error,
    }
}

/// What holds of everything that is believed, whoever wrote it.
fn assert_sound(view: &HeaderView<'_>) {
    black_box((view.request(), view.deadline(), view.trace(), view.sequence()));
    black_box((view.task().len(), view.route().len(), view.accepted(), view.made()));
    let tensors: Vec<TensorDescriptor> = view.tensors().collect();
    for tensor in &tensors {
        let TensorDescriptor { dtype, shape, strides, bytes, place } = tensor;
        assert_eq!(shape.len(), strides.len());
        if let TensorPlace::Slot { offset, .. } = place {
            assert!(offset.checked_add(*bytes as u64).is_some(), "{tensor:?}");
        }
        let count = element_count(shape).unwrap();
        if tensor.is_contiguous() {
            // Strings have no size that follows from their shape.
            let expected = dtype.byte_len(count).unwrap_or(*bytes);
            assert_eq!(expected, *bytes, "{tensor:?}");
        } else {
            let size = dtype.bits_per_element().unwrap() / 8;
            let last = shape.iter().zip(strides).try_fold(0usize, |last, (size, stride)| {
                last.checked_add((size - 1).checked_mul(*stride)?)
            });
            let end = last.and_then(|last| last.checked_mul(size)?.checked_add(size));
            assert!(end.is_some_and(|end| end <= *bytes), "{tensor:?}");
        }
    }
    // Whoever passes it on writes a header that is believed too, and says the same.
    let again =
        view.envelope().encode_header(view.sequence(), TimeEncoding::HostClock, &tensors).unwrap();
    let again = HeaderView::parse(&again).unwrap();
    assert_eq!(again.request(), view.request());
    assert_eq!(again.task(), view.task());
    assert_eq!(again.route(), view.route());
    assert_eq!(again.trace(), view.trace());
    assert_eq!(again.sequence(), view.sequence());
    assert_eq!(again.tensors().collect::<Vec<_>>(), tensors);
    // What another host told counts from when it was read, which goes on.
    for (kept, told) in [(again.accepted(), view.accepted()), (again.made(), view.made())] {
        assert!(kept <= told && told - kept < A_WHILE, "{kept} of {told}");
    }
    assert_eq!(again.deadline().is_some(), view.deadline().is_some());
    assert!(again.deadline() <= view.deadline());
}

fn any_text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..12).prop_map(|text| text.into_iter().collect::<String>())
}

/// Any bytes, of which none mean anything: also none at all, and what looks like a header.
fn any_route() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => Just(Vec::new()),
        6 => vec(any::<u8>(), 1..80),
        1 => Just(with_route("task", b"route")),
    ]
}

fn any_dtype() -> impl Strategy<Value = DType> {
    (1..=26i32).prop_map(|number| DType::from_onnx(number).unwrap())
}

fn any_place() -> impl Strategy<Value = TensorPlace> {
    prop_oneof![
        any::<u32>().prop_map(TensorPlace::Frame),
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>()).prop_map(
            |(owner, number, slot, generation, offset)| {
                let pool = PoolId { owner, number };
                TensorPlace::Slot { slot: PoolSlot { pool, slot, generation }, offset }
            }
        ),
    ]
}

/// Sizes small enough that the count of a tensor of the highest rank is a number.
fn any_shape() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![1 => Just(0usize), 30 => 1usize..=3], 0..=MAX_RANK)
}

fn any_descriptor() -> impl Strategy<Value = TensorDescriptor> {
    (any_dtype(), any_shape(), any::<bool>(), vec(0usize..=9, MAX_RANK), any::<u16>(), any_place())
        .prop_map(|(dtype, shape, with_strides, mut strides, text, place)| {
            let whole = dtype.bits_per_element().is_some_and(|bits| bits % 8 == 0);
            let count = element_count(&shape).unwrap();
            strides.truncate(shape.len());
            let spread = || strided(DType::U8, shape.clone(), strides.clone(), place).bytes;
            // Fewer bytes than elements would repeat some, which is refused.
            let mut descriptor = if with_strides && whole && count > 0 && spread() >= count {
                strided(dtype, shape, strides, place)
            } else {
                // Strings are as long as they are.
                let bytes = dtype.byte_len(count).unwrap_or(usize::from(text));
                TensorDescriptor::contiguous(dtype, &shape, bytes, place)
            };
            let most = u64::MAX - descriptor.bytes as u64;
            if let TensorPlace::Slot { offset, .. } = &mut descriptor.place {
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
        any_route(),
        proptest::option::of(any::<u64>()),
        trace,
        (any::<u64>(), any::<u64>()),
        any::<u64>(),
        vec(any_descriptor(), 0..5),
    )
        .prop_map(|(request, task, route, deadline, trace, times, sequence, tensors)| {
            let (accepted, made) = times;
            Sample { request, task, route, deadline, trace, accepted, made, sequence, tensors }
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
        let view = HeaderView::parse(&header).unwrap();
        sample.assert_is(&view);
        assert_sound(&view);
    }

    #[test]
    fn a_header_is_as_long_as_its_table_says(sample in any_sample()) {
        let tensors: usize =
            sample.tensors.iter().map(|tensor| DESCRIPTOR + 16 * tensor.shape.len()).sum();
        let len = (PREFIX + sample.route.len() + sample.task.len()).next_multiple_of(8) + tensors;
        prop_assert_eq!(sample.header().len(), len);
    }

    #[test]
    fn what_was_read_without_its_tensors_is_what_was_written(sample in any_sample()) {
        let header = sample.header();
        let view = HeaderView::parse(&header).unwrap();
        prop_assert_eq!(view.envelope(), sample.envelope());
    }

    #[test]
    fn a_message_is_forwarded_with_its_route_and_only_made_anew(sample in any_sample()) {
        let mut message = sample.message();
        for hop in 0..3 {
            // What it says of itself is what is read from what is sent.
            let header =
                message.envelope.encode_header(sample.sequence, TimeEncoding::HostClock, &sample.tensors).unwrap();
            let made = if hop == 0 { sample.made } else { message.made() };
            Sample { made, ..sample.clone() }.assert_is(&HeaderView::parse(&header).unwrap());
            prop_assert_eq!(message.request(), RequestId(sample.request));
            prop_assert_eq!(message.task(), &sample.task);
            prop_assert_eq!(message.route(), &sample.route);
            prop_assert_eq!(message.deadline().map(Deadline::nanoseconds), sample.deadline);
            prop_assert_eq!(message.trace(), sample.trace);
            prop_assert_eq!((message.accepted(), message.made()), (sample.accepted, made));
            let before = Deadline::now().nanoseconds();
            message = message.forward_with(Vec::new());
            let after = Deadline::now().nanoseconds();
            prop_assert!((before..=after).contains(&message.made()));
        }
    }

    #[test]
    fn another_route_leaves_everything_of_the_request_as_it_is(
        sample in any_sample(),
        route in any_route(),
    ) {
        let message = sample.message();
        let before = Deadline::now().nanoseconds();
        let next = message.with_route(&route).unwrap();
        let after = Deadline::now().nanoseconds();
        prop_assert_eq!(next.request(), RequestId(sample.request));
        prop_assert_eq!(next.task(), &sample.task);
        prop_assert_eq!(next.route(), &route);
        prop_assert_eq!(next.deadline().map(Deadline::nanoseconds), sample.deadline);
        prop_assert_eq!(next.trace(), sample.trace);
        prop_assert_eq!(next.accepted(), sample.accepted);
        prop_assert!((before..=after).contains(&next.made()));
        prop_assert!(next.tensors().is_empty());
        let header =
            next.envelope.encode_header(sample.sequence, TimeEncoding::HostClock, &sample.tensors).unwrap();
        let sent = Sample { route, made: next.made(), ..sample.clone() };
        sent.assert_is(&HeaderView::parse(&header).unwrap());
        // It is written as one that had this route from the start.
        prop_assert_eq!(header, sent.header());
        // The one that it was made from is what it was, and so is one with that route again.
        prop_assert_eq!(&message.envelope, &sample.envelope());
        let back = next.with_route(&sample.route).unwrap();
        let expected = Sample { made: back.made(), ..sample }.envelope();
        prop_assert_eq!(back.envelope, expected);
    }

    #[test]
    fn routes_of_any_length_and_any_bytes_come_back(
        task in any_text(),
        route in vec(any::<u8>(), 0..5000),
    ) {
        let header = with_route(&task, &route);
        let view = HeaderView::parse(&header).unwrap();
        prop_assert_eq!((view.task(), view.route()), (task.as_str(), route.as_slice()));
        let kept = view.envelope();
        prop_assert_eq!(kept.view().route(), route);
    }

    #[test]
    fn times_for_another_host_are_told_as_how_long_ago_they_were(
        accepted in any::<u64>(),
        made in any::<u64>(),
        deadline in proptest::option::of(any::<u64>()),
    ) {
        let before = Deadline::now().nanoseconds();
        let (accepted, made) = (accepted % (before + 1), made % (before + 1));
        let mut envelope = Envelope::new(1, "task", b"route").unwrap();
        envelope.set_times(accepted, made);
        envelope.set_deadline(deadline.map(Deadline::from_nanoseconds));
        let header = envelope.encode_header(1, TimeEncoding::Relative, &[]).unwrap();
        let after = Deadline::now().nanoseconds();
        prop_assert_eq!(header[6], if deadline.is_some() { 3 } else { 2 });
        let told = |offset: usize| u64::from_le_bytes(header[offset..offset + 8].try_into().unwrap());
        prop_assert!((before - accepted..=after - accepted).contains(&told(88)));
        prop_assert!((before - made..=after - made).contains(&told(96)));
        // Both are told as of the same moment.
        prop_assert_eq!(accepted.wrapping_add(told(88)), made.wrapping_add(told(96)));
        prop_assert_eq!(told(40) == 0, deadline.is_none_or(|deadline| deadline <= after));

        // The time on the way is not known, so what was can only become later.
        let view = HeaderView::parse(&header).unwrap();
        for (time, read) in [(accepted, view.accepted()), (made, view.made())] {
            prop_assert!(read >= time && read - time < A_WHILE);
        }
        // Kept, they are points in time that run on no longer, by this host's clock.
        let kept = view.envelope();
        let (accepted, made) = (kept.view().accepted(), kept.view().made());
        std::thread::sleep(Duration::from_micros(1));
        prop_assert_eq!((kept.view().accepted(), kept.view().made()), (accepted, made));
        let again = kept.encode_header(1, TimeEncoding::HostClock, &[]).unwrap();
        prop_assert_eq!(again[6], u8::from(deadline.is_some()));
        let again = HeaderView::parse(&again).unwrap();
        prop_assert_eq!((again.accepted(), again.made()), (accepted, made));
    }

    #[test]
    fn times_from_another_host_are_rebased_to_the_clock_of_the_reader(
        accepted_ago in prop_oneof![0..1_000_000_000u64, any::<u64>()],
        made_ago in prop_oneof![0..1_000_000_000u64, any::<u64>()],
        remaining in prop_oneof![0..1_000_000_000_000u64, any::<u64>()],
    ) {
        // As a host writes it whose clock says anything: only what passed and what remains counts.
        let mut header = with_route("task", b"route");
        put(&mut header, 6, &3u16.to_le_bytes());
        put(&mut header, 40, &remaining.to_le_bytes());
        put(&mut header, 88, &accepted_ago.to_le_bytes());
        put(&mut header, 96, &made_ago.to_le_bytes());
        let view = HeaderView::parse(&header).unwrap();
        let read = |view: &HeaderView<'_>| {
            (view.accepted(), view.made(), view.deadline().unwrap().nanoseconds())
        };
        // What is further back than this host's clock goes, or further ahead, is at its end.
        let expected = |now: u64| {
            let ago = [accepted_ago, made_ago].map(|ago| now.saturating_sub(ago));
            (ago[0], ago[1], now.saturating_add(remaining))
        };
        let low = expected(Deadline::now().nanoseconds());
        let envelope = view.envelope();
        let (direct, kept) = (read(&view), read(&envelope.view()));
        let high = expected(Deadline::now().nanoseconds());
        for (accepted, made, deadline) in [direct, kept] {
            prop_assert!((low.0..=high.0).contains(&accepted));
            prop_assert!((low.1..=high.1).contains(&made));
            prop_assert!((low.2..=high.2).contains(&deadline));
        }
        // Who passes it on says when it was accepted, and is believed on this host and the next.
        let message = Message { envelope, tensors: Vec::new(), receipt: None, is_early_send: false };
        let (accepted, _, deadline) = read(&message.envelope.view());
        let now = Deadline::now().nanoseconds();
        for next in [message.forward_with(Vec::new()), message.with_route(b"another").unwrap()] {
            prop_assert_eq!(next.accepted(), accepted);
            prop_assert_eq!(next.deadline().unwrap().nanoseconds(), deadline);
            prop_assert!(next.made() >= now && next.made() - now < A_WHILE);
            let header = next.envelope.encode_header(1, TimeEncoding::Relative, &[]).unwrap();
            let told = HeaderView::parse(&header).unwrap().accepted();
            prop_assert!(told >= accepted && told - accepted < A_WHILE);
        }
    }

    #[test]
    fn a_deadline_for_another_host_starts_where_it_is_read(seconds in 1u64..1_000_000) {
        let duration = Duration::from_secs(seconds);
        let deadline = Deadline::after(duration);
        let mut envelope = Envelope::new(1, "task", &[]).unwrap();
        envelope.set_deadline(Some(deadline));
        let header = envelope.encode_header(1, TimeEncoding::Relative, &[]).unwrap();
        prop_assert_eq!(header[6], 3);
        let told = u64::from_le_bytes(header[40..48].try_into().unwrap());
        prop_assert!(Duration::from_nanos(told) <= duration);
        let view = HeaderView::parse(&header).unwrap();
        // The time on the way is not known, so the deadline can only become later.
        let read = view.deadline().unwrap();
        prop_assert!(read >= deadline);
        prop_assert!(read.nanoseconds() - deadline.nanoseconds() < A_WHILE);
        // Kept, it is a point in time and runs on no longer.
        let kept = view.envelope();
        prop_assert_eq!(kept.view().deadline(), kept.view().deadline());
        let again = kept.encode_header(1, TimeEncoding::HostClock, &[]).unwrap();
        prop_assert_eq!(HeaderView::parse(&again).unwrap().deadline(), kept.view().deadline());
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
            if let Ok(view) = HeaderView::parse(&header) {
                assert_sound(&view);
            }
            header[offset] ^= change;
        }
    }

    #[test]
    fn elements_are_gathered_from_where_the_strides_say(
        dtype in any_dtype().prop_filter("strides are in whole bytes", |dtype| {
            dtype.bits_per_element().is_some_and(|bits| bits % 8 == 0)
        }),
        axes in vec((1usize..=4, 0usize..=6), 0..=4),
    ) {
        let (shape, strides): (Vec<usize>, Vec<usize>) = axes.into_iter().unzip();
        let tensor = strided(dtype, shape, strides, TensorPlace::Frame(0));
        let source: Vec<u8> = (0..tensor.bytes).map(|at| (at * 31 + at / 251) as u8).collect();
        let elements: Vec<&[u8]> = source.chunks(dtype.byte_len(1).unwrap()).collect();
        let expected = gather_naively(&tensor.shape, &tensor.strides, 0, &elements);
        prop_assert_eq!(tensor.gather_elements(&source).unwrap(), expected);
        // The last byte belongs to the last element.
        let error = tensor.gather_elements(&source[..source.len() - 1]).unwrap_err();
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
    let repeated = strided(DType::U16, vec![2, 2], vec![0, 1], TensorPlace::Frame(0));
    assert_eq!(repeated.gather_elements(&[1, 2, 3, 4]).unwrap(), [1, 2, 3, 4, 1, 2, 3, 4]);
    let every_third = strided(DType::U8, vec![3], vec![3], TensorPlace::Frame(0));
    assert_eq!(every_third.gather_elements(&[1, 0, 0, 2, 0, 0, 3]).unwrap(), [1, 2, 3]);
    let empty = TensorDescriptor::contiguous(DType::U8, &[2, 0], 0, TensorPlace::Frame(0));
    assert!(empty.gather_elements(&[]).unwrap().is_empty());
}

#[test]
fn every_single_changed_byte_is_refused_or_harmless() {
    let sample = typical();
    let mut header = sample.header();
    sample.assert_is(&HeaderView::parse(&header).unwrap());
    for offset in 0..header.len() {
        for change in 1..=255u8 {
            header[offset] ^= change;
            if let Ok(view) = HeaderView::parse(&header) {
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
            let bytes = dtype.byte_len(count).unwrap_or(17);
            let tensor = TensorDescriptor::contiguous(dtype, &shape, bytes, TensorPlace::Frame(0));
            let header = with_tensor(tensor.clone());
            let view = HeaderView::parse(&header).unwrap();
            assert_eq!(view.tensors().collect::<Vec<_>>(), [tensor]);
        }
    }
}

#[test]
fn the_length_of_a_tensor_must_fit_its_shape() {
    let place = TensorPlace::Frame(0);
    for (dtype, shape, bytes) in [
        (DType::F32, vec![2usize, 3], 23),
        (DType::F32, vec![2, 3], 25),
        (DType::I4, vec![3], 3),
        (DType::U2, vec![5], 1),
        (DType::F64, vec![0], 8),
        (DType::U8, vec![usize::MAX, 2], 0),
        (DType::C128, vec![usize::MAX], usize::MAX),
    ] {
        refused(&with_tensor(TensorDescriptor::contiguous(dtype, &shape, bytes, place)));
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
        refused(&with_tensor(TensorDescriptor { dtype, shape, strides, bytes, place }));
    }
}

#[test]
fn a_tensor_that_would_end_past_the_end_of_memory_is_refused() {
    let slot = PoolSlot { pool: PoolId { owner: 1, number: 2 }, slot: 3, generation: 4 };
    let at = |offset| {
        with_tensor(TensorDescriptor::contiguous(
            DType::U8,
            &[8],
            8,
            TensorPlace::Slot { slot, offset },
        ))
    };
    assert!(HeaderView::parse(&at(u64::MAX - 8)).is_ok());
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
    let tensor = TensorDescriptor::contiguous(DType::U8, &[4], 4, TensorPlace::Frame(0));
    let header = task.encode_header(1, TimeEncoding::HostClock, &[tensor]).unwrap();
    let tensor = PREFIX + 8;
    let of_prefix = (73..80).chain(PREFIX + 3..PREFIX + 8);
    // Of a frame: the reserved bytes, pool, generation, offset, and the fence.
    let of_tensor = (3..8).chain(16..32).chain(36..56).map(|offset| tensor + offset);
    for offset in of_prefix.chain(of_tensor) {
        let mut header = header.clone();
        assert_eq!(header[offset], 0, "{offset}");
        for value in [1, 0x80, 0xff] {
            header[offset] = value;
            refused(&header);
        }
    }
    // The fence of a tensor in a pool: host memory has none.
    let slot = PoolSlot { pool: PoolId { owner: 1, number: 2 }, slot: 3, generation: 4 };
    let place = TensorPlace::Slot { slot, offset: 0 };
    let mut header = with_tensor(TensorDescriptor::contiguous(DType::U8, &[4], 4, place));
    for offset in PREFIX + 48..PREFIX + 56 {
        header[offset] = 1;
        refused(&header);
        header[offset] = 0;
    }
    assert!(HeaderView::parse(&header).is_ok());
}

#[test]
fn flags_without_a_meaning_are_refused() {
    let mut header = typical().header();
    for flags in 0..=u16::MAX {
        put(&mut header, 6, &flags.to_le_bytes());
        // This one has a deadline, and must say so.
        let known = [1, 3].contains(&flags);
        assert_eq!(HeaderView::parse(&header).is_ok(), known, "flags {flags:#x}");
    }
    // Without one, times can be told either way, and 0 is a deadline too.
    put(&mut header, 40, &[0; 8]);
    for flags in 0..=u16::MAX {
        put(&mut header, 6, &flags.to_le_bytes());
        let view = HeaderView::parse(&header);
        assert_eq!(view.is_ok(), flags < 4, "flags {flags:#x}");
        if let Ok(view) = view {
            assert_eq!(view.deadline().is_some(), flags & 1 != 0, "flags {flags:#x}");
        }
    }
}

#[test]
fn lengths_of_the_route_that_lie_are_refused() {
    // Route and name fill what they have to the last byte, so that not even padding is there to
    // be claimed, with nothing after them, with a tensor, and with many.
    let scalar = TensorDescriptor::contiguous(DType::U8, &[], 1, TensorPlace::Frame(0));
    for (route, count) in [(5, 0), (5, 1), (13, 0), (13, 1), (205, 20)] {
        let envelope = Envelope::new(1, "ant", &vec![b'r'; route]).unwrap();
        let tensors = vec![scalar.clone(); count];
        let header = envelope.encode_header(1, TimeEncoding::HostClock, &tensors).unwrap();
        assert_eq!(HeaderView::parse(&header).unwrap().route().len(), route);
        let near = (0..=2 * header.len() as u64).filter(|lie| *lie != route as u64);
        let far = (8..=32).flat_map(|bits| (1u64 << bits) - 120..1 << bits);
        for lie in near.chain(far.filter(|lie| *lie > header.len() as u64)) {
            let mut header = header.clone();
            put(&mut header, 16, &(lie as u32).to_le_bytes());
            refused(&header);
            // The same where the tensors begin after it, as far as a header can say so.
            let end = (PREFIX as u64 + lie + 3).next_multiple_of(8);
            put(&mut header, 20, &(end as u32).to_le_bytes());
            refused(&header);
        }
    }
}

#[test]
fn lengths_of_the_name_that_lie_are_refused() {
    let header = with_route("ant", b"route");
    for lie in (0..=u16::MAX).filter(|lie| *lie != 3) {
        let mut header = header.clone();
        put(&mut header, 12, &lie.to_le_bytes());
        refused(&header);
        // Together with the route it must not overflow either.
        put(&mut header, 16, &(u32::MAX - u32::from(lie)).to_le_bytes());
        refused(&header);
    }
}

#[test]
fn a_route_that_is_cut_short_is_refused_at_every_length() {
    let route: Vec<u8> = (0..=255).chain(0..=255).collect();
    let header = with_route("", &route);
    for len in 0..header.len() {
        let mut short = header[..len].to_vec();
        refused(&short);
        if len >= PREFIX {
            tell_length(&mut short);
            refused(&short);
            // Not even where the tensors, of which there are none, begin at the cut.
            put(&mut short, 20, &(len as u32).to_le_bytes());
            refused(&short);
        }
    }
}

#[test]
fn a_route_of_every_length_and_every_byte_comes_back() {
    for len in 0..=600usize {
        for task in ["", "a", "größe"] {
            let route: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
            let header = with_route(task, &route);
            assert_eq!(header.len() % 8, 0);
            let view = HeaderView::parse(&header).unwrap();
            assert_eq!((view.task(), view.route()), (task, &route[..]));
        }
    }
    for byte in 0..=255u8 {
        let header = with_route("task", &[byte; 9]);
        let view = HeaderView::parse(&header).unwrap();
        assert_eq!((view.task(), view.route()), ("task", &[byte; 9][..]));
    }
}

#[test]
fn a_route_may_be_as_long_as_a_header_has_room() {
    let usage = |error: Error| assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    for task in ["", "task"] {
        let most = MAX_HEADER - PREFIX - task.len();
        let longest: Vec<u8> = (0..most).map(|at| (at ^ (at >> 8)) as u8).collect();
        let header = with_route(task, &longest);
        assert_eq!(header.len(), MAX_HEADER);
        let view = HeaderView::parse(&header).unwrap();
        assert_eq!(view.task(), task);
        assert!(view.route() == longest);

        let too_long = [&longest[..], &[0]].concat();
        usage(Envelope::new(1, task, &too_long).unwrap_err());
        usage(Message::new(RequestId(1), task, &too_long).unwrap_err());
        let message = Message::new(RequestId(1), task, b"short").unwrap();
        assert!(message.with_route(&longest).unwrap().route() == longest);
        usage(message.with_route(&too_long).unwrap_err());
        assert_eq!(message.route(), b"short");
        // Nothing is left for a tensor.
        let tensor = TensorDescriptor::contiguous(DType::U8, &[], 1, TensorPlace::Frame(0));
        let longest = Envelope::new(1, task, &longest).unwrap();
        usage(longest.encode_header(1, TimeEncoding::HostClock, &[tensor]).unwrap_err());
    }
}

#[test]
fn names_that_are_not_unicode_are_refused_and_routes_that_are_not_are_fine() {
    let header = with_route("éa", b"\xffr");
    assert!(HeaderView::parse(&header).is_ok());
    for byte in 0..=255 {
        let mut route = header.clone();
        put(&mut route, PREFIX, &[byte; 2]);
        assert_eq!(HeaderView::parse(&route).unwrap().task(), "éa");
    }
    for at in 2..5 {
        let mut task = header.clone();
        task[PREFIX + at] = 0xff;
        refused(&task);
    }
    // The same bytes, and a border in the middle of a character, or before what is none.
    for (route, task) in [(3u32, 2u16), (0, 5)] {
        let mut border = header.clone();
        put(&mut border, 16, &route.to_le_bytes());
        put(&mut border, 12, &task.to_le_bytes());
        refused(&border);
    }
    // A border between two characters says something else, and nothing that is wrong.
    for (route, task, name) in [(1u32, 4u16, "réa"), (4, 1, "a"), (5, 0, "")] {
        let mut border = header.clone();
        put(&mut border, 16, &route.to_le_bytes());
        put(&mut border, 12, &task.to_le_bytes());
        assert_eq!(HeaderView::parse(&border).unwrap().task(), name);
    }
}

#[test]
fn a_dtype_or_a_place_that_is_unknown_is_refused() {
    let mut header =
        with_tensor(TensorDescriptor::contiguous(DType::U8, &[4], 4, TensorPlace::Frame(7)));
    for dtype in (0..=255u8).filter(|&dtype| DType::from_onnx(dtype.into()).is_none()) {
        header[PREFIX] = dtype;
        refused(&header);
    }
    header[PREFIX] = DType::U8.to_onnx() as u8;
    for place in 2..=255 {
        header[PREFIX + 2] = place;
        refused(&header);
    }
}

#[test]
fn no_deadline_and_a_deadline_that_has_passed_can_be_told_to_another_host() {
    let mut envelope = Envelope::new(1, "task", &[]).unwrap();
    let header = envelope.encode_header(1, TimeEncoding::Relative, &[]).unwrap();
    assert_eq!(HeaderView::parse(&header).unwrap().deadline(), None);
    envelope.set_deadline(Some(Deadline::from_nanoseconds(0)));
    let header = envelope.encode_header(1, TimeEncoding::Relative, &[]).unwrap();
    assert_eq!(header[40..48], [0; 8]);
    assert!(HeaderView::parse(&header).unwrap().deadline().unwrap().has_passed());
    // As late as can be: the time that remains is added to now without an overflow.
    envelope.set_deadline(Some(Deadline::from_nanoseconds(u64::MAX)));
    let header = envelope.encode_header(1, TimeEncoding::Relative, &[]).unwrap();
    assert!(!HeaderView::parse(&header).unwrap().deadline().unwrap().has_passed());
    envelope.set_deadline(None);
    assert_eq!(envelope.view().deadline(), None);
}

#[test]
fn what_is_too_much_to_write_is_an_error_of_the_caller() {
    let usage = |error: Error| assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    let longest = "x".repeat(usize::from(u16::MAX));
    let too_long = "x".repeat(usize::from(u16::MAX) + 1);

    assert!(Envelope::new(1, &longest, longest.as_bytes()).is_ok());
    usage(Envelope::new(1, &too_long, &[]).unwrap_err());
    // Each is short enough, and both together are not.
    usage(Envelope::new(1, &longest, &vec![0; MAX_HEADER - longest.len()]).unwrap_err());
    usage(Message::new(RequestId(1), &too_long, &[]).unwrap_err());

    let envelope = Envelope::new(1, "task", &[]).unwrap();
    let encode =
        |tensors: &[TensorDescriptor]| envelope.encode_header(1, TimeEncoding::HostClock, tensors);
    let scalar = TensorDescriptor::contiguous(DType::U8, &[], 1, TensorPlace::Frame(0));
    let most = vec![scalar; MAX_TENSORS];
    let header = encode(&most).unwrap();
    assert_eq!(HeaderView::parse(&header).unwrap().tensors().count(), MAX_TENSORS);
    usage(encode(&[&most[..], &most[..1]].concat()).unwrap_err());

    let deep =
        |rank| TensorDescriptor::contiguous(DType::U8, &vec![1; rank], 1, TensorPlace::Frame(0));
    assert!(encode(&[deep(MAX_RANK)]).is_ok());
    usage(encode(&[deep(MAX_RANK + 1)]).unwrap_err());

    // Each part is short enough, and the whole header is not.
    let envelope = Envelope::new(1, "task", &vec![0; MAX_HEADER / 2]).unwrap();
    let tensors = vec![deep(MAX_RANK); MAX_TENSORS];
    usage(envelope.encode_header(1, TimeEncoding::HostClock, &tensors).unwrap_err());
}

#[test]
fn more_tensors_than_there_may_be_are_refused() {
    let scalar = TensorDescriptor::contiguous(DType::U8, &[], 1, TensorPlace::Frame(0));
    let most = vec![scalar; MAX_TENSORS];
    let envelope = Envelope::new(1, "task", &[]).unwrap();
    let mut header = envelope.encode_header(1, TimeEncoding::HostClock, &most).unwrap();
    header.extend_from_within(header.len() - DESCRIPTOR..);
    put(&mut header, 14, &(MAX_TENSORS as u16 + 1).to_le_bytes());
    tell_length(&mut header);
    refused(&header);
    // It is the number: with one tensor taken off it is a header again.
    header.truncate(header.len() - DESCRIPTOR);
    put(&mut header, 14, &(MAX_TENSORS as u16).to_le_bytes());
    tell_length(&mut header);
    assert!(HeaderView::parse(&header).is_ok());
}

#[test]
fn more_dimensions_than_there_may_be_are_refused() {
    let one = [1; MAX_RANK];
    let mut header =
        with_tensor(TensorDescriptor::contiguous(DType::U8, &one, 1, TensorPlace::Frame(0)));
    assert!(HeaderView::parse(&header).is_ok());
    header[PREFIX + 1] = MAX_RANK as u8 + 1;
    // One more size and one more stride, all of which are 1.
    header.extend_from_within(header.len() - 16..);
    tell_length(&mut header);
    refused(&header);
}

#[test]
fn a_header_longer_than_any_is_refused() {
    // A route that is as long as it says, whoever wrote it.
    let routed = |len: usize| {
        let mut header = with_route("", &[]);
        header.resize(PREFIX + len, 0xff);
        put(&mut header, 16, &(len as u32).to_le_bytes());
        put(&mut header, 20, &((PREFIX + len) as u32).to_le_bytes());
        tell_length(&mut header);
        header
    };
    let (longest, too_long) = (routed(MAX_HEADER - PREFIX), routed(MAX_HEADER - PREFIX + 8));
    assert!(longest.len() == MAX_HEADER && too_long.len() > MAX_HEADER);
    assert_eq!(HeaderView::parse(&longest).unwrap().route().len(), MAX_HEADER - PREFIX);
    for header in [too_long, routed(2 * MAX_HEADER), routed(1 << 24)] {
        // Not `refused`, which would show all its bytes.
        assert!(HeaderView::parse(&header).is_err(), "{} bytes", header.len());
    }
}

#[test]
fn a_message_was_accepted_and_made_when_it_was_new() {
    let before = Deadline::now().nanoseconds();
    let message = Message::new(RequestId(1), "task", b"route").unwrap();
    let after = Deadline::now().nanoseconds();
    assert!((before..=after).contains(&message.accepted()));
    assert_eq!(message.accepted(), message.made());
    // Nothing else that is set on it changes that.
    let (accepted, made) = (message.accepted(), message.made());
    let message = message
        .with_deadline(Deadline::after(Duration::from_secs(1)))
        .with_trace(TraceContext { trace: [7; 16], span: [9; 8], flags: 1 })
        .with_tensors(Vec::new());
    assert_eq!((message.accepted(), message.made()), (accepted, made));
    // A request can have been accepted before its first message was made.
    for earlier in [0, accepted / 2, u64::MAX] {
        let message = Message::new(RequestId(1), "task", b"route").unwrap();
        let made = message.made();
        let message = message.with_accepted(earlier);
        assert_eq!((message.accepted(), message.made()), (earlier, made));
    }
}

#[test]
fn times_by_the_clock_of_the_host_come_back_as_they_were() {
    let all = [0, 1, 1 << 40, u64::MAX - 1, u64::MAX];
    for (accepted, made) in all.into_iter().flat_map(|time| all.map(|other| (time, other))) {
        for deadline in [None, Some(0), Some(u64::MAX)] {
            let sample = Sample { accepted, made, deadline, ..typical() };
            let header = sample.header();
            assert_eq!(header[6], u8::from(deadline.is_some()));
            sample.assert_is(&HeaderView::parse(&header).unwrap());
        }
    }
}

#[test]
fn times_that_are_still_to_come_are_told_to_another_host_as_now() {
    // Clocks of a host go alike, but whoever sets these may set anything.
    let mut envelope = Envelope::new(1, "task", b"route").unwrap();
    envelope.set_times(u64::MAX, u64::MAX - 1);
    let header = envelope.encode_header(1, TimeEncoding::Relative, &[]).unwrap();
    assert_eq!(header[88..104], [0; 16]);
    let before = Deadline::now().nanoseconds();
    let view = HeaderView::parse(&header).unwrap();
    let (accepted, made) = (view.accepted(), view.made());
    let after = Deadline::now().nanoseconds();
    assert!((before..=after).contains(&accepted) && (before..=after).contains(&made));
}
