//! A relay that joins over TCP.

use crate::Case;
use crate::relays::{Controller, Policy, RUN, host, nonce, relay_config, secret, within};
use crate::support::{LONG, Lines};
use flodl_relay::shell::{DataLink, DialError, dial, run};
use flodl_wire::handshake::{Channel, HandshakeError};
use flodl_wire::io::accept;
use flodl_wire::secret::{Secret, Ticket};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use smol::net::{TcpListener, TcpStream};
use std::time::Duration;

pub(crate) const CASES: &[Case] = &[
    ("joining::a_relay_joins_over_tcp_and_a_whole_run_passes", join),
    ("joining::both_directions_pass_through_the_smallest_socket_buffers", small_buffers),
    ("joining::a_controller_that_is_not_there_is_looked_for_and_named", unreachable),
    ("joining::a_controller_that_comes_late_is_found", late),
    ("joining::a_wrong_secret_is_not_tried_again", wrong_secret),
];

fn ticket(address: &str, secret: &Secret) -> Ticket {
    let (host_key, gate_key) = (secret.host_key(RUN, host()), secret.gate_key());
    Ticket { address: address.to_owned(), run_id: RUN, host_id: host(), host_key, gate_key }
}

/// Takes a relay's two connections.
async fn take(listener: TcpListener) -> Controller<TcpStream> {
    let mut links = Vec::new();
    for channel in [Channel::Control, Channel::Data] {
        let (stream, _) = listener.accept().await.unwrap();
        let (link, hello) = accept(stream, &Policy::new(), nonce()).await.unwrap();
        assert_eq!(hello.channel, channel);
        links.push(link);
    }
    let data = DataLink::Sealed(Box::new(links.remove(1)));
    Controller::new(links.remove(0), data)
}

fn join() {
    whole_run(|_| {});
}

/// Contributions and results are larger than the buffers and travel at the same time: if anybody waited for the other
/// direction, nothing would move.
fn small_buffers() {
    whole_run(|listener| {
        // What is accepted inherits them.
        set_socket_recv_buffer_size(listener, 4096).unwrap();
        set_socket_send_buffer_size(listener, 4096).unwrap();
    });
}

fn whole_run(prepare: impl FnOnce(&TcpListener)) {
    smol::block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        prepare(&listener);
        let address = listener.local_addr().unwrap().to_string();
        let taking = smol::spawn(take(listener));
        let upstream = dial(&address, &ticket(&address, &secret()), 2, LONG).await.unwrap();
        let mut controller = taking.await;
        let directory = tempfile::tempdir().unwrap();
        let relay = smol::spawn(run(relay_config("", directory.path(), &Lines::default()), upstream));
        controller.whole_run(2).await;
        within("the relay's end", LONG, relay).await.unwrap();
    });
}

/// An address of this machine where nobody listens.
async fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

fn unreachable() {
    smol::block_on(async {
        let address = free_address().await;
        let patience = Duration::from_millis(500);
        match dial(&address, &ticket(&address, &secret()), 1, patience).await {
            Err(error @ DialError::Unreachable { tries, after, .. }) => {
                assert!(tries >= 2 && after <= patience, "{error}");
                let text = error.to_string();
                assert!(text.contains(&address) && text.contains("flodl serve"), "{text}");
            }
            other => panic!("{:?}", other.map(drop)),
        }
    });
}

fn late() {
    smol::block_on(async {
        let address = free_address().await;
        let dialling = smol::spawn({
            let (address, ticket) = (address.clone(), ticket(&address, &secret()));
            async move { dial(&address, &ticket, 1, LONG).await.map(drop) }
        });
        async_io::Timer::after(Duration::from_millis(150)).await;
        let listener = TcpListener::bind(&address).await.unwrap();
        drop(take(listener).await);
        dialling.await.unwrap();
    });
}

fn wrong_secret() {
    smol::block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (counted, count) = async_channel::unbounded();
        let taking = smol::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.send(accept(stream, &Policy::new(), nonce()).await.map(drop).unwrap_err()).await.unwrap();
            }
        });
        let wrong = ticket(&address, &Secret::from_bytes([1; 32]));
        match dial(&address, &wrong, 1, LONG).await {
            Err(DialError::Handshake { error: HandshakeError::Silent { .. }, .. }) => {}
            other => panic!("{:?}", other.map(drop)),
        }
        assert!(matches!(count.recv().await, Ok(HandshakeError::Stranger { .. })));
        drop(taking);
        assert!(count.try_recv().is_err(), "it was tried once");
    });
}
