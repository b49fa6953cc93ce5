//! Is this really ONNX, all of it? A walk over the bytes that finds out before anything is built.
//!
//! Protobuf decoders skip what they do not know. Here an unknown field is an error: a model that says something we
//! cannot read must not be compiled as if it had not said it. The walk also bounds what decoding will cost: nesting,
//! and memory, for a two-byte message can become a struct of hundreds of bytes.

use std::fmt;

include!("../generated/schema.rs");

/// Deepest nesting of messages. Each level of subgraphs costs three; prost's own limit is 100.
pub const MAX_DEPTH: usize = 96;

/// Most memory the decoded messages may take, counted from struct sizes and typed tensor fields (raw tensor data is
/// mapped and costs nothing). A protobuf of 2 GiB whose tensors are all `float_data` needs half of this.
pub const MAX_DECODED_BYTES: u64 = 4 << 30;

/// How many unknown fields are listed before the rest is only counted.
const MAX_LISTED_UNKNOWN: usize = 16;

/// A message type of the schema.
struct Message {
    name: &'static str,
    /// Size of the Rust struct it decodes to.
    struct_bytes: usize,
    /// Sorted by number.
    fields: &'static [Field],
}

struct Field {
    number: u32,
    name: &'static str,
    kind: Kind,
    repeated: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Varint,
    Fixed32,
    Fixed64,
    Text,
    Blob,
    /// Index into `MESSAGES`.
    Message(usize),
}

impl Kind {
    fn wire_type(self) -> u8 {
        match self {
            Self::Varint => 0,
            Self::Fixed64 => 1,
            Self::Text | Self::Blob | Self::Message(_) => 2,
            Self::Fixed32 => 5,
        }
    }
}

/// A field that the format does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    /// Message type it was found in.
    pub inside: &'static str,
    pub number: u32,
    /// Byte at which the field begins.
    pub offset: usize,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "field {} in {} at byte {}", self.number, self.inside, self.offset)
    }
}

/// Bytes that are no protobuf of this schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}, in {inside}: {problem}")]
pub struct Malformed {
    /// Byte at which the offending item begins.
    pub offset: usize,
    /// Innermost message type around it.
    pub inside: &'static str,
    pub problem: Problem,
}

