fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut o = planforge_modelgen::Options::default();
    for x in &a[3..] {
        match x.as_str() {
            "dyn" => o.style.batch = planforge_modelgen::Batch::Dynamic,
            "fp16" => o.precision = planforge_modelgen::Precision::Fp16,
            "int8" => o.precision = planforge_modelgen::Precision::Int8,
            "prim" => o.style.layer_norm = planforge_modelgen::LayerNormForm::Primitives,
            _ => panic!(),
        }
    }
    println!("{:?}", planforge_modelgen::generate(&a[1], &o, a[2].as_ref()).unwrap());
}
