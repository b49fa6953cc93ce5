//! In which form engines compute GELU, in the words of reports.

use std::collections::BTreeMap;

/// With erf, as the model has it.
pub const ERF: &str = "erf";
/// The approximation with tanh, where the model has erf.
pub const ERF_BY_TANH: &str = "erf by tanh";
/// With tanh, as the model has it.
pub const TANH: &str = "tanh";

/// `12 by erf, exact; 1 by tanh, as the model has it`; `None` where there is none.
pub fn words(forms: &BTreeMap<String, u64>) -> Option<String> {
    let meaning = |form: &str| match form {
        ERF => "by erf, exact".to_owned(),
        ERF_BY_TANH => "by tanh, an approximation of the model's erf".to_owned(),
        TANH => "by tanh, as the model has it".to_owned(),
        other => other.to_owned(),
    };
    let parts: Vec<String> = forms.iter().map(|(form, count)| format!("{count} {}", meaning(form))).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_its_meaning() {
        let forms = [(ERF, 12), (ERF_BY_TANH, 2), (TANH, 1)];
        let forms = forms.map(|(form, count)| (form.to_owned(), count));
        let said = "12 by erf, exact; 2 by tanh, an approximation of the model's erf; 1 by tanh, as the model has it";
        assert_eq!(words(&BTreeMap::from(forms)).as_deref(), Some(said));
        assert_eq!(words(&BTreeMap::new()), None);
    }
}