/// What is wrong at that byte.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the data ends in the middle of a number")]
    TruncatedVarint,
    #[error("a number has more than ten bytes")]
    LongVarint,
    #[error("{field} says it has {need} bytes but only {left} are left")]
    Truncated { field: &'static str, need: u64, left: usize },
    #[error("field number {number} is not possible in a protobuf")]
    FieldNumber { number: u64 },
    #[error("wire type {found} is not possible in ONNX")]
    WireType { found: u8 },
    #[error("{field} has wire type {found} where the format has {expected}")]
    WrongWireType { field: &'static str, found: u8, expected: u8 },
    #[error("packed {field} has {length} bytes, which is no multiple of {each}")]
    PackedLength { field: &'static str, length: usize, each: usize },
    #[error("{field} is not UTF-8 text")]
    NotUtf8 { field: &'static str },
    #[error("messages nest deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("decoding would take more than {} MiB", MAX_DECODED_BYTES >> 20)]
    TooMuchMemory,
}

/// What a walk over a whole file found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The first unknown fields, in file order.
    pub unknown: Vec<UnknownField>,
    /// How many there are in all.
    pub unknown_count: usize,
}

/// Checks that `bytes` is one `ModelProto`, every byte accounted for.
pub(crate) fn walk_model(bytes: &[u8]) -> Result<Findings, Malformed> {
    let mut walker = Walker { bytes, decoded_bytes: 0, findings: Findings::default() };
    walker.message(&MESSAGES[MODEL], 0, bytes.len(), 1)?;
    Ok(walker.findings)
}

struct Walker<'a> {
    bytes: &'a [u8],
    /// Estimate of the memory that decoding takes.
    decoded_bytes: u64,
    findings: Findings,
}

impl Walker<'_> {
    fn message(&mut self, message: &Message, start: usize, end: usize, depth: usize) -> Result<(), Malformed> {
        let inside = message.name;
        let fail = |offset, problem| Err(Malformed { offset, inside, problem });
        if depth > MAX_DEPTH {
            return fail(start, Problem::TooDeep);
        }
        self.charge(message.struct_bytes as u64, start, inside)?;
        let mut at = start;
        while at < end {
            let field_start = at;
            let tag = self.varint(&mut at, end, inside)?;
            let (number, wire_type) = (tag >> 3, (tag & 7) as u8);
            if number == 0 || number >= 1 << 29 {
                return fail(field_start, Problem::FieldNumber { number });
            }
            let number = number as u32;
            let field = message.fields.binary_search_by_key(&number, |field| field.number).ok();
            let field = field.map(|found| &message.fields[found]);
            let name = field.map_or("an unknown field", |field| field.name);
            // The value's end, checked to lie inside this message.
            let value = match wire_type {
                0 => {
                    let value = at;
                    self.varint(&mut at, end, inside)?;
                    value
                }
                1 | 2 | 5 => {
                    let need = match wire_type {
                        1 => 8,
                        5 => 4,
                        _ => self.varint(&mut at, end, inside)?,
                    };
                    let left = end - at;
                    if need > left as u64 {
                        return fail(field_start, Problem::Truncated { field: name, need, left });
                    }
                    let value = at;
                    at += need as usize;
                    value
                }
                found => return fail(field_start, Problem::WireType { found }),
            };
            let Some(field) = field else {
                self.unknown(UnknownField { inside, number, offset: field_start });
                continue;
            };
            let expected = field.kind.wire_type();
            if wire_type == expected {
                self.value(field, inside, value, at, depth)?;
            } else if wire_type == 2 && field.repeated {
                self.packed(field, inside, value, at)?;
            } else {
                return fail(field_start, Problem::WrongWireType { field: name, found: wire_type, expected });
            }
        }
        Ok(())
    }

    /// One value between `start` and `end`, its wire type already right.
    fn value(
        &mut self,
        field: &Field,
        inside: &'static str,
        start: usize,
        end: usize,
        depth: usize,
    ) -> Result<(), Malformed> {
        match field.kind {
            Kind::Message(index) => self.message(&MESSAGES[index], start, end, depth + 1),
            Kind::Text => {
                self.charge((size_of::<String>() + end - start) as u64, start, inside)?;
                match std::str::from_utf8(&self.bytes[start..end]) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(Malformed {
                        offset: start + error.valid_up_to(),
                        inside,
                        problem: Problem::NotUtf8 { field: field.name },
                    }),
                }
            }
            Kind::Blob => self.charge(size_of::<bytes::Bytes>() as u64, start, inside),
            Kind::Varint | Kind::Fixed32 | Kind::Fixed64 => self.charge(8, start, inside),
        }
    }

    /// A packed run of numbers between `start` and `end`.
    fn packed(&mut self, field: &Field, inside: &'static str, start: usize, end: usize) -> Result<(), Malformed> {
        let length = end - start;
        let each = match field.kind {
            Kind::Fixed32 => 4,
            Kind::Fixed64 => 8,
            Kind::Varint => {
                let run = &self.bytes[start..end];
                let count = run.iter().filter(|byte| **byte < 0x80).count();
                self.charge(count as u64 * 8, start, inside)?;
                let mut at = start;
                while at < end {
                    self.varint(&mut at, end, inside)?;
                }
                return Ok(());
            }
            Kind::Text | Kind::Blob | Kind::Message(_) => unreachable!("their own wire type is 2"),
        };
        if !length.is_multiple_of(each) {
            let problem = Problem::PackedLength { field: field.name, length, each };
            return Err(Malformed { offset: start, inside, problem });
        }
        self.charge(length as u64, start, inside)
    }

    /// Reads a varint that must end before `end`.
    fn varint(&self, at: &mut usize, end: usize, inside: &'static str) -> Result<u64, Malformed> {
        let start = *at;
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            if *at >= end {
                return Err(Malformed { offset: start, inside, problem: Problem::TruncatedVarint });
            }
            let byte = self.bytes[*at];
            *at += 1;
            // The tenth byte holds the one bit that is left of 64.
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed { offset: start, inside, problem: Problem::LongVarint })
    }

    fn charge(&mut self, cost_bytes: u64, offset: usize, inside: &'static str) -> Result<(), Malformed> {
        self.decoded_bytes += cost_bytes;
        if self.decoded_bytes > MAX_DECODED_BYTES {
            return Err(Malformed { offset, inside, problem: Problem::TooMuchMemory });
        }
        Ok(())
    }

    fn unknown(&mut self, field: UnknownField) {
        self.findings.unknown_count += 1;
        if self.findings.unknown.len() < MAX_LISTED_UNKNOWN {
            self.findings.unknown.push(field);
        }
    }
}
