//! Failures that the model or the spec brings with it.

use super::{Ended, FailureKind, Found, Messages, Node, between, first_with};
use crate::log::Message;

/// The ONNX parser's report. Several messages make one: the node, its text, and last the reason.
pub(super) fn parse(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let parser = messages.error(&[
        "while parsing node",
        "failed to parse onnx file",
        "parsing model failed",
        "modelimporter.cpp",
        "no importer registered",
        "unsupported_node",
        "could not open file",
        "in function parsegraph",
        "plugin not found, are the plugin name",
        "error parsing onnx",
    ])?;
    let node = node(&messages.errors);
    let reason = reason(&messages.errors).unwrap_or(parser);
    let text = reason.text.to_ascii_lowercase();
    let mut node = node.or_else(|| one_line_node(&reason.text));
    if let Some(operator) = between(&reason.text, "No importer registered for op: ", "\n") {
        let operator = operator.split(['.', ' ']).next().unwrap_or_default().to_owned();
        node = Some(Node { operator, ..node.unwrap_or_default() });
    }
    let unsupported = text.contains("no importer registered")
        || text.contains("unsupported_node")
        || text.contains("plugin not found")
        || text.contains("checkfallbackpluginimporter")
        || text.contains("importfallbackpluginimporter");
    let kind = match node {
        Some(node) if unsupported && is_foreign(&node.domain) => {
            FailureKind::PluginMissing { plugin: Some(node.operator) }
        }
        Some(node) if unsupported => FailureKind::UnsupportedOperator { node },
        node => FailureKind::Parse { node },
    };
    Some(Found::new(kind, &reason.text))
}

fn is_foreign(domain: &str) -> bool {
    !domain.is_empty() && domain != "ai.onnx" && domain != "com.microsoft"
}

/// `While parsing node number 5 [Range -> "out"]:`, followed by the node's own text.
fn node(errors: &[&Message]) -> Option<Node> {
    let (at, heading) = errors
        .iter()
        .enumerate()
        .find_map(|(at, message)| Some((at, between(&message.text, "While parsing node number ", "\n")?)))?;
    let index = heading.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    let inside = between(heading, "[", "]").unwrap_or_default();
    let operator = inside.split(" -> ").next().unwrap_or_default().trim().to_owned();
    let mut node = Node { index, operator, ..Node::default() };
    for message in errors.iter().skip(at).take_while(|message| !message.text.contains("--- End node ---")) {
        for line in message.text.lines() {
            // The first line of a message carries the parser's own file and line in front.
            let line = line.rsplit_once(".cpp:").map_or(line, |(_, rest)| rest.split_once(": ").map_or(rest, |r| r.1));
            // Attributes have names too, indented.
            if node.name.is_empty()
                && let Some(name) = quoted(line, "name: ")
            {
                node.name = name;
            } else if let Some(operator) = quoted(line, "op_type: ") {
                node.operator = operator;
            } else if let Some(domain) = quoted(line, "domain: ") {
                node.domain = domain;
            }
        }
    }
    Some(node)
}

/// `In node 12 with name: /a/Range and operator: Range (parseNode): UNSUPPORTED_NODE: ...`
fn one_line_node(text: &str) -> Option<Node> {
    let rest = text.split_once("In node ")?.1;
    let index = rest.split(' ').next()?.parse().ok();
    let name = between(rest, "with name: ", " and operator: ").filter(|_| rest.contains("and operator: "));
    let operator = between(rest, "and operator: ", " ");
    let has_any = index.is_some() || name.is_some();
    has_any.then(|| Node {
        index,
        name: name.unwrap_or_default().to_owned(),
        operator: operator.filter(|_| rest.contains("and operator: ")).unwrap_or_default().to_owned(),
        domain: String::new(),
    })
}

/// The value of a line of the node's text; without the closing quote where the text was cut.
fn quoted(line: &str, key: &str) -> Option<String> {
    let rest = line.strip_prefix(key)?.strip_prefix('"')?;
    Some(rest.strip_suffix('"').unwrap_or(rest).to_owned())
}

/// The message that says why: the one after the node's end, or the one with an error code of the parser.
fn reason<'a>(errors: &[&'a Message]) -> Option<&'a Message> {
    const REASONS: [&str; 8] = [
        "in function ",
        "unsupported_node",
        "invalid_node",
        "no importer registered",
        "plugin not found",
        "unsupported_graph",
        "invalid_graph",
        "could not open file",
    ];
    first_with(errors, &REASONS)
}

pub(super) fn shape(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "static model does not take explicit shapes",
        "cannot find input tensor with name",
        "min ~ max range",
        "does not satisfy any optimization profile",
        "optimization profiles must satisfy",
        "violate shape constraints",
        "no optimization profile has been defined",
        "shape missing",
        "network has dynamic or shape inputs",
        "invalid dimensions for",
        "dimensions for profile",
        "profile does not match",
        "out of range of the profile",
        "setinputshape",
        "optimization profile is missing values for input",
        "could not set dimensions",
    ])?;
    let tensor = between(&message.text, "input tensor with name \"", "\"")
        .filter(|_| message.text.contains("input tensor with name"))
        .or_else(|| between(&message.text, "bindings[", "]").filter(|_| message.text.contains("bindings[")))
        .or_else(|| {
            between(&message.text, "missing values for input ", " ").filter(|_| message.text.contains("for input "))
        })
        .map(|name| name.trim_matches(['"', '\'', '.', ' ']).to_owned())
        .filter(|name| !name.is_empty());
    Some(Found::new(FailureKind::Shape { tensor }, &message.text))
}

pub(super) fn calibration(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "calibration failure",
        "calibration cache",
        "calibration table",
        "calibration data",
        "calibration file",
        "calibrator is null",
        "no calibrator",
        "calibrator",
        "int8 calibration",
        "missing dynamic range",
        "no scale information",
    ])?;
    Some(Found::new(FailureKind::Calibration, &message.text))
}

/// `Could not find any implementation for node NAME`. Memory is to blame when tactics were left out for want of it.
pub(super) fn no_implementation(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&["could not find any implementation for node"])?;
    let at = message.text.to_ascii_lowercase().find("implementation for node")? + "implementation for node".len();
    let rest = message.text.get(at..)?.trim_start().lines().next().unwrap_or_default();
    // The sentence may go on after the name, or a bracket of the error code may close it.
    let name = rest.split_once(" due to ").or(rest.split_once(", try ")).map_or(rest, |(name, _)| name);
    let name = name.trim_end().strip_suffix(')').filter(|name| unbalanced(rest) || name.ends_with('}')).unwrap_or(name);
    let name = name.trim_end().trim_end_matches('.').to_owned();
    let said = message.text.to_ascii_lowercase();
    let memory = said.contains("workspace")
        || said.contains("memory")
        || messages.warning(WANT_OF_MEMORY).is_some()
        || messages.error(WANT_OF_MEMORY).is_some();
    Some(Found::new(FailureKind::NoImplementation { node: name, memory }, &message.text))
}

/// More brackets are closed than opened: the last one belongs to the sentence.
fn unbalanced(text: &str) -> bool {
    text.matches(')').count() > text.matches('(').count()
}

/// What is said when tactics are left out for want of memory.
pub(super) const WANT_OF_MEMORY: &[&str] = &[
    "insufficient memory",
    "insufficient workspace",
    "sufficient workspace",
    "outofmemory",
    "out of memory",
    "could not be allocated",
    "memory is insufficient",
];
