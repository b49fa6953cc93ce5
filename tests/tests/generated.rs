//! The Rust code of the two protobuf schemas, generated here and committed, so that building the product compiles no
//! protobuf compiler. `PLANFORGE_BLESS=1 cargo nextest run -p planforge-tests generated` writes it anew.

use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use std::{
    collections::BTreeMap,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

type Failure = Box<dyn Error>;

/// Holds what stands in `folder` to what was generated into `fresh`, or replaces it.
fn hold(folder: &Path, fresh: &Path) -> Result<(), Failure> {
    let names = |folder: &Path| -> Result<Vec<_>, Failure> {
        let mut names =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, Failure>>()?;
        names.sort();
        Ok(names)
    };
    if std::env::var_os("PLANFORGE_BLESS").is_some() {
        for name in names(fresh)? {
            fs::copy(fresh.join(&name), folder.join(&name))?;
        }
    }
    assert_eq!(names(folder)?, names(fresh)?, "{}", folder.display());
    for name in names(fresh)? {
        let same = fs::read(folder.join(&name))? == fs::read(fresh.join(&name))?;
        assert!(same, "{} is not what its schema gives; PLANFORGE_BLESS=1 writes it", folder.join(&name).display());
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_contract_is_generated_from_its_schema() -> Result<(), Failure> {
    let fresh = tempfile::tempdir()?;
    let files = ["planforge/v1/common.proto", "planforge/v1/farm.proto", "planforge/v1/fleet.proto"];
    let descriptors = protox::compile(files, [root().join("proto")])?;
    tonic_prost_build::configure().out_dir(fresh.path()).compile_fds(descriptors)?;
    hold(&root().join("proto/generated"), fresh.path())
}

/// The message types, and a table of every field for the strict reader.
#[test]
fn onnx_is_generated_from_its_schema() -> Result<(), Failure> {
    /// Attribute fields that hold at most one message: boxed, for most attributes hold a number.
    const BOXED: [&str; 4] = ["t", "g", "tp", "sparse_tensor"];
    let fresh = tempfile::tempdir()?;
    let descriptors = protox::compile(["onnx.proto"], [root().join("engine-core/onnx")])?;
    fs::write(fresh.path().join("schema.rs"), schema(&descriptors)?)?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]).out_dir(fresh.path());
    for field in BOXED {
        config.boxed(format!(".onnx.AttributeProto.{field}"));
    }
    config.compile_fds(descriptors)?;
    hold(&root().join("engine-core/onnx/generated"), fresh.path())
}

/// Rust source of `MESSAGES`, one entry per message with its fields sorted by number.
fn schema(descriptors: &FileDescriptorSet) -> Result<String, Failure> {
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
