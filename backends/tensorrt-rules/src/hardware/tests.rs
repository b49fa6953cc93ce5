use super::*;
use std::collections::BTreeMap;

fn cc(text: &str) -> Capability {
    text.parse().unwrap()
}

fn board(capability: &str) -> Board<'static> {
    Board { capability: cc(capability), driver: None }
}

fn precision(precision: Precision) -> BuildSpec {
    BuildSpec { precision, ..BuildSpec::default() }
}

fn checked(version: &str, capability: &str, spec: &BuildSpec) -> Result<Vec<String>, Refusal> {
    check(version.parse().unwrap(), &board(capability), spec, None)
}

#[test]
fn a_version_that_does_not_know_the_gpu_is_refused_with_those_that_do() {
    let plain = BuildSpec::default();
    for (version, capability, able) in [
        ("8.4.1", "9.0", "8.5.1 and newer do"),
        ("8.4.3", "8.9", "8.5.1 and newer do"),
        ("10.3.0", "10.0", "10.8.0 and newer do"),
        ("10.7.0.23", "12.0", "10.8.0 and newer do"),
        ("10.13.0", "7.0", "versions before 10.5 do"),
        ("11.1.0", "7.0", "versions before 10.5 do"),
        ("10.0.1", "6.1", "versions before 10.0 do"),
        ("8.6.1", "5.2", "versions before 8.6 do"),
    ] {
        let refusal = checked(version, capability, &plain).unwrap_err();
        let text = refusal.to_string();
        assert!(
            text.starts_with(&format!("TensorRT {version} does not support GPUs of compute capability {capability}")),
            "{text}"
        );
        assert!(text.ends_with(able), "{text}");
        assert!(refusal.hint().contains("--toolchain"), "{}", refusal.hint());
    }
    for (version, capability) in [
        ("8.4.1", "7.0"),
        ("10.4.0", "7.0"),
        ("8.4.1", "7.5"),
        ("11.1.0", "7.5"),
        ("8.5.1", "9.0"),
        ("8.5.1", "8.9"),
        ("10.8.0", "12.0"),
        ("11.1.0", "10.3"),
        ("8.6.1", "6.1"),
    ] {
        assert_eq!(checked(version, capability, &plain), Ok(vec![]), "{version} on {capability}");
    }
    // Newer than the table: let through, and said.
    assert!(checked("11.1.0", "13.0", &plain).unwrap()[0].contains("not known here"));
}

#[test]
fn precisions_without_hardware_are_refused_and_what_tensorrt_makes_do_with_is_told() {
    for (wanted, capability, good) in [
        (Precision::Bf16, "7.5", false),
        (Precision::Bf16, "7.0", false),
        (Precision::Bf16, "8.0", true),
        (Precision::Fp8, "8.0", false),
        (Precision::Fp8, "7.5", false),
        (Precision::Fp8, "8.6", false),
        (Precision::Fp8, "8.9", true),
        (Precision::Fp8, "9.0", true),
        (Precision::Int8, "7.5", true),
        (Precision::Best, "7.5", true),
    ] {
        let checked = checked("10.3.0", capability, &precision(wanted));
        assert_eq!(checked.is_ok(), good, "{wanted:?} on {capability}: {checked:?}");
        if let Err(refusal) = checked {
            assert!(!refusal.hint().is_empty() && refusal.to_string().contains(capability), "{refusal}");
        }
    }
    assert!(checked("10.3.0", "7.5", &precision(Precision::Tf32)).unwrap()[0].contains("computes in fp32"));
    assert!(checked("8.6.1", "6.1", &precision(Precision::Fp16)).unwrap()[0].contains("without hardware"));
    assert_eq!(precisions(cc("7.5")), ["fp32", "fp16", "int8"]);
    assert_eq!(precisions(cc("9.0")), ["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]);
}

#[test]
fn options_and_compatibility_need_their_hardware_too() {
    let with = |name: &str, value: &str, precision: Precision| BuildSpec {
        precision,
        options: BTreeMap::from([(name.to_owned(), value.to_owned())]),
        ..BuildSpec::default()
    };
    let said = |spec: &BuildSpec, capability: &str| checked("10.9.0", capability, spec).unwrap_err().to_string();
    assert!(said(&with("quantized_fallback", "bf16", Precision::Int8), "7.5").contains("quantized_fallback=bf16"));
    assert!(said(&with("layer_precisions", "a:bf16", Precision::Fp16), "7.5").contains("layer_precisions"));
    assert!(said(&with("input_formats", "fp8:chw", Precision::Fp16), "8.6").contains("input_formats"));
    let level = |level: &str| BuildSpec { hardware_compatibility: Some(level.into()), ..BuildSpec::default() };
    assert!(said(&level("ampere+"), "7.5").contains("ampere+"));
    assert_eq!(checked("10.9.0", "7.5", &level("same_compute_capability")), Ok(vec![]));
    assert_eq!(checked("10.9.0", "8.0", &level("ampere+")), Ok(vec![]));
    assert!(checked("10.9.0", "7.5", &with("sparsity", "enable", Precision::Fp16)).unwrap()[0].contains("sparse"));
}

#[test]
fn an_old_driver_is_a_warning() {
    let with = |driver| Board { capability: cc("8.0"), driver: Some(driver) };
    let plain = BuildSpec::default();
    let warned =
        |version: &str, driver| !check(version.parse().unwrap(), &with(driver), &plain, None).unwrap().is_empty();
    assert!(warned("11.1.0", "570.124.06") && !warned("11.1.0", "580.65.06"));
    assert!(warned("10.13.2", "470.57.02") && !warned("10.13.0", "470.57.02"));
    assert!(!warned("8.4.1", "450.80.02") && warned("8.4.1", "440.33"));
    let built_for = driver("10.9.0".parse().unwrap(), Some("12.8"), &with("470.57.02")).unwrap();
    assert!(built_for.contains("525"), "{built_for}");
}

#[test]
fn every_row_has_its_source_and_stands_once() {
    let sources = ARCHITECTURES.iter().map(|row| row.source).chain(NEEDS.iter().map(|row| row.source));
    let sources = sources.chain(DRIVERS.iter().map(|row| row.source)).chain(TOOLKITS.iter().map(|row| row.source));
    assert!(sources.clone().all(|source| source.len() > 20) && sources.count() >= 30);
    assert!(ARCHITECTURES.windows(2).all(|pair| pair[0].capability < pair[1].capability));
    for row in NEEDS {
        assert_eq!(NEEDS.iter().filter(|other| other.need == row.need).count(), 1, "{}", row.name);
    }
    assert!("9".parse::<Capability>().is_err() && "a.b".parse::<Capability>().is_err());
}
