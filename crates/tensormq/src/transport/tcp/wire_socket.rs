//! Bytes both ways over a TCP connection, in the clear or through TLS. One thread reads and one
//! writes; neither waits for the other.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustls::Connection;
use tessera_core::lock;

use super::message_reader::WaitableRead;
use super::tls_identity::{EndableConnection, TlsIdentity, peer_names};

/// Bytes that are encrypted at a time.
const PLAIN_CHUNK: usize = 256 << 10;
/// Bytes that are read from the network at a time, where they are encrypted.
const CIPHER_CHUNK: usize = 256 << 10;

/// A connection.
pub(super) struct WireSocket {
    socket: TcpStream,
    /// As whom we shook hands.
    identity: Option<TlsIdentity>,
    tls: Option<Mutex<Connection>>,
    /// Held while something is encrypted and sent: records are numbered.
    sending: Mutex<Vec<u8>>,
}

impl WireSocket {
    /// Over a socket that blocks, in the clear.
    pub(super) fn plain(socket: TcpStream) -> Self {
        Self { socket, identity: None, tls: None, sending: Mutex::default() }
    }

    /// Over a socket that blocks, through which hands were shaken.
    pub(super) fn encrypted(socket: TcpStream, identity: TlsIdentity, mut tls: Connection) -> Self {
        // What is encrypted is taken from it at once.
        tls.set_buffer_limit(None);
        let (identity, tls) = (Some(identity), Some(Mutex::new(tls)));
        Self { socket, identity, tls, sending: Mutex::default() }
    }

    /// Has a connection over it ended when its other end does not belong to us any more.
    pub(super) fn watch_peer(&self, connection: Weak<dyn EndableConnection>) {
        if let (Some(identity), Some(tls)) = (&self.identity, &self.tls) {
            identity.watch_connection(peer_names(&lock(tls)), connection);
        }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Ends it, whoever reads or writes.
    pub(super) fn shut_down(&self) {
        // One that is closed needs no closing.
        self.socket.shutdown(Shutdown::Both).ok();
    }

    /// Says that nothing more comes.
    pub(super) fn finish_sending(&self) {
        if let Some(tls) = &self.tls {
            lock(tls).send_close_notify();
            self.flush_tls(tls).ok();
        }
        self.socket.shutdown(Shutdown::Write).ok();
    }

    /// Sends all of these.
    pub(super) fn write_parts(&self, parts: &[&[u8]]) -> io::Result<()> {
        match &self.tls {
            None => write_all_vectored(&self.socket, parts),
            Some(tls) => self.write_encrypted(tls, parts),
        }
    }

    fn write_encrypted(&self, tls: &Mutex<Connection>, parts: &[&[u8]]) -> io::Result<()> {
        let mut ciphertext = lock(&self.sending);
        for part in parts {
            for chunk in part.chunks(PLAIN_CHUNK) {
                let mut connection = lock(tls);
                connection.writer().write_all(chunk)?;
                take_ciphertext(&mut connection, &mut ciphertext)?;
                drop(connection);
                if ciphertext.len() >= PLAIN_CHUNK {
                    (&self.socket).write_all(&ciphertext)?;
                    ciphertext.clear();
                }
            }
        }
        (&self.socket).write_all(&ciphertext)?;
        ciphertext.clear();
        Ok(())
    }

    /// Sends what TLS itself has to say.
    fn flush_tls(&self, tls: &Mutex<Connection>) -> io::Result<()> {
        let mut ciphertext = lock(&self.sending);
        take_ciphertext(&mut lock(tls), &mut ciphertext)?;
        (&self.socket).write_all(&ciphertext)?;
        ciphertext.clear();
        Ok(())
    }

    /// What reads from it where it is encrypted; for one thread. Else the socket is to be read.
    pub(super) fn decrypting_reader(&self) -> Option<DecryptingReader<'_>> {
        let tls = self.tls.as_ref()?;
        Some(DecryptingReader { wire: self, tls, ciphertext: vec![0; CIPHER_CHUNK], unread: 0..0 })
    }
}

/// Moves what is encrypted to a buffer, without waiting for the network.
fn take_ciphertext(connection: &mut Connection, to: &mut Vec<u8>) -> io::Result<()> {
    while connection.wants_write() {
        connection.write_tls(to)?;
    }
    Ok(())
}

/// Writes all of several buffers with as few calls as can be.
fn write_all_vectored(mut socket: &TcpStream, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> =
        parts.iter().filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        // The system takes no more than 1,024 of them at a time.
        let some = rest.len().min(1024);
        match socket.write_vectored(&rest[..some]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The reading end of a connection that is encrypted.
pub(super) struct DecryptingReader<'a> {
    wire: &'a WireSocket,
    tls: &'a Mutex<Connection>,
    /// What came, of which `unread` is not decrypted yet.
    ciphertext: Vec<u8>,
    unread: Range<usize>,
}

impl DecryptingReader<'_> {
    /// Waits for more where all that came is decrypted.
    fn fill_ciphertext(&mut self) -> io::Result<()> {
        if self.unread.is_empty() {
            let count = (&self.wire.socket).read(&mut self.ciphertext)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.unread = 0..count;
        }
        Ok(())
    }

    /// Decrypts some of what came: as much as TLS keeps until it is read.
    fn decrypt_some(&mut self) -> io::Result<()> {
        let mut connection = lock(self.tls);
        let mut rest = &self.ciphertext[self.unread.clone()];
        connection.read_tls(&mut rest)?;
        self.unread.start = self.unread.end - rest.len();
        connection.process_new_packets().map_err(io::Error::other)?;
        let has_to_say = connection.wants_write();
        drop(connection);
        if has_to_say { self.wire.flush_tls(self.tls) } else { Ok(()) }
    }
}

impl WaitableRead for &TcpStream {
    fn has_input_within(&mut self, time: Duration) -> io::Result<bool> {
        let mut socket = [PollFd::new(self, PollFlags::IN)];
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut socket, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            // Whoever asks looks again.
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

impl WaitableRead for DecryptingReader<'_> {
    fn has_input_within(&mut self, time: Duration) -> io::Result<bool> {
        let has_rest = !self.unread.is_empty() || !lock(self.tls).wants_read();
        if has_rest { Ok(true) } else { (&self.wire.socket).has_input_within(time) }
    }
}

impl Read for DecryptingReader<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match lock(self.tls).reader().read(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            self.fill_ciphertext()?;
            self.decrypt_some()?;
        }
    }
}
