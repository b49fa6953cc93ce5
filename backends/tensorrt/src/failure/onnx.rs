//! What the ONNX parser says when it gives up.

use super::{Ended, FailureKind, Found, Messages, Node, between, first_with};
use crate::log::Message;

/// Initializers that the parser could not take: data outside of the file that is not there, or is cut.
pub(super) fn missing_weights(_: &Ended<'_>, messages: &Messages<'_>) -> Option<Found> {
    let message = messages.error(&[
        "failed to import initializer",
        "failed to import initialzer",
        "failed to open external",
        "convertonnxweights",
        "convert_onnx_weights",
        "external data",
        "external weights",
        "weights file",
        "failed to open file: ",
    ])?;
    Some(Found::new(FailureKind::MissingWeights, &message.text))
}

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
        "failed to parse onnx model",
        "in function check",
        "in function import",
        "node name: ",
    ])?;
    let node = node(&messages.errors);
    let reason = reason(&messages.errors).unwrap_or(parser);
    let text = reason.text.to_ascii_lowercase();
    let mut node = node.or_else(|| one_line_node(&reason.text));
    let checked = checked_operator(&reason.text);
    if let Some(operator) = checked.filter(|_| node.as_ref().is_none_or(|node| node.operator.is_empty())) {
        node = Some(Node { operator: operator.to_owned(), ..node.unwrap_or_default() });
    }
    if let Some(node) = node.as_mut().filter(|node| node.domain.is_empty()) {
        node.domain = plugin_domain(messages, &node.operator).unwrap_or_default();
    }
    if let Some(operator) = between(&reason.text, "No importer registered for op: ", "\n") {
        let operator = operator.split(['.', ' ']).next().unwrap_or_default().to_owned();
        node = Some(Node { operator, ..node.unwrap_or_default() });
    }
    let unsupported = text.contains("no importer registered")
        || text.contains("unsupported_node")
        || text.contains("plugin not found")
        || checked.is_some()
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

/// `In function checkDet:` with the parser's code for a node that is not supported: the operator's own check refused it.
fn checked_operator(reason: &str) -> Option<&str> {
    const UNSUPPORTED_NODE: &str = "[8]";
    let (_, rest) = reason.split_once("In function check")?;
    let (operator, rest) = rest.split_once(':')?;
    let is_name = !operator.is_empty() && operator.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (is_name && operator != "FallbackPluginImporter" && rest.trim_start().starts_with(UNSUPPORTED_NODE))
        .then_some(operator)
}

/// `Cannot find plugin: Swirl, version: 1, namespace:my.ops.`: whose plugin was looked for.
fn plugin_domain(messages: &Messages<'_>, operator: &str) -> Option<String> {
    let wanted = format!("Cannot find plugin: {operator},");
    let message = messages.errors.iter().find(|message| message.text.contains(&wanted))?;
    let namespace = between(&message.text, "namespace:", ")")?.trim().trim_end_matches('.');
    (!namespace.is_empty()).then(|| namespace.to_owned())
}

fn is_foreign(domain: &str) -> bool {
    !domain.is_empty() && domain != "ai.onnx" && domain != "com.microsoft"
}

/// What newer parsers put before the name of the node in a line of its own.
pub(super) const NODE_NAME: &str = "Node name: ";

/// `While parsing node number 5 [Range -> "out"]:`, followed by the node's own text.
fn node(errors: &[&Message]) -> Option<Node> {
    let headed = errors
        .iter()
        .enumerate()
        .find_map(|(at, message)| Some((at, between(&message.text, "While parsing node number ", "\n")?)));
    let named = || errors.iter().position(|message| message.text.contains(NODE_NAME)).map(|at| (at, ""));
    let (at, heading) = headed.or_else(named)?;
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
            } else if let Some((_, name)) = line.split_once(NODE_NAME) {
                node.name = name.trim().trim_matches('"').to_owned();
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
