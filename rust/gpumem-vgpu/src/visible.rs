//! Which devices the program may see: `CUDA_VISIBLE_DEVICES` as the CUDA programming guide describes it ("CUDA environment
//! variables") and as `PyTorch` reads it for NVML (`torch.cuda._parse_visible_devices`).

/// Numbers of the visible devices, in the program's order, of the `count` there are.
///
/// `text` is the variable's value; `None`, where it is not set, leaves all of them. `uuid` gives a device's name in the
/// form `GPU-...`. The list ends before the first entry that names no device; an entry named twice leaves none.
pub(crate) fn visible(text: Option<&str>, count: usize, uuid: impl Fn(usize) -> String) -> Vec<usize> {
    let Some(text) = text else { return (0..count).collect() };
    let by_uuid = text.starts_with("GPU-");
    let mut found = Vec::new();
    for entry in text.split(',') {
        let number = if by_uuid { by_prefix(entry, count, &uuid) } else { leading_number(entry.trim()) };
        let Some(number) = number else { break };
        if found.contains(&number) {
            return Vec::new();
        }
        found.push(number);
    }
    let known = found.iter().take_while(|&&number| number < count).count();
    found.truncate(known);
    found
}

/// The one device whose name begins with `entry`.
fn by_prefix(entry: &str, count: usize, uuid: impl Fn(usize) -> String) -> Option<usize> {
    let mut matching = (0..count).filter(|&device| entry.starts_with("GPU-") && uuid(device).starts_with(entry));
    let first = matching.next()?;
    matching.next().is_none().then_some(first)
}

/// The number that `entry` begins with, as C's `strtoul` finds it; none for negative ones.
fn leading_number(entry: &str) -> Option<usize> {
    let digits = entry.strip_prefix('+').unwrap_or(entry);
    let length = digits.bytes().take_while(u8::is_ascii_digit).count();
    // A number with too many digits is no device's.
    (length > 0).then(|| digits.get(..length).and_then(|digits| digits.parse().ok()).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<usize> {
        visible(Some(text), 3, |device| format!("GPU-{device}a1{device}"))
    }

    #[test]
    fn the_order_is_the_programs() {
        assert_eq!(visible(None, 3, |_| String::new()), [0, 1, 2]);
        assert_eq!(
            (of("2,0"), of("1"), of(" 1 ,+2"), of("1gpu2,2ampere")),
            (vec![2, 0], vec![1], vec![1, 2], vec![1, 2])
        );
    }

    #[test]
    fn what_is_no_device_ends_the_list() {
        for (text, expected) in [
            ("", &[][..]),
            ("-1", &[]),
            ("0,-1,1", &[0]),
            ("0,3,1", &[0]),
            ("x", &[]),
            ("0,,1", &[0]),
            ("NoDevFiles", &[]),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        assert_eq!(of("0,99999999999999999999999,1"), [0]);
    }

    #[test]
    fn twice_the_same_is_none() {
        assert_eq!((of("0,0"), of("1,2,1"), of("0,7,7")), (vec![], vec![], vec![]));
    }

    #[test]
    fn names_may_be_cut_short_while_they_are_clear() {
        assert_eq!(
            (of("GPU-2,GPU-0a"), of("GPU-1a11"), of("GPU-"), of("GPU-1,0")),
            (vec![2, 0], vec![1], vec![], vec![1])
        );
        assert_eq!((of("GPU-0,GPU-0a1"), of("GPU-9"), of("MIG-GPU-0")), (vec![], vec![], vec![]));
    }
}
