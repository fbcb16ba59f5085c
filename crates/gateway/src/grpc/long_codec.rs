//! Reads and writes messages; large ones apart from the threads that serve connections.

use std::marker::PhantomData;

use prost::Message;
use tokio::runtime::{Handle, RuntimeFlavor};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Messages with fewer bytes are read and written where they are.
const LEAST_BYTES: usize = 256 << 10;

/// The codec of Protocol Buffers, with large messages out of everybody's way.
#[derive(Debug)]
pub(super) struct LongCodec<Encoded, Decoded>(PhantomData<(Encoded, Decoded)>);

impl<Encoded, Decoded> Default for LongCodec<Encoded, Decoded> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Encoded, Decoded> Codec for LongCodec<Encoded, Decoded>
where
    Encoded: Message + Send + 'static,
    Decoded: Message + Default + Send + 'static,
{
    type Encode = Encoded;
    type Decode = Decoded;
    type Encoder = LongEncoder<ProstEncoder<Encoded>>;
    type Decoder = LongDecoder<ProstDecoder<Decoded>>;

    fn encoder(&mut self) -> Self::Encoder {
        LongEncoder(ProstCodec::<Encoded, Decoded>::default().encoder())
    }

    fn decoder(&mut self) -> Self::Decoder {
        LongDecoder(ProstCodec::<Encoded, Decoded>::default().decoder())
    }
}

/// Writes messages.
#[derive(Debug)]
pub(super) struct LongEncoder<E>(E);

impl<E> Encoder for LongEncoder<E>
where
    E: Encoder<Error = Status>,
    E::Item: Message,
{
    type Item = E::Item;
    type Error = Status;

    fn encode(&mut self, item: E::Item, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        run_apart(item.encoded_len(), || self.0.encode(item, to))
    }

    fn buffer_settings(&self) -> tonic::codec::BufferSettings {
        self.0.buffer_settings()
    }
}

/// Reads messages.
#[derive(Debug)]
pub(super) struct LongDecoder<D>(D);

impl<D: Decoder<Error = Status>> Decoder for LongDecoder<D> {
    type Item = D::Item;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<D::Item>, Status> {
        run_apart(bytes::Buf::remaining(from), || self.0.decode(from))
    }

    fn buffer_settings(&self) -> tonic::codec::BufferSettings {
        self.0.buffer_settings()
    }
}

/// Does work on so many bytes without holding others up.
fn run_apart<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) if bytes >= LEAST_BYTES => tokio::task::block_in_place(work),
        _ => work(),
    }
}
