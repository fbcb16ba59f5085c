//! A connection that does not wait for ever: for the head of a request that was begun, or for a
//! client to take its answer. One that is idle may stay.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::activity::ConnectionActivity;

/// How long the head of a request may take from its first byte on.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Over this time a client must have taken as many bytes of its answer.
const ANSWER_TIME: Duration = Duration::from_secs(20);
const ANSWER_BYTES: u64 = 64 << 10;
/// How often a connection is looked at while something is under way.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How HTTP/2 begins. Its connections have frames of their own while no request is under way.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2";

/// A stream with time limits.
pub(crate) struct TimedStream<S> {
    stream: S,
    activity: Arc<ConnectionActivity>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Since when a head has been coming, and how many had come before it.
    head: Option<(Instant, u64)>,
    /// Since when an answer has been going out, and what had been written then.
    answer: Option<(Instant, u64)>,
    written: u64,
    /// Whether something waits to be written.
    is_blocked: bool,
    has_read: bool,
    is_http2: bool,
}

impl<S> TimedStream<S> {
    pub(crate) fn new(stream: S, activity: Arc<ConnectionActivity>) -> Self {
        Self {
            stream,
            activity,
            timer: None,
            head: None,
            answer: None,
            written: 0,
            is_blocked: false,
            has_read: false,
            is_http2: false,
        }
    }

    /// Whether a client has something to take.
    fn is_sending(&self) -> bool {
        self.is_blocked || self.activity.has_waiting_answer()
    }

    /// Notes what was read: the beginning of a head, where no request is under way.
    fn note_read(&mut self, bytes: &[u8]) {
        if !self.has_read {
            self.has_read = true;
            self.is_http2 = bytes.starts_with(HTTP2_PREFACE);
        }
        if !self.is_http2 && self.head.is_none() && !self.activity.has_requests() {
            self.head = Some((Instant::now(), self.activity.heads()));
        }
    }

    /// Fails where somebody was waited for long enough; else looks again when it is time.
    fn check_time(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            let is_timed = self.head.is_some() || self.is_sending();
            if !is_timed {
                (self.timer, self.answer) = (None, None);
                return Ok(());
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(LOOK_INTERVAL)));
            if timer.as_mut().poll(context).is_pending() {
                return Ok(());
            }
            self.timer = None;
            self.look_at_clock(Instant::now())?;
        }
    }

    fn look_at_clock(&mut self, now: Instant) -> io::Result<()> {
        if let Some((since, heads)) = self.head {
            if self.activity.heads() != heads || self.activity.has_requests() {
                self.head = None;
            } else if now.duration_since(since) >= HEAD_TIME {
                return Err(too_slow("the head of a request took too long"));
            }
        }
        if !self.is_sending() {
            self.answer = None;
            return Ok(());
        }
        let (since, before) = *self.answer.get_or_insert((now, self.written));
        if now.duration_since(since) >= ANSWER_TIME {
            if self.written - before < ANSWER_BYTES {
                return Err(too_slow("the client does not take its answer"));
            }
            self.answer = Some((now, self.written));
        }
        Ok(())
    }
}

fn too_slow(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(bytes @ [_, ..]) = buffer.filled().get(before..) {
            self.note_read(bytes);
        }
        if read.is_pending() {
            self.check_time(context)?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> TimedStream<S> {
    fn note_written(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.is_blocked = written.is_pending();
        match &written {
            Poll::Ready(Ok(count)) => self.written += *count as u64,
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.check_time(context)?,
        }
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note_written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.is_blocked = flushed.is_pending();
        match &flushed {
            Poll::Ready(Ok(())) => self.activity.note_flushed(),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.check_time(context)?,
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::advance;

    use super::*;

    fn timed() -> (tokio::io::DuplexStream, TimedStream<tokio::io::DuplexStream>) {
        let (client, server) = duplex(1024);
        (client, TimedStream::new(server, Arc::default()))
    }

    /// Reads in the background while time passes.
    async fn read_for(
        mut server: TimedStream<tokio::io::DuplexStream>,
        seconds: u64,
    ) -> Option<io::Result<usize>> {
        let reading = tokio::spawn(async move {
            let mut buffer = [0; 64];
            loop {
                match server.read(&mut buffer).await {
                    Ok(count) if count > 0 => {}
                    ended => return ended,
                }
            }
        });
        for _ in 0..seconds * 2 {
            tokio::task::yield_now().await;
            advance(Duration::from_millis(500)).await;
        }
        tokio::task::yield_now().await;
        if reading.is_finished() { Some(reading.await.unwrap()) } else { None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_ends_the_connection_and_silence_does_not() {
        let (_client, server) = timed();
        assert!(read_for(server, 3600).await.is_none(), "idle");
        let (mut client, server) = timed();
        client.write_all(b"POST /v2/mo").await.unwrap();
        let ended = read_for(server, 12).await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (mut client, server) = timed();
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        assert!(read_for(server, 3600).await.is_none(), "HTTP/2 without a request");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_under_way_may_take_its_time() {
        let (mut client, server) = timed();
        let request = server.activity.begin_request();
        client.write_all(b"a body that comes slowly").await.unwrap();
        assert!(read_for(server, 60).await.is_none());
        drop(request);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_ends_the_connection() {
        let (_client, mut server) = timed();
        let writing = tokio::spawn(async move { server.write_all(&[0; 4096]).await });
        for _ in 0..60 {
            tokio::task::yield_now().await;
            advance(Duration::from_millis(500)).await;
        }
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
