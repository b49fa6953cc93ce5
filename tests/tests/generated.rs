//! The Rust code of the two protobuf schemas, generated here and committed, so that building the product compiles no
//! protobuf compiler. `PLANFORGE_BLESS=1 cargo nextest run -p planforge-tests generated` writes it anew.

use prost::Message as _;
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use std::{
    collections::{BTreeMap, BTreeSet},
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

const CONTRACT: [&str; 4] = ["common", "declared", "farm", "fleet"];

fn schema_of(name: &str) -> String {
    format!("planforge/v1/{name}.proto")
}

#[test]
fn the_contract_is_generated_from_its_schema() -> Result<(), Failure> {
    let fresh = tempfile::tempdir()?;
    let descriptors = protox::compile(CONTRACT.map(schema_of), [root().join("proto")])?;
    fs::write(fresh.path().join("planforge.v1.binpb"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().out_dir(fresh.path()).compile_fds(descriptors)?;
    hold(&root().join("proto/generated"), fresh.path())
}

/// Every method and field of the contract, a line each.
fn contract() -> Result<BTreeSet<String>, Failure> {
    let mut told = BTreeSet::new();
    for file in protox::compile(CONTRACT.map(schema_of), [root().join("proto")])?.file {
        for service in &file.service {
            for method in &service.method {
                let (asked, told_back) = (method.input_type(), method.output_type());
                let streams =
                    [method.client_streaming(), method.server_streaming()].map(|on| if on { "stream " } else { "" });
                let name = format!("{}.{}", service.name(), method.name());
                told.insert(format!("{name}({}{asked}) returns ({}{told_back})", streams[0], streams[1]));
            }
        }
        for message in &file.message_type {
            for field in &message.field {
                let kind = match field.type_name() {
                    "" => format!("{:?}", field.r#type()),
                    name => name.to_owned(),
                };
                let place = format!("{}.{}", message.name(), field.name());
                told.insert(format!("{place} = {}: {:?} {kind}", field.number(), field.label()));
            }
        }
        for names in &file.enum_type {
            let value = |value: &prost_types::EnumValueDescriptorProto| {
                format!("{}.{} = {}", names.name(), value.name(), value.number())
            };
            told.extend(names.value.iter().map(value));
        }
    }
    Ok(told)
}

/// Clients and coordinators of two releases understand each other as long as nothing of the contract goes away or becomes
/// something else: what one does not send, or does not know, is left out. Every line that ever stood there is kept.
#[test]
fn the_contract_only_grows() -> Result<(), Failure> {
    let path = root().join("proto/planforge/v1/contract.txt");
    let now = contract()?;
    let kept = fs::read_to_string(&path)?;
    let kept: BTreeSet<String> = kept.lines().map(str::to_owned).collect();
    let gone: Vec<&String> = kept.difference(&now).collect();
    assert!(gone.is_empty(), "older releases send and read these: {gone:#?}");
    if std::env::var_os("PLANFORGE_BLESS").is_some() {
        let lines: Vec<&str> = now.iter().map(String::as_str).collect();
        fs::write(&path, lines.join("\n") + "\n")?;
        return Ok(());
    }
    let new: Vec<&String> = now.difference(&kept).collect();
    assert!(new.is_empty(), "PLANFORGE_BLESS=1 writes these to {}: {new:#?}", path.display());
    Ok(())
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
