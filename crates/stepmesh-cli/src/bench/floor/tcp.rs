//! A bare TCP connection over loopback: the floor of the TCP fabric. Both ends poll without
//! sleeping, as the library does in its busy mode.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::bench::duel::{Bare, Side};
use crate::bench::spin::spin_until;

/// The end that begins each round trip.
#[derive(Debug)]
pub(crate) struct TcpCaller(End);

/// The end that sends back what it got.
#[derive(Debug)]
pub(crate) struct TcpEcho(End);

#[derive(Debug)]
struct End {
    stream: TcpStream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl TcpCaller {
    pub(crate) fn connect(port: u16, payload: &[u8]) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, CONNECT_LONGEST)
            .context("cannot connect the bare TCP connection")?;
        let mut end = End::new(stream, payload.len())?;
        end.outgoing.copy_from_slice(payload);
        Ok(Self(end))
    }
}

impl TcpEcho {
    /// Listens, tells the port, and waits for the other end.
    pub(crate) fn accept(len_bytes: usize, tell: impl FnOnce(u16)) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen for bare TCP")?;
        listener.set_nonblocking(true)?;
        tell(listener.local_addr()?.port());
        let mut accepted = None;
        spin_until("the bare TCP connection", || match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            result => {
                accepted = Some(result);
                true
            }
        })?;
        let (stream, _) = accepted.context("nobody connected")??;
        Ok(Self(End::new(stream, len_bytes)?))
    }
}

impl Side for TcpCaller {
    fn round(&mut self) -> Result<()> {
        self.0.send()?;
        self.0.receive()
    }
}

impl Bare for TcpCaller {
    fn is_echoed(&self) -> bool {
        self.0.incoming == self.0.outgoing
    }
}

impl Side for TcpEcho {
    fn round(&mut self) -> Result<()> {
        self.0.receive()?;
        // The same bytes, without a copy that the library would not make either.
        std::mem::swap(&mut self.0.incoming, &mut self.0.outgoing);
        self.0.send()
    }
}

impl End {
    fn new(stream: TcpStream, len_bytes: usize) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            outgoing: vec![0; len_bytes],
            incoming: vec![0; len_bytes],
        })
    }

    fn send(&mut self) -> Result<()> {
        let mut sent = 0;
        let (stream, bytes) = (&mut self.stream, &self.outgoing);
        exchange("room to send on bare TCP", bytes.len(), &mut sent, |at| {
            stream.write(bytes.get(at..).unwrap_or_default())
        })
    }

    fn receive(&mut self) -> Result<()> {
        let mut received = 0;
        let (stream, bytes) = (&mut self.stream, &mut self.incoming);
        exchange("bytes on bare TCP", bytes.len(), &mut received, |at| {
            stream.read(bytes.get_mut(at..).unwrap_or_default())
        })
    }
}

/// Calls `step` with how far it is until it is `len_bytes` far.
fn exchange(
    what: &str,
    len_bytes: usize,
    done: &mut usize,
    mut step: impl FnMut(usize) -> std::io::Result<usize>,
) -> Result<()> {
    let mut failed = None;
    spin_until(what, || match step(*done) {
        Ok(0) => {
            failed = Some(ErrorKind::UnexpectedEof.into());
            true
        }
        Ok(count) => {
            *done += count;
            *done >= len_bytes
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            false
        }
        Err(error) => {
            failed = Some(error);
            true
        }
    })?;
    if let Some(error) = failed {
        bail!("bare TCP broke while waiting for {what}: {error}");
    }
    ensure!(*done == len_bytes, "bare TCP moved too many bytes");
    Ok(())
}

/// Loopback connects at once or not at all.
const CONNECT_LONGEST: Duration = Duration::from_secs(5);
