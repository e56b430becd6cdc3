//! A TCP proxy on loopback that cuts connections: the nth one is closed after so many
//! bytes of the answer, wherever that falls. It knows nothing of HTTP.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use tokio::io::{copy, AsyncReadExt};
use tokio::net::{TcpListener, TcpStream};

pub struct CuttingProxy {
    pub url: String,
    cuts: Arc<AtomicUsize>,
}

impl CuttingProxy {
    /// `budgets` are the bytes that the first connections may carry back; later ones are
    /// not limited. `upstream` is an `http://` URL.
    pub async fn start(upstream: &str, budgets: &'static [usize]) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let upstream = upstream.trim_start_matches("http://").to_owned();
        let cuts = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&cuts);
        tokio::spawn(async move {
            let limits = budgets.iter().copied().chain(std::iter::repeat(usize::MAX));
            for limit in limits {
                let Ok((client, _)) = listener.accept().await else { return };
                let (upstream, counter) = (upstream.clone(), Arc::clone(&counter));
                tokio::spawn(async move {
                    if relay(client, &upstream, limit).await.unwrap_or(false) {
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Ok(Self { url, cuts })
    }

    /// How many connections have been cut so far.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// Carries bytes both ways until an end closes or the limit is reached, then drops both.
/// True: the limit was reached.
async fn relay(mut client: TcpStream, upstream: &str, limit: usize) -> io::Result<bool> {
    let mut server = TcpStream::connect(upstream).await?;
    let (mut from_client, mut to_client) = client.split();
    let (from_server, mut to_server) = server.split();
    let mut answer = from_server.take(limit as u64);
    tokio::select! {
        asked = copy(&mut from_client, &mut to_server) => asked.map(|_| false),
        answered = copy(&mut answer, &mut to_client) => Ok(answered? == limit as u64),
    }
}
