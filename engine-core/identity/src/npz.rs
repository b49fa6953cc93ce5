//! Tensors in numpy's `.npz` archives: test sets, inputs and outputs.

use crate::npy::{Descr, Header, Order};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};
use zip::{ZipArchive, ZipWriter, write::SimpleFileOptions};

/// What the name of an array's file in the archive ends with.
const EXTENSION: &str = ".npy";

/// Arrays of one archive; models have a handful of inputs.
pub const MAX_ARRAYS: usize = 1024;

/// Bytes of all arrays of one archive once unpacked: they are held in memory, and a small archive can claim a lot.
pub const MAX_BYTES: u64 = 8 << 30;

/// Why an archive cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NpzError {
    #[error("cannot open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is no readable .npz archive", path.display())]
    Archive { path: PathBuf, source: io::Error },
    #[error("{} holds {count} arrays, more than {MAX_ARRAYS}", path.display())]
    TooMany { path: PathBuf, count: usize },
    #[error("array '{name}' of {} cannot be read", path.display())]
    Array { path: PathBuf, name: String, source: io::Error },
    #[error("array '{name}' of {} is {found}; numbers and bools in C order are supported (see numpy.ascontiguousarray)", path.display())]
    Unsupported { path: PathBuf, name: String, found: String },
    #[error("the arrays of {} need more than {} GiB", path.display(), MAX_BYTES >> 30)]
    TooLarge { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("numpy has no type for '{name}', which is {element}")]
    NoNumpyType { name: String, element: ElementType },
}

