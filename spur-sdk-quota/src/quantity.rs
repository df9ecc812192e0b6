//! Kubernetes quantities as numbers: the API server gives `4000M` back as `4G`.

/// The value in billionths, or `None` for what is no quantity.
///
/// Source: `k8s.io/apimachinery/pkg/api/resource/quantity.go`.
pub(crate) fn parse_quantity(text: &str) -> Option<i128> {
    const NANO: i128 = 1_000_000_000;
    let (negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || fraction.len() > 18 {
        return None;
    }
    let scale = scale(suffix)?;
    let part = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<i128>().ok() };
    let unit = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let units = part(whole)?.checked_mul(unit)?.checked_add(part(fraction)?)?;
    // units / unit * scale, in billionths, without losing the rest of a division.
    let (numerator, denominator) = scale;
    let value =
        units.checked_mul(numerator)?.checked_mul(NANO)?.checked_div(unit.checked_mul(denominator)?)?;
    Some(if negative { value.checked_neg()? } else { value })
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "" => (1, 1),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::parse_quantity;

    #[test]
    fn equal_amounts_in_different_spellings_are_equal() {
        for (a, b) in [
            ("4000M", "4G"),
            ("1000m", "1"),
            ("1Gi", "1073741824"),
            ("2e3", "2k"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
        ] {
            assert_eq!(parse_quantity(a), parse_quantity(b), "{a} {b}");
            assert!(parse_quantity(a).is_some());
        }
        assert_ne!(parse_quantity("1M"), parse_quantity("1Mi"));
        assert_eq!(parse_quantity("-1"), Some(-1_000_000_000));
        for text in ["", "x", "1X", "1..2", "Mi", "1e", "."] {
            assert_eq!(parse_quantity(text), None, "{text}");
        }
    }
}
