//! Compiles `onnx.proto` without protoc: the message types, and a table of every field for the strict reader.

use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use std::{collections::BTreeMap, env, error::Error, fmt::Write as _, fs, path::PathBuf};

/// Attribute fields that hold at most one message: boxed, for most attributes hold a number.
const BOXED: [&str; 4] = ["t", "g", "tp", "sparse_tensor"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=onnx.proto");
    let descriptors = protox::compile(["onnx.proto"], ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("schema.rs"), schema(&descriptors)?)?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    for field in BOXED {
        config.boxed(format!(".onnx.AttributeProto.{field}"));
    }
    config.compile_fds(descriptors)?;
    Ok(())
}

/// Rust source of `MESSAGES`, one entry per message with its fields sorted by number.
fn schema(descriptors: &FileDescriptorSet) -> Result<String, Box<dyn Error>> {
    let mut messages = BTreeMap::new();
    for file in &descriptors.file {
        let package = format!(".{}", file.package());
        file.message_type.iter().for_each(|message| collect(&package, "crate::proto", message, &mut messages));
    }
    let index: BTreeMap<&String, usize> = messages.keys().enumerate().map(|(at, name)| (name, at)).collect();
    let mut source = String::new();
    writeln!(source, "const MODEL: usize = {};", index[&".onnx.ModelProto".to_owned()])?;
    writeln!(source, "static MESSAGES: [Message; {}] = [", messages.len())?;
    for (name, (rust, message)) in &messages {
        let short = name.trim_start_matches(".onnx.");
        writeln!(source, "Message {{ name: {short:?}, struct_bytes: size_of::<{rust}>(), fields: &[")?;
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        for field in fields {
            let kind = match field.r#type() {
                Type::Int32 | Type::Int64 | Type::Uint64 | Type::Enum => "Kind::Varint".to_owned(),
                Type::Float => "Kind::Fixed32".to_owned(),
                Type::Double => "Kind::Fixed64".to_owned(),
                Type::String => "Kind::Text".to_owned(),
                Type::Bytes => "Kind::Blob".to_owned(),
                Type::Message => format!("Kind::Message({})", index[&field.type_name().to_owned()]),
                other => return Err(format!("the reader does not know {other:?} fields").into()),
            };
            let repeated = field.label() == prost_types::field_descriptor_proto::Label::Repeated;
            let (number, field_name) = (field.number(), field.name());
            writeln!(
                source,
                "Field {{ number: {number}, name: {field_name:?}, kind: {kind}, repeated: {repeated} }},"
            )?;
        }
        writeln!(source, "] }},")?;
    }
    source.push_str("];\n");
    Ok(source)
}

type Messages<'a> = BTreeMap<String, (String, &'a DescriptorProto)>;

/// Gathers `message` and those nested in it, with the Rust path of the type generated for each.
fn collect<'a>(scope: &str, module: &str, message: &'a DescriptorProto, messages: &mut Messages<'a>) {
    let name = format!("{scope}.{}", message.name());
    let inner = format!("{module}::{}", snake_case(message.name()));
    message.nested_type.iter().for_each(|nested| collect(&name, &inner, nested, messages));
    messages.insert(name, (format!("{module}::{}", message.name()), message));
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
