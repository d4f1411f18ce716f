//! The exporter's side of HTTP, on this machine only.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use vellum_service::Failure;

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);
/// What OpenMetrics calls itself.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A port of this machine alone.
    Loopback(SocketAddr),
    /// A UNIX socket; who may enter its directory may ask.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let bad = |why: &str| {
            Failure::input(format!("option --listen {text}: {why}"))
                .remedy("write 127.0.0.1:PORT, [::1]:PORT or unix:PATH")
        };
        let address: SocketAddr = text.parse().map_err(|_| bad("not an address"))?;
        if address.ip().is_loopback() {
            Ok(Self::Loopback(address))
        } else {
            Err(bad("others could read it there"))
        }
    }
}

/// Answers until the process ends.
pub fn serve(listen: &Listen) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::system("cannot listen").because(e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        match listen {
            Listen::Loopback(address) => {
                let listener = TcpListener::bind(address).await.map_err(|e| {
                    let failure = Failure::system(format!("option --listen {address}"));
                    failure.because(e).remedy("take another port")
                })?;
                loop {
                    if let Ok((stream, _)) = listener.accept().await {
                        tokio::spawn(converse(stream));
                    }
                }
            }
            Listen::Unix(path) => {
                make_way(path)?;
                let listener = UnixListener::bind(path).map_err(|e| {
                    Failure::system(format!("option --listen unix:{}", path.display())).because(e)
                })?;
                loop {
                    if let Ok((stream, _)) = listener.accept().await {
                        tokio::spawn(converse(stream));
                    }
                }
            }
        }
    })
}

/// Removes a socket on which nobody listens any more; anything else stays, and binding fails.
fn make_way(path: &Path) -> Result<(), Failure> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)
            .map_err(|e| Failure::system(format!("option --listen unix:{}", path.display())).because(e))?;
    }
    Ok(())
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: S) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    if let Err(e) = connection.await {
        tracing::debug!("a connection has ended: {e}");
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let wanted = request.method() == Method::GET && request.uri().path() == "/metrics";
    if !wanted {
        return Ok(text_response(StatusCode::NOT_FOUND, "GET /metrics\n".to_owned()));
    }
    // Services may take a while, and others are to be answered meanwhile.
    let text = tokio::task::spawn_blocking(super::text).await;
    Ok(match text {
        Ok(Ok(text)) => {
            let mut response = Response::new(Full::from(text));
            response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(FORMAT));
            response
        }
        Ok(Err(failure)) => text_response(StatusCode::INTERNAL_SERVER_ERROR, format!("{failure}\n")),
        Err(e) => text_response(StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")),
    })
}

fn text_response(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_may_listen() {
        let tcp = "127.0.0.1:9400".parse::<Listen>().unwrap();
        assert_eq!(tcp, Listen::Loopback("127.0.0.1:9400".parse().unwrap()));
        assert!("[::1]:9400".parse::<Listen>().is_ok());
        assert_eq!("unix:/run/x".parse::<Listen>().unwrap(), Listen::Unix("/run/x".into()));
        for bad in ["", "9400", "0.0.0.0:9400", "192.0.2.1:1", "localhost:1", "unix:", "/run/x", "127.0.0.1"]
        {
            let failure = bad.parse::<Listen>().unwrap_err();
            assert!(
                failure.exit_status() == 2 && failure.to_string().contains("--listen"),
                "{bad}: {failure}"
            );
        }
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (dir.path().join("s"), dir.path().join("f"));
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        std::fs::write(&file, "x").unwrap();
        make_way(&socket).unwrap();
        make_way(&file).unwrap();
        assert!(!socket.exists() && file.exists());
        let live = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        make_way(&socket).unwrap();
        assert!(socket.exists());
        drop(live);
    }
}
