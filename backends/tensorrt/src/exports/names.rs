//! The model's nodes behind a layer's name.

/// Nodes of one layer; more are not kept.
const MAX_NODES: usize = 1024;

/// Nodes that a detailed layer's metadata lists: `[ONNX Layer: a][ONNX Layer: b]`, with or without the control
/// characters that some versions put between and inside.
pub(super) fn nodes_of_metadata(metadata: &str) -> Vec<String> {
    const OPEN: &str = "[ONNX Layer: ";
    let mut nodes: Vec<String> = Vec::new();
    for part in metadata.split(OPEN).skip(1).take(MAX_NODES) {
        let part = part.split(['\u{1e}', '\u{1f}']).next().unwrap_or(part).trim_end();
        // The entry's own closing bracket; names have brackets too.
        let closes = part.matches(']').count() > part.matches('[').count();
        let name = part.strip_suffix(']').filter(|_| closes).unwrap_or(part);
        push(&mut nodes, name);
    }
    nodes
}

/// Nodes that a fused layer's name lists: `conv1 + relu1`, `PWN(a + b)`, `a || b`. Copies and layers that TensorRT
/// made up have none.
pub fn nodes_of_name(name: &str) -> Vec<String> {
    let mut nodes = Vec::new();
    if name.starts_with("Reformatting CopyNode") || name.starts_with("__my") {
        return nodes;
    }
    let inside = name.strip_prefix("{ForeignNode[").and_then(|rest| rest.strip_suffix("]}"));
    if let Some(inside) = inside {
        // The first and the last of a whole subgraph.
        inside.split("...").for_each(|end| push(&mut nodes, end));
        return nodes;
    }
    // Pointwise networks nest, with commas between: PWN(PWN(a), b).
    let pointwise = name.contains("PWN(");
    let flat = name.replace("PWN(", "");
    let parts = flat.split(" + ").flat_map(|part| part.split(" || "));
    let parts = parts.flat_map(|part| part.split(if pointwise { ", " } else { "\n" }));
    for part in parts.take(MAX_NODES) {
        let mut part = part.trim();
        for _ in part.matches('(').count()..part.matches(')').count() {
            part = part.strip_suffix(')').unwrap_or(part);
        }
        push(&mut nodes, part);
    }
    nodes
}

fn push(nodes: &mut Vec<String>, name: &str) {
    let name = name.trim();
    if !name.is_empty() && !name.starts_with("(Unnamed Layer*") && !nodes.iter().any(|known| known == name) {
        nodes.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_names_are_taken_apart() {
        for (name, nodes) in [
            ("conv1 + relu1", vec!["conv1", "relu1"]),
            ("PWN(PWN(sig), mul)", vec!["sig", "mul"]),
            ("PWN((Unnamed Layer* 11) [ElementWise] + relu_2)", vec!["relu_2"]),
            ("a || b + c", vec!["a", "b", "c"]),
            ("{ForeignNode[/a/Add.../b/MatMul]}", vec!["/a/Add", "/b/MatMul"]),
            ("Reformatting CopyNode for Input Tensor 0 to conv1 + relu1", vec![]),
            ("__myl_MulSum_myl4_1", vec![]),
            ("(Unnamed Layer* 5) [Shuffle]", vec![]),
            ("/a/Conv (1)", vec!["/a/Conv (1)"]),
        ] {
            assert_eq!(nodes_of_name(name), nodes, "{name}");
        }
    }

    #[test]
    fn metadata_with_and_without_separators() {
        for metadata in [
            "[ONNX Layer: a[0]]\u{1e}[ONNX Layer: b]",
            "[ONNX Layer: a[0]][ONNX Layer: b]",
            "[ONNX Layer: a[0]]\u{1f}[ONNX Layer: b]\u{1f}",
        ] {
            let nodes = nodes_of_metadata(metadata);
            assert_eq!(nodes.len(), 2, "{metadata:?}");
            assert_eq!(nodes[1], "b");
        }
        assert_eq!(nodes_of_metadata(""), Vec::<String>::new());
        assert_eq!(nodes_of_metadata("[ONNX Layer: a"), ["a"]);
        assert_eq!(nodes_of_metadata("[ONNX Layer: a]\u{1f}[ONNX Layer: a]"), ["a"]);
    }
}
