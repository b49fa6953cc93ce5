//! What a file that is no ONNX model looks like, for the error message.

/// How much of the file's beginning decides whether it is text.
const TEXT_SAMPLE_BYTES: usize = 512;

/// Beginnings that name a format for certain.
const MAGICS: [(&[u8], &str); 15] = [
    (b"version https://git-lfs", "a Git LFS pointer, not the file it points to"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a .mar, perhaps)"),
    (b"\x80\x02\x8a\x0al\xfc\x9cF", "an old PyTorch checkpoint"),
    (b"\x80\x02}", "a Python pickle (a PyTorch checkpoint, perhaps)"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04\x95", "a Python pickle"),
    (b"\x80\x05\x95", "a Python pickle"),
    (b"\x89HDF\r\n", "an HDF5 file (a Keras model, perhaps)"),
    (b"GGUF", "a GGUF model"),
    (b"ORTM", "an ONNX Runtime flatbuffer"),
    (b"ftrt", "a TensorRT plan"),
    (b"ptrt", "a TensorRT plan"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"\x7fELF", "a program or library"),
];

/// What `bytes` looks like, when it is something known that is not ONNX.
pub(crate) fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    if let Some((_, what)) = MAGICS.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Some(what);
    }
    if bytes.get(4..8) == Some(b"TFL3") {
        return Some("a TensorFlow Lite model");
    }
    if bytes.get(4..8) == Some(b"ORTM") {
        return Some("an ONNX Runtime flatbuffer");
    }
    if bytes.len() > 9 && bytes[8] == b'{' && bytes[4..8] == [0; 4] {
        return Some("a safetensors file");
    }
    let sample = &bytes[..bytes.len().min(TEXT_SAMPLE_BYTES)];
    let text = match std::str::from_utf8(sample) {
        Ok(text) => text,
        // A character may be cut by the sample's end.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&sample[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
        return None;
    }
    let text = text.trim_start();
    Some(if text.starts_with('{') || text.starts_with('[') {
        "JSON text"
    } else if text.starts_with('<') {
        "HTML or XML text (a failed download, perhaps)"
    } else {
        "plain text"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_usual_suspects() {
        for (bytes, word) in [
            (&b"hello, world\n"[..], "plain text"),
            (b"{\"a\": 1}", "JSON"),
            (b"<!DOCTYPE html>", "HTML"),
            (b"PK\x03\x04\x00\x00", "zip"),
            (b"\x80\x02}q\x00X", "pickle"),
            (b"\x80\x04\x95\x10\x00", "pickle"),
            (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
            (b"\x1c\x00\x00\x00TFL3", "Lite"),
            (b"\x40\x00\x00\x00\x00\x00\x00\x00{\"w\":{}}", "safetensors"),
            ("Ärger\n".repeat(200).as_bytes(), "plain text"),
        ] {
            assert!(looks_like(bytes).is_some_and(|what| what.contains(word)), "{word}");
        }
        assert_eq!(looks_like(b"\x08\x08\x12\x07pytorch"), None);
    }
}
