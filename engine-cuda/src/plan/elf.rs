//! Whether machine code ends where its own headers say.
//!
//! The driver is handed an address and no length: it reads what the headers of the image (ELF, 64 bits) tell it to. All
//! that they name must lie inside of it.

const HEADER_BYTES: usize = 64;
const SECTION_HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
/// 64 bits, little endian.
const IDENTITY: &[u8] = b"\x7fELF\x02\x01";
/// A section that has a size and no bytes.
const NO_BITS: u32 = 8;

/// Checks the tables of an image and the sections that they name.
pub(super) fn check(image: &[u8]) -> Result<(), &'static str> {
    if image.len() < HEADER_BYTES {
        return Err("it is shorter than an ELF header");
    }
    if !image.starts_with(IDENTITY) {
        return Err("it is not ELF of 64 bits");
    }
    let (programs, sections) = (u64_at(image, 32), u64_at(image, 40));
    let [program_bytes, program_count, section_bytes, section_count, names] =
        [54, 56, 58, 60, 62].map(|at| u64::from(u16::from_le_bytes(bytes_at(image, at))));
    if program_count > 0 {
        if program_bytes < PROGRAM_HEADER_BYTES {
            return Err("its program headers are too short");
        }
        within(image, programs, program_bytes * program_count).ok_or("its program headers reach beyond it")?;
    }
    // No sections would mean that their number stands elsewhere.
    if section_bytes < SECTION_HEADER_BYTES || names >= section_count {
        return Err("its section headers are too short or too few");
    }
    let table = within(image, sections, section_bytes * section_count).ok_or("its section headers reach beyond it")?;
    for header in table.chunks_exact(section_bytes as usize) {
        let (offset, bytes) = (u64_at(header, 24), u64_at(header, 32));
        let has_bits = u32::from_le_bytes(bytes_at(header, 4)) != NO_BITS;
        if has_bits && within(image, offset, bytes).is_none() {
            return Err("one of its sections reaches beyond it");
        }
    }
    Ok(())
}

/// A range of the image, where it lies inside.
fn within(image: &[u8], offset: u64, bytes: u64) -> Option<&[u8]> {
    let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
    image.get(usize::try_from(offset).ok()?..end)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

/// The bytes at a place that lies inside for certain.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..][..N].try_into().expect("as many bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header, one program header, an empty section, one of 16 bytes and one that only has a size.
    fn image() -> Vec<u8> {
        let mut image = vec![0; 64 + 56 + 3 * 64 + 16];
        image[..6].copy_from_slice(IDENTITY);
        put(&mut image, 32, &64u64.to_le_bytes());
        put(&mut image, 40, &120u64.to_le_bytes());
        for (at, value) in [(54, 56u16), (56, 1), (58, 64), (60, 3), (62, 1)] {
            put(&mut image, at, &value.to_le_bytes());
        }
        put(&mut image, 184 + 24, &312u64.to_le_bytes());
        put(&mut image, 184 + 32, &16u64.to_le_bytes());
        put(&mut image, 248 + 4, &NO_BITS.to_le_bytes());
        put(&mut image, 248 + 32, &(1u64 << 40).to_le_bytes());
        image
    }

    fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
        image[at..][..bytes.len()].copy_from_slice(bytes);
    }

    #[test]
    fn images_end_where_their_headers_say() {
        assert_eq!(check(&image()), Ok(()));
        for length in 0..image().len() {
            assert!(check(&image()[..length]).is_err(), "cut to {length} bytes");
        }
        let cases: [(usize, &[u8], &str); 10] = [
            (0, b"\x7fELG", "not ELF"),
            (4, &[1], "not ELF"),
            (32, &u64::MAX.to_le_bytes(), "program headers reach"),
            (54, &[8], "program headers are too short"),
            (40, &(u64::MAX - 100).to_le_bytes(), "section headers reach"),
            (58, &[63], "section headers are too short"),
            (60, &[0], "or too few"),
            (62, &[3], "or too few"),
            (184 + 24, &u64::MAX.to_le_bytes(), "one of its sections"),
            (248 + 4, &[1], "one of its sections"),
        ];
        for (at, bytes, reason) in cases {
            let mut broken = image();
            put(&mut broken, at, bytes);
            let error = check(&broken).expect_err(reason);
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }
}
