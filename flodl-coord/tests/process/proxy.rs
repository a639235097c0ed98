//! A wire between a host and its controller that a test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes bytes both ways between whoever connects and one address.
pub(crate) struct Proxy {
    address: SocketAddr,
    target: Arc<Mutex<String>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    carried: Arc<[AtomicU64; 2]>,
}

impl Proxy {
    pub(crate) fn to(address: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let own = listener.local_addr().expect("has an address");
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let target = Arc::new(Mutex::new(address.to_owned()));
        let carried: Arc<[AtomicU64; 2]> = Arc::default();
        let counts = Arc::clone(&carried);
        let (to, kept) = (Arc::clone(&target), Arc::clone(&streams));
        thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                let target = to.lock().expect("no panic").clone();
                let Ok(far) = TcpStream::connect(&target) else { continue };
                let clone = |stream: &TcpStream| stream.try_clone().expect("can be cloned");
                kept.lock().expect("no panic").extend([clone(&near), clone(&far)]);
                let (near_in, far_in) = (clone(&near), clone(&far));
                let (up, down) = (Arc::clone(&counts), Arc::clone(&counts));
                thread::spawn(move || pass(near_in, far, &up[0]));
                thread::spawn(move || pass(far_in, near, &down[1]));
            }
        });
        Proxy { address: own, target, streams, carried }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that it has passed on, from those who connect and to them.
    pub(crate) fn carried(&self) -> [u64; 2] {
        [0, 1].map(|way| self.carried[way].load(Ordering::Relaxed))
    }

    /// Whoever connects from now on reaches that address; who is connected is cut off.
    pub(crate) fn leads_to(&self, address: &str) {
        address.clone_into(&mut self.target.lock().expect("no panic"));
        self.cut();
    }

    /// Cuts every connection there is; new ones pass.
    pub(crate) fn cut(&self) {
        for stream in self.streams.lock().expect("no panic").drain(..) {
            // It may be closed already.
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, carried: &AtomicU64) {
    let mut bytes = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
        carried.fetch_add(read as u64, Ordering::Relaxed);
    }
    to.shutdown(Shutdown::Both).ok();
}
