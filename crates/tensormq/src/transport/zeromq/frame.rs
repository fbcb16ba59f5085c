//! Frames without a copy: a tensor's memory is lent to libzmq until it is on its way, and what
//! libzmq received is a tensor's memory.

#![allow(unsafe_code, reason = "libzmq takes and gives raw memory")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use bytes::Bytes;
use tessera_core::Tensor;

/// Sends the bytes of a tensor as a frame, without copying them.
pub(super) fn send_tensor(socket: &mut zmq::Socket, tensor: Tensor, flags: i32) -> zmq::Result<()> {
    let Some(bytes) = tensor.bytes() else { return Err(zmq::Error::EINVAL) };
    if bytes.is_empty() {
        return socket.send(zmq::Message::new(), flags);
    }
    let (address, len) = (bytes.as_ptr(), bytes.len());
    let hint = Box::into_raw(Box::new(tensor));
    let mut message = zmq_sys::zmq_msg_t::default();
    // SAFETY: the memory is the tensor's, which nobody writes, and which lives until libzmq calls
    // `free_frame` with the hint, once. libzmq only reads it.
    unsafe {
        let data = address.cast_mut().cast::<c_void>();
        if zmq_sys::zmq_msg_init_data(&mut message, data, len, Some(free_frame), hint.cast()) != 0 {
            drop(Box::from_raw(hint));
            return Err(last_error());
        }
        if zmq_sys::zmq_msg_send(&mut message, socket.as_mut_ptr(), flags as c_int) < 0 {
            let error = last_error();
            // It was not taken over: closing it gives the memory back.
            zmq_sys::zmq_msg_close(&mut message);
            return Err(error);
        }
    }
    Ok(())
}

/// libzmq is done with a frame; called on a thread of its own.
unsafe extern "C" fn free_frame(_data: *mut c_void, hint: *mut c_void) {
    // SAFETY: the hint is the box that `send_tensor` made, and this is called once.
    drop(unsafe { Box::from_raw(hint.cast::<Tensor>()) });
}

fn last_error() -> zmq::Error {
    // SAFETY: reads a number of this thread.
    zmq::Error::from_raw(unsafe { zmq_sys::zmq_errno() })
}

/// A frame that was received, as memory.
pub(super) fn frame_into_bytes(message: zmq::Message) -> Bytes {
    struct ReceivedFrame(zmq::Message);
    impl AsRef<[u8]> for ReceivedFrame {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    Bytes::from_owner(ReceivedFrame(message))
}

/// Ends a connection whose other end has not acknowledged what it was sent for so long.
pub(super) fn set_unacknowledged_limit(
    socket: &mut zmq::Socket,
    limit: Duration,
) -> zmq::Result<()> {
    let milliseconds = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the option takes an int, of which we give address and size.
    let result = unsafe {
        zmq_sys::zmq_setsockopt(
            socket.as_mut_ptr(),
            zmq_sys::ZMQ_TCP_MAXRT as c_int,
            (&raw const milliseconds).cast(),
            size_of::<c_int>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Has the allocator keep memory for frames instead of giving it back after each.
///
/// libzmq allocates every frame that it receives. By default glibc maps such memory anew or trims
/// it away after each one, and the page faults take a quarter of the time of a stream of 3.2 MB
/// tensors (measured: 0.72 of a plain socket's rate; 0.87 with this).
pub(super) fn keep_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets two numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
    }
}
