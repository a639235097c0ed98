//! Hexadecimal digits. Keys pass through here, so what is read is overwritten when it is dropped.

use zeroize::Zeroizing;

/// `N` bytes from exactly `2 N` hexadecimal digits.
pub(crate) fn parse<const N: usize>(text: &str) -> Option<Zeroizing<[u8; N]>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !odd.is_empty() {
        return None;
    }
    let mut bytes = Zeroizing::new([0; N]);
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// Appends the digits of `bytes`. A text with room for them leaves no copy behind.
pub(crate) fn push(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_go_both_ways_and_nothing_else_is_read() {
        let mut text = String::new();
        push(&mut text, &[0x00, 0xa5, 0xff]);
        assert_eq!(text, "00a5ff");
        assert_eq!(parse(&text).map(|bytes| *bytes), Some([0x00, 0xa5, 0xff]));
        assert_eq!(parse("00A5fF").map(|bytes| *bytes), Some([0x00, 0xa5, 0xff]));
        for bad in ["00a5f", "00a5ff0", "00a5fg", "+0a5ff", "é0a5f"] {
            assert_eq!(parse::<3>(bad).map(|bytes| *bytes), None, "{bad}");
        }
    }
}