/// Reads every array of the archive at `path`.
pub fn read(path: &Path) -> Result<NamedTensors, NpzError> {
    let at = || path.to_owned();
    let file = File::open(path).map_err(|source| NpzError::Open { path: at(), source })?;
    let mut archive = ZipArchive::new(BufReader::new(file))
        .map_err(|error| NpzError::Archive { path: at(), source: error.into() })?;
    let count = archive.file_names().filter(|name| name.as_ref().is_ok_and(|name| name.ends_with(EXTENSION))).count();
    if count > MAX_ARRAYS {
        return Err(NpzError::TooMany { path: at(), count });
    }
    let mut left = MAX_BYTES;
    let mut tensors = NamedTensors::new();
    for index in 0..archive.len() {
        let name = archive.by_index_data(index).and_then(|entry| Ok(entry.name()?.into_owned()));
        let name = name.map_err(|error| NpzError::Archive { path: at(), source: error.into() })?;
        let Some(name) = name.strip_suffix(EXTENSION) else { continue };
        let failed = |source| NpzError::Array { path: at(), name: name.to_owned(), source };
        let mut array = archive.by_index(index).map_err(|error| failed(error.into()))?;
        let header = Header::read(&mut array).map_err(failed)?;
        let unsupported = || NpzError::Unsupported {
            path: at(),
            name: name.to_owned(),
            found: format!("{} in {} order", header.descr, if header.order == Order::C { "C" } else { "Fortran" }),
        };
        let element = element_type(&header.descr).ok_or_else(unsupported)?;
        // With one axis at most, both orders are the same bytes.
        if header.order == Order::Fortran && header.shape.iter().filter(|size| **size > 1).count() > 1 {
            return Err(unsupported());
        }
        let bytes = header.shape.iter().try_fold(element.bytes() as u64, |bytes, size| bytes.checked_mul(*size));
        let bytes = bytes.filter(|bytes| *bytes <= left).ok_or_else(|| NpzError::TooLarge { path: at() })?;
        left -= bytes;
        let mut data = Vec::new();
        array.by_ref().take(bytes).read_to_end(&mut data).map_err(failed)?;
        if data.len() as u64 != bytes {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        // The checksum is compared where the file ends.
        array.read(&mut [0]).map_err(failed)?;
        let shape = header.shape.iter().map(|size| *size as usize).collect();
        tensors.insert(name.to_owned(), HostTensor { element, shape, bytes: data });
    }
    Ok(tensors)
}

/// Writes `tensors` to `path`, each under its name.
pub fn write(path: &Path, tensors: &NamedTensors) -> Result<(), NpzError> {
    let failed = |source| NpzError::Write { path: path.to_owned(), source };
    let file = BufWriter::new(File::create(path).map_err(failed)?);
    let mut archive = ZipWriter::new(file);
    for (name, tensor) in tensors {
        let descr = numpy_type(tensor.element)
            .ok_or_else(|| NpzError::NoNumpyType { name: name.clone(), element: tensor.element })?;
        let shape = tensor.shape.iter().map(|size| *size as u64).collect();
        // An archive's usual fields end at four gigabytes.
        let large = tensor.bytes.len() as u64 >= u64::from(u32::MAX) / 2;
        let options = SimpleFileOptions::default().large_file(large);
        archive.start_file(format!("{name}{EXTENSION}"), options).map_err(|error| failed(error.into()))?;
        let header = Header { descr: Descr::Plain(descr.to_owned()), order: Order::C, shape };
        header.write(&mut archive).map_err(failed)?;
        archive.write_all(&tensor.bytes).map_err(failed)?;
    }
    let mut file = archive.finish().map_err(|error| failed(error.into()))?;
    file.flush().map_err(failed)
}

/// Every type that is read and written, with numpy's name of it.
const TYPES: [(ElementType, &str); 12] = [
    (ElementType::F32, "<f4"),
    (ElementType::F16, "<f2"),
    (ElementType::F64, "<f8"),
    (ElementType::I8, "|i1"),
    (ElementType::U8, "|u1"),
    (ElementType::I16, "<i2"),
    (ElementType::U16, "<u2"),
    (ElementType::I32, "<i4"),
    (ElementType::U32, "<u4"),
    (ElementType::I64, "<i8"),
    (ElementType::U64, "<u8"),
    (ElementType::Bool, "|b1"),
];

fn element_type(descr: &Descr) -> Option<ElementType> {
    let Descr::Plain(found) = descr else { return None };
    // The order of a single byte does not matter; some write it all the same.
    let same =
        |name: &str| found == name || (name.starts_with('|') && found.strip_prefix('<') == name.strip_prefix('|'));
    TYPES.iter().find(|(_, name)| same(name)).map(|(element, _)| *element)
}

fn numpy_type(element: ElementType) -> Option<&'static str> {
    TYPES.iter().find(|(known, _)| *known == element).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_type_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.npz");
        let tensors: NamedTensors = TYPES
            .iter()
            .map(|(element, _)| {
                let bytes = (0..6 * element.bytes()).map(|i| (i % 2) as u8).collect();
                (format!("x/{element:?}"), HostTensor { element: *element, shape: vec![2, 3], bytes })
            })
            .chain([("scalar".to_owned(), HostTensor { element: ElementType::F32, shape: vec![], bytes: vec![0; 4] })])
            .collect();
        write(&path, &tensors).unwrap();
        assert_eq!(read(&path).unwrap(), tensors);
    }

    #[test]
    fn the_committed_test_set_is_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits-test.npz");
        let tensors = read(&path).unwrap();
        assert_eq!(tensors["labels"].element, ElementType::I64);
        assert_eq!(tensors["image"].shape[1..], [1, 8, 8]);
    }

    #[test]
    fn damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.npz");
        assert!(matches!(read(&path), Err(NpzError::Open { .. })));
        fs::write(&path, b"no archive").unwrap();
        assert!(matches!(read(&path), Err(NpzError::Archive { .. })));
        let bf16 = HostTensor { element: ElementType::Bf16, shape: vec![1], bytes: vec![0; 2] };
        let error = write(&path, &NamedTensors::from([("x".to_owned(), bf16)])).unwrap_err();
        assert_eq!(error.to_string(), "numpy has no type for 'x', which is bf16");
    }

    #[test]
    fn an_array_that_claims_more_than_it_holds_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short.npz");
        for (shape, huge) in [(vec![4], false), (vec![1 << 40], true)] {
            let short = HostTensor { element: ElementType::F32, shape, bytes: vec![0; 4] };
            write(&path, &NamedTensors::from([("x".to_owned(), short)])).unwrap();
            let error = read(&path).unwrap_err();
            assert_eq!(matches!(error, NpzError::TooLarge { .. }), huge, "{error}");
        }
    }

    /// An archive of one file with these bytes.
    fn archive(path: &Path, name: &str, bytes: &[u8], method: zip::CompressionMethod) {
        let mut archive = ZipWriter::new(File::create(path).unwrap());
        archive.start_file(name, SimpleFileOptions::default().compression_method(method)).unwrap();
        archive.write_all(bytes).unwrap();
        archive.finish().unwrap();
    }

    #[test]
    fn stored_and_deflated_arrays_are_read_and_other_files_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.npz");
        let mut array = Vec::new();
        let header = Header { descr: Descr::Plain("<i1".into()), order: Order::Fortran, shape: vec![1, 3] };
        header.write(&mut array).unwrap();
        array.extend([1, 2, 3]);
        for method in [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated] {
            archive(&path, "x.npy", &array, method);
            let tensors = read(&path).unwrap();
            assert_eq!(tensors["x"], HostTensor { element: ElementType::I8, shape: vec![1, 3], bytes: vec![1, 2, 3] });
            archive(&path, "x.txt", &array, method);
            assert_eq!(read(&path).unwrap().len(), 0);
        }
    }

    #[test]
    fn what_is_no_plain_number_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd.npz");
        let told = |descr: Descr, order: Order| {
            let mut array = Vec::new();
            Header { descr, order, shape: vec![2, 2] }.write(&mut array).unwrap();
            archive(&path, "x.npy", &array, zip::CompressionMethod::Stored);
            read(&path).unwrap_err().to_string()
        };
        let plain = |name: &str| Descr::Plain(name.into());
        assert!(
            told(plain(">f4"), Order::C).contains("array 'x' of")
                && told(plain(">f4"), Order::C).contains("is '>f4' in C order")
        );
        assert!(told(plain("<U7"), Order::C).contains("is '<U7' in C order"));
        assert!(told(plain("<f4"), Order::Fortran).contains("is '<f4' in Fortran order"));
        assert!(told(Descr::Record("[('a', '<f4')]".into()), Order::C).contains("is [('a', '<f4')] in C order"));
    }

    #[test]
    fn an_array_whose_bytes_changed_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.npz");
        let mut array = Vec::new();
        Header { descr: Descr::Plain("|u1".into()), order: Order::C, shape: vec![4] }.write(&mut array).unwrap();
        array.extend(b"good");
        archive(&path, "x.npy", &array, zip::CompressionMethod::Stored);
        assert_eq!(read(&path).unwrap()["x"].bytes, b"good");
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(4).position(|bytes| bytes == b"good").unwrap();
        fs::write(&path, [&bytes[..at], b"evil", &bytes[at + 4..]].concat()).unwrap();
        assert!(matches!(read(&path), Err(NpzError::Array { .. })));
    }
}
