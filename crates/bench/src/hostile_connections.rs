//! Connections whose clients don't do their part: heads and bodies that never come to an end, and
//! answers that nobody reads.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::json;
use tessera_core::{Error, Result};

use super::test_client::TestInferRequest;

/// How long a client sends before it gives up: the server may have refused already.
const SENDING_PATIENCE: Duration = Duration::from_secs(10);

/// What a client can hold that never reads; the kernel doubles it.
const TINY_BUFFER: usize = 4096;

/// Begins a request and stops amid its head.
pub(crate) fn send_half_head(address: SocketAddr) -> Result<TcpStream> {
    let mut stream = connect_plainly(address)?;
    let sent = stream.write_all(b"POST /v2/models/linear/infer HTTP/1.1\r\nHo");
    sent.map_err(|error| Error::from_io(address, &error))?;
    Ok(stream)
}

/// Announces a matrix of one row for `task`, and sends two bytes of it.
pub(crate) fn stall_upload(address: SocketAddr, task: &str, elements: usize) -> Result<TcpStream> {
    let mut stream = connect_plainly(address)?;
    let head = upload_head(task, elements);
    let sent = stream.write_all(&[head.as_bytes(), b"ab"].concat());
    sent.map_err(|error| Error::from_io(address, &error))?;
    Ok(stream)
}

/// The same, and sends all but the last byte as fast as the server takes it.
pub(crate) fn stall_late(address: SocketAddr, task: &str, elements: usize) -> Result<TcpStream> {
    let mut stream = connect_plainly(address)?;
    let (piece, mut left) = (vec![0; 1 << 20], 4 * elements - 1);
    let mut sent = stream.write_all(upload_head(task, elements).as_bytes());
    // What the server does not take, it has refused.
    while sent.is_ok() && left > 0 {
        let now = left.min(piece.len());
        sent = stream.write_all(&piece[..now]);
        left -= now;
    }
    Ok(stream)
}

fn upload_head(task: &str, elements: usize) -> String {
    let json = json!({ "inputs": [{
        "name": "x", "shape": [1, elements], "datatype": "FP32",
        "parameters": { "binary_data_size": 4 * elements },
    }] })
    .to_string();
    format!(
        "POST /v2/models/{task}/infer HTTP/1.1\r\nHost: tessera\r\n\
         Inference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n{json}",
        json.len(),
        json.len() + 4 * elements
    )
}

/// Sends a request and never reads its answer.
pub(crate) fn leave_answer_unread(
    address: SocketAddr,
    request: &TestInferRequest,
) -> Result<TcpStream> {
    let mut stream = connect_plainly(address)?;
    set_socket_recv_buffer_size(&stream, TINY_BUFFER)
        .map_err(|error| Error::from_io(address, &error.into()))?;
    // What the server does not take, it has refused.
    stream.write_all(&request.head).and_then(|()| stream.write_all(&request.tensor)).ok();
    Ok(stream)
}

fn connect_plainly(address: SocketAddr) -> Result<TcpStream> {
    let fail = |error: std::io::Error| Error::from_io(address, &error);
    let stream = TcpStream::connect(address).map_err(fail)?;
    stream.set_write_timeout(Some(SENDING_PATIENCE)).map_err(fail)?;
    Ok(stream)
}

/// Whether the server has closed a connection; reads what it had to say before.
pub(crate) fn is_closed_by_server(stream: &mut TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    let mut said = [0; 4096];
    loop {
        match stream.read(&mut said) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_is_closed_once_the_other_end_is() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = send_half_head(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        assert!(!is_closed_by_server(&mut stream));
        accepted.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").unwrap();
        assert!(!is_closed_by_server(&mut stream));
        drop(accepted);
        let closed = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_closed_by_server(&mut stream)
        });
        assert!(closed);
    }
}
