//! Processes that answer, and the messages between them and who asks.

use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// The longest field of a message; sources and cubins stay far below, what is longer is sent in parts.
const MAX_FIELD_BYTES: u32 = 256 << 20;
/// The most fields of a message.
const MAX_FIELDS: u32 = 1 << 16;

/// One that answers. Dropped, it is dead.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pub input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Self { child, input: BufWriter::new(input), output: BufReader::new(output) })
            }
            _ => Err(io::Error::other("it has no pipes")),
        }
    }

    /// What it says next.
    ///
    /// # Errors
    /// When it says nothing more, or what is no message.
    pub fn answer(&mut self) -> io::Result<Vec<Vec<u8>>> {
        Ok(read_message(&mut self.output)?.ok_or(io::ErrorKind::UnexpectedEof)?)
    }

    /// Why it does not answer.
    pub fn end(mut self, error: &io::Error) -> String {
        if error.kind() == io::ErrorKind::InvalidData {
            return error.to_string();
        }
        // Its end of a pipe is closed: it has ended, or is about to.
        match self.child.wait() {
            Ok(status) => format!("it ended without an answer ({status})"),
            Err(_) => error.to_string(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and is only taken note of.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of a message that is none of those it may be.
pub fn something_else() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it answers something else")
}

/// Number of fields, then each behind its length, little-endian.
///
/// # Errors
/// When nobody reads it, or a length does not fit.
pub fn write_message(output: &mut impl Write, fields: &[&[u8]]) -> io::Result<()> {
    let count = |count: usize| u32::try_from(count).map_err(|_| io::Error::other("a message is too long"));
    output.write_all(&count(fields.len())?.to_le_bytes())?;
    for field in fields {
        output.write_all(&count(field.len())?.to_le_bytes())?;
        output.write_all(field)?;
    }
    output.flush()
}

/// `None` where the input ends ahead of a message.
///
/// # Errors
/// When it ends within one, or what comes is none.
pub fn read_message(input: &mut impl Read) -> io::Result<Option<Vec<Vec<u8>>>> {
    let mut first = [0; 4];
    if input.read(&mut first[..1])? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut first[1..])?;
    let number = |bytes: [u8; 4], most: u32| match u32::from_le_bytes(bytes) {
        number if number <= most => Ok(number),
        number => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{number} where at most {most} may stand"))),
    };
    let count = number(first, MAX_FIELDS)?;
    let mut fields = Vec::new();
    for _ in 0..count {
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let length = number(length, MAX_FIELD_BYTES)?;
        let mut field = Vec::new();
        // Grows with what comes, whatever the length says.
        if input.take(length.into()).read_to_end(&mut field)? < length as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        fields.push(field);
    }
    Ok(Some(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_sent() {
        let mut sent = Vec::new();
        let messages: [&[&[u8]]; 3] = [&[b"sm_90a", b"", &[0; 70_000]], &[], &[b"x"]];
        for message in messages {
            write_message(&mut sent, message).unwrap();
        }
        let mut input = sent.as_slice();
        for message in messages {
            assert_eq!(read_message(&mut input).unwrap().unwrap(), message);
        }
        assert_eq!(read_message(&mut input).unwrap(), None);
        for cut in [1, 3, 5, 9, 20, 70_000] {
            assert_eq!(read_message(&mut &sent[..cut]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{cut}");
        }
        assert_eq!(read_message(&mut &[255u8; 64][..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
