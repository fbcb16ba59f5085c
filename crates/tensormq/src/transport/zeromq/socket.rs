//! What all sockets of ZeroMQ have in common here.

use std::fmt;

use tessera_core::{Error, Result};

use super::frame;
use crate::transport::network::HEARTBEAT_TIMEOUT;

/// Refuses what libzmq can't take for an address.
pub(super) fn check_socket_address(socket_address: &str, scheme: &str) -> Result<()> {
    let rest = socket_address.strip_prefix(scheme);
    if rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_control)) {
        Ok(())
    } else {
        Err(Error::usage(format!("{socket_address:?} is no address of the form {scheme}…")))
    }
}

/// An error of libzmq.
pub(super) fn zmq_error(what: impl fmt::Display, error: zmq::Error) -> Error {
    Error::from_io(what, &std::io::Error::from_raw_os_error(error.to_raw()))
}

/// Everything of a message that is there to be read, frame by frame.
pub(super) fn receive_frames(socket: &zmq::Socket) -> zmq::Result<Vec<zmq::Message>> {
    let mut frames = vec![socket.recv_msg(zmq::DONTWAIT)?];
    while frames.last().is_some_and(zmq::Message::get_more) {
        frames.push(socket.recv_msg(zmq::DONTWAIT)?);
    }
    Ok(frames)
}

/// What all our sockets have in common.
pub(super) fn configure_socket(socket: &mut zmq::Socket, socket_address: &str) -> zmq::Result<()> {
    // What is not sent when a socket closes is of no use to anyone for longer than this.
    socket.set_linger(500)?;
    // The number of messages is bounded by the channel's depth; these would drop or block instead.
    socket.set_sndhwm(0)?;
    socket.set_rcvhwm(0)?;
    let Some(address) = socket_address.strip_prefix("tcp://") else { return Ok(()) };
    // Names may stand for either; IPv4 must also work where there is no IPv6.
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    socket.set_ipv6(host.parse::<std::net::Ipv4Addr>().is_err())?;
    // A host that is gone without a goodbye is noticed by its silence. By the kernel, because
    // ZeroMQ counts whole frames as life, and a large one may take longer than anyone's patience.
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(1)?;
    socket.set_tcp_keepalive_intvl(1)?;
    socket.set_tcp_keepalive_cnt(3)?;
    socket.set_handshake_ivl(3000)?;
    frame::set_unacknowledged_limit(socket, HEARTBEAT_TIMEOUT)
}
