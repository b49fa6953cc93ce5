//! Tensors in numpy's `.npz` archives: test sets, inputs and outputs.

use npyz::{
    DType, Endianness, Order, TypeChar, TypeStr, WriteOptions, WriterBuilder as _,
    npz::{NpzArchive, NpzWriter, file_name_from_array_name},
};
use planforge_types::{ElementType, HostTensor, NamedTensors};
use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read as _, Write as _},
    path::{Path, PathBuf},
};

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
    #[error("numpy has no type for '{name}', which is {element:?}")]
    NoNumpyType { name: String, element: ElementType },
}

/// Reads every array of the archive at `path`.
pub fn read(path: &Path) -> Result<NamedTensors, NpzError> {
    let at = || path.to_owned();
    let file = File::open(path).map_err(|source| NpzError::Open { path: at(), source })?;
    let mut archive =
        NpzArchive::new(BufReader::new(file)).map_err(|source| NpzError::Archive { path: at(), source })?;
    let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    if names.len() > MAX_ARRAYS {
        return Err(NpzError::TooMany { path: at(), count: names.len() });
    }
    let mut left = MAX_BYTES;
    let mut tensors = NamedTensors::new();
    for name in names {
        let failed = |source| NpzError::Array { path: at(), name: name.clone(), source };
        let Some(array) = archive.by_name(&name).map_err(failed)? else { continue };
        let (dtype, order) = (array.dtype(), array.order());
        let unsupported = || NpzError::Unsupported {
            path: at(),
            name: name.clone(),
            found: format!("{} in {order:?} order", dtype.descr()),
        };
        let element = element_type(&dtype).ok_or_else(unsupported)?;
        let shape: Vec<u64> = array.shape().to_vec();
        // With one axis at most, both orders are the same bytes.
        if order == Order::Fortran && shape.iter().filter(|size| **size > 1).count() > 1 {
            return Err(unsupported());
        }
        let bytes = shape.iter().try_fold(element.bytes() as u64, |bytes, size| bytes.checked_mul(*size));
        let bytes = bytes.filter(|bytes| *bytes <= left).ok_or_else(|| NpzError::TooLarge { path: at() })?;
        left -= bytes;
        let mut data = Vec::new();
        array.into_inner().take(bytes).read_to_end(&mut data).map_err(failed)?;
        if data.len() as u64 != bytes {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let shape = shape.iter().map(|size| *size as usize).collect();
        tensors.insert(name, HostTensor { element, shape, bytes: data });
    }
    Ok(tensors)
}

/// Writes `tensors` to `path`, each under its name.
pub fn write(path: &Path, tensors: &NamedTensors) -> Result<(), NpzError> {
    let failed = |source| NpzError::Write { path: path.to_owned(), source };
    let file = BufWriter::new(File::create(path).map_err(failed)?);
    let mut archive = NpzWriter::new(file);
    for (name, tensor) in tensors {
        let dtype = numpy_type(tensor.element)
            .ok_or_else(|| NpzError::NoNumpyType { name: name.clone(), element: tensor.element })?;
        let shape: Vec<u64> = tensor.shape.iter().map(|size| *size as u64).collect();
        let zip = archive.zip_writer();
        zip.start_file(file_name_from_array_name(name), Default::default()).map_err(|e| failed(e.into()))?;
        let header = WriteOptions::new_header_only().dtype(dtype).shape(&shape).writer(&mut *zip);
        header.write_header_only().map_err(failed)?;
        zip.write_all(&tensor.bytes).map_err(failed)?;
    }
    let mut file = archive.zip_writer().finish().map_err(|e| failed(e.into()))?;
    file.flush().map_err(failed)
}

fn element_type(dtype: &DType) -> Option<ElementType> {
    let DType::Plain(plain) = dtype else { return None };
    if plain.endianness() == Endianness::Big {
        return None;
    }
    Some(match (plain.type_char(), plain.size_field()) {
        (TypeChar::Bool, 1) => ElementType::Bool,
        (TypeChar::Float, 2) => ElementType::F16,
        (TypeChar::Float, 4) => ElementType::F32,
        (TypeChar::Float, 8) => ElementType::F64,
        (TypeChar::Int, 1) => ElementType::I8,
        (TypeChar::Int, 2) => ElementType::I16,
        (TypeChar::Int, 4) => ElementType::I32,
        (TypeChar::Int, 8) => ElementType::I64,
        (TypeChar::Uint, 1) => ElementType::U8,
        (TypeChar::Uint, 2) => ElementType::U16,
        (TypeChar::Uint, 4) => ElementType::U32,
        (TypeChar::Uint, 8) => ElementType::U64,
        _ => return None,
    })
}

fn numpy_type(element: ElementType) -> Option<DType> {
    let text = match element {
        ElementType::F32 => "<f4",
        ElementType::F16 => "<f2",
        ElementType::F64 => "<f8",
        ElementType::I8 => "|i1",
        ElementType::U8 => "|u1",
        ElementType::I16 => "<i2",
        ElementType::U16 => "<u2",
        ElementType::I32 => "<i4",
        ElementType::U32 => "<u4",
        ElementType::I64 => "<i8",
        ElementType::U64 => "<u8",
        ElementType::Bool => "|b1",
        ElementType::Bf16 => return None,
    };
    Some(DType::new_scalar(text.parse::<TypeStr>().expect("a fixed type name")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const ELEMENTS: [ElementType; 12] = [
        ElementType::F32,
        ElementType::F16,
        ElementType::F64,
        ElementType::I8,
        ElementType::U8,
        ElementType::I16,
        ElementType::U16,
        ElementType::I32,
        ElementType::U32,
        ElementType::I64,
        ElementType::U64,
        ElementType::Bool,
    ];

    #[test]
    fn every_type_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.npz");
        let tensors: NamedTensors = ELEMENTS
            .iter()
            .map(|element| {
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
        assert_eq!(error.to_string(), "numpy has no type for 'x', which is Bf16");
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
}
