//! A coordinator that goes away while a call is under way is away: whoever asks may ask its successor.

use planforge_client::{Client, Endpoint};
use planforge_proto::{ErrorCode, v1};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// HTTP/2's frames (RFC 9113): an empty SETTINGS frame, what a client begins with, the types of frames.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const PREFACE_BYTES: usize = 24;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// A frame of a type, on a stream, that holds words of 32 bits.
fn frame(kind: u8, stream: u32, words: &[u32]) -> Vec<u8> {
    let length = u8::try_from(words.len() * 4).expect("a short frame");
    let mut bytes = vec![0, 0, length, kind, 0];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    bytes
}

/// What a call says of a server that sends `end` once the call has arrived, and hangs up.
async fn answer_of(end: Vec<u8>) -> ErrorCode {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&SETTINGS).await.unwrap();
        stream.read_exact(&mut [0; PREFACE_BYTES]).await.unwrap();
        let mut header = [0; 9];
        while header[3] != HEADERS {
            stream.read_exact(&mut header).await.unwrap();
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            stream.read_exact(&mut vec![0; length]).await.unwrap();
        }
        let _ = stream.write_all(&end).await;
        let _ = stream.shutdown().await;
    });
    let client = Client::lazy(Endpoint::Http { host: "127.0.0.1".into(), port }, None).unwrap();
    let status = client.farm().get_server_info(v1::GetServerInfoRequest {}).await.unwrap_err();
    server.abort();
    client.error(status).code
}

#[tokio::test]
async fn however_a_coordinator_hangs_up_it_is_unavailable() {
    let mut ends = vec![("hangs up".to_owned(), Vec::new())];
    // NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, REFUSED_STREAM, CANCEL.
    for reason in [0, 1, 2, 7, 8] {
        ends.push((format!("goes away with {reason}"), frame(GOAWAY, 0, &[0, reason])));
        ends.push((format!("resets the stream with {reason}"), frame(RST_STREAM, 1, &[reason])));
    }
    for (what, end) in ends {
        assert_eq!(answer_of(end).await, ErrorCode::Unavailable, "a coordinator that {what}");
    }
}
