//! `--exportOutput`: the outputs' values of the last query.

use super::{
    ExportError,
    lexer::{Lexer, Token},
};
use std::io::{self, Read};

/// Values of all outputs together: 128 MiB as they are kept.
const MAX_VALUES: usize = 16 << 20;

/// More outputs than any model has.
const MAX_TENSORS: usize = 4096;

/// More dimensions than TensorRT has.
const MAX_DIMENSIONS: usize = 64;

/// Outputs in the file's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputExport {
    pub tensors: Vec<OutputTensor>,
    /// Values or tensors beyond what is kept.
    pub left_out: u64,
}

/// One output. Floats have at most six significant digits, whole numbers all of theirs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputTensor {
    pub name: String,
    /// Where the file names a final shape inside the values, that one.
    pub dimensions: Vec<i64>,
    pub values: Vec<f64>,
}

impl OutputTensor {
    /// As many values as the dimensions say; false for a file that was cut.
    pub fn is_whole(&self) -> bool {
        let volume =
            self.dimensions.iter().try_fold(1u64, |volume, size| volume.checked_mul(u64::try_from(*size).ok()?));
        volume == Some(self.values.len() as u64)
    }
}

/// Reads the file, whatever its generation.
pub fn read_output(source: impl Read) -> Result<OutputExport, ExportError> {
    const EXPECTED: &str = "output";
    let mut lexer = Lexer::plain(source);
    let mut export = OutputExport::default();
    let mut kept = 0;
    if lexer.next()? != Token::Open(b'[') {
        return Err(ExportError::NotJson { expected: EXPECTED });
    }
    loop {
        match lexer.next()? {
            Token::End | Token::Close(b']') => break,
            Token::Open(b'{') => {
                let tensor = tensor(&mut lexer, &mut kept, &mut export.left_out)?;
                if export.tensors.len() < MAX_TENSORS {
                    export.tensors.extend(tensor);
                } else {
                    export.left_out += 1;
                }
            }
            _ => {}
        }
    }
    if export.tensors.is_empty() {
        return Err(ExportError::Nothing { expected: EXPECTED });
    }
    Ok(export)
}

/// One object after its opening bracket; `None` where it has no name.
fn tensor<R: Read>(lexer: &mut Lexer<R>, kept: &mut usize, left_out: &mut u64) -> io::Result<Option<OutputTensor>> {
    let mut tensor = OutputTensor::default();
    let mut key = String::new();
    let mut named = false;
    loop {
        match lexer.next()? {
            Token::End | Token::Close(b'}') => return Ok(named.then_some(tensor)),
            Token::Text(text) => match key.as_str() {
                "name" => {
                    (tensor.name, named) = (text, true);
                    key.clear();
                }
                "dimensions" => {
                    tensor.dimensions = dimensions(&text);
                    key.clear();
                }
                _ => key = text,
            },
            Token::Open(b'[') if key == "values" => {
                values(lexer, &mut tensor, kept, left_out)?;
                key.clear();
            }
            _ => {}
        }
    }
}

fn values<R: Read>(
    lexer: &mut Lexer<R>,
    tensor: &mut OutputTensor,
    kept: &mut usize,
    left_out: &mut u64,
) -> io::Result<()> {
    loop {
        let value = match lexer.next()? {
            Token::End | Token::Close(_) => return Ok(()),
            Token::Number(value) => value,
            Token::Word(word) if word == "true" => 1.0,
            Token::Word(word) if word == "false" => 0.0,
            Token::Sentence(sentence) => {
                if let Some((_, rest)) = sentence.split_once("shape is") {
                    tensor.dimensions = dimensions(rest.split(" reported").next().unwrap_or(rest));
                }
                continue;
            }
            _ => continue,
        };
        if *kept < MAX_VALUES {
            *kept += 1;
            tensor.values.push(value);
        } else {
            *left_out += 1;
        }
    }
}

/// `1x10`, `(1, 10)`, `[1,10]`, `scalar`
fn dimensions(text: &str) -> Vec<i64> {
    let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '-').filter_map(|number| number.parse().ok());
    numbers.take(MAX_DIMENSIONS).collect()
}
