//! Kubernetes quantities, read exactly.

/// The whole units of a Kubernetes quantity (`1Gi`, `1500M`, `0.5`, `1e9`, `128974848000m`), rounded up as Kubernetes
/// itself rounds when it needs a whole number. `None` when it is no quantity, is negative, or does not fit.
pub fn whole_units(quantity: &str) -> Option<u64> {
    let end = quantity
        .find(|character: char| !matches!(character, '0'..='9' | '.' | '+'))
        .unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at_checked(end)?;
    let (digits, fraction_digits) = digits(number.strip_prefix('+').unwrap_or(number))?;
    let (factor, shift) = factor(suffix)?;
    let scaled = digits.checked_mul(factor)?;
    let shift = shift.checked_sub(i32::try_from(fraction_digits).ok()?)?;
    let power = 10_u128.checked_pow(shift.unsigned_abs());
    let units = if shift >= 0 {
        scaled.checked_mul(power?)?
    } else {
        // A divisor beyond u128 leaves a fraction of one unit, which counts as one unless it is nothing.
        power.map_or(u128::from(scaled > 0), |power| scaled.div_ceil(power))
    };
    u64::try_from(units).ok()
}

/// `12.50` as the digits 1250 and how many of them are behind the point.
fn digits(number: &str) -> Option<(u128, usize)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !all(whole) || !all(fraction) {
        return None;
    }
    Some((format!("{whole}{fraction}").parse().ok()?, fraction.len()))
}

/// A suffix as a whole factor and a power of ten.
fn factor(suffix: &str) -> Option<(u128, i32)> {
    let decimal = |power| Some((1, power));
    let binary = |power: u32| Some((1_u128 << power, 0));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            decimal(exponent.parse().ok().filter(|_| plain)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix_is_exact() {
        for (quantity, units) in [
            ("0", 0),
            ("1", 1),
            ("128974848", 128_974_848),
            ("128974848000m", 128_974_848),
            ("129e6", 129_000_000),
            ("129E6", 129_000_000),
            ("1e-3", 1),
            ("129M", 129_000_000),
            ("123Mi", 128_974_848),
            ("1.5Gi", 1_610_612_736),
            (".5Ki", 512),
            ("5.", 5),
            ("+2k", 2000),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("1n", 1),
            ("0.1Ki", 103),
            ("0e-99", 0),
            ("1e-99", 1),
        ] {
            assert_eq!(whole_units(quantity), Some(units), "{quantity}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_not_guessed() {
        for text in
            ["", "-1", "1 Gi", "Gi", ".", "1.2.3", "1gi", "1KB", "0x10", "1e", "1e+-2", "1e99", "99Ei", "１"]
        {
            assert_eq!(whole_units(text), None, "{text}");
        }
    }
}
