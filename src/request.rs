//! The cursor with which commands and option tables read arguments. All validation is over before anything changes.

use crate::error::Error;
use std::ops::RangeInclusive;

/// The largest integer that Lua and JavaScript read exactly, 2^53 - 1.
pub const MAX_SAFE: i64 = (1 << 53) - 1;

/// Ten years in milliseconds: the longest lease and the longest wait.
pub const TEN_YEARS_MS: i64 = 10 * 365 * 24 * 3600 * 1000;

/// The most keys that a command with `numkeys` takes.
pub const MAX_KEYS: i64 = 1024;

/// Reads arguments from left to right.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    args: &'a [&'a [u8]],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor over a command's arguments, the command's own name left out.
    pub fn new(args: &'a [&'a [u8]]) -> Self {
        Self { args, at: 0 }
    }

    /// All arguments, also those that were read.
    pub fn arguments(&self) -> &'a [&'a [u8]] {
        self.args
    }

    /// The position of the next argument in [`Self::arguments`].
    pub fn position(&self) -> usize {
        self.at
    }

    /// How many arguments are still to be read.
    pub fn left(&self) -> usize {
        self.args.len() - self.at
    }

    /// The next argument, if there is one.
    #[allow(clippy::should_implement_trait)] // an iterator would hide that the cursor is shared
    pub fn next(&mut self) -> Option<&'a [u8]> {
        let arg = *self.args.get(self.at)?;
        self.at += 1;
        Some(arg)
    }

    /// All arguments that are left.
    pub fn rest(&mut self) -> &'a [&'a [u8]] {
        let rest = &self.args[self.at..];
        self.at = self.args.len();
        rest
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Error> {
        match self.left() {
            0 => Ok(()),
            _ => Err(Error::Syntax),
        }
    }

    /// The next argument; a missing one is a syntax error (an option without its value).
    pub fn value(&mut self) -> Result<&'a [u8], Error> {
        self.next().ok_or(Error::Syntax)
    }

    /// A byte string of at least 1 and at most `max` bytes.
    pub fn name(&mut self, argument: &'static str, max: usize) -> Result<&'a [u8], Error> {
        let bytes = self.value()?;
        if bytes.is_empty() || bytes.len() > max {
            return Err(Error::OutOfRange {
                argument,
                min: 1,
                max: max as i64,
            });
        }
        Ok(bytes)
    }

    /// A plain decimal integer within `range`.
    #[inline(always)]
    pub fn int(
        &mut self,
        argument: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<i64, Error> {
        self.int_between(argument, *range.start(), *range.end())
    }

    // The bounds come in registers, a range does not.
    fn int_between(&mut self, argument: &'static str, min: i64, max: i64) -> Result<i64, Error> {
        let value = parse_int(self.value()?).ok_or(Error::NotInteger)?;
        if (min..=max).contains(&value) {
            return Ok(value);
        }
        Err(Error::OutOfRange { argument, min, max })
    }

    /// The same for quantities that are never negative.
    #[inline(always)]
    pub fn uint(
        &mut self,
        argument: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<u64, Error> {
        debug_assert!(*range.start() >= 0);
        self.int(argument, range).map(|value| value as u64)
    }

    /// `numkeys`: the number of the keys that follow. `COMMAND GETKEYS` and ACLs read it by the same rule.
    pub fn numkeys(&mut self) -> Result<usize, Error> {
        self.uint("numkeys", 1..=MAX_KEYS)
            .map(|count| count as usize)
    }

    /// `numkeys` in front of groups of `width` arguments, each of which begins with a key. Fewer groups are a syntax error.
    pub fn numkeys_of(&mut self, width: usize) -> Result<usize, Error> {
        let count = self.numkeys()?;
        if count > self.left() / width {
            return Err(Error::Syntax);
        }
        Ok(count)
    }

    /// `numkeys key [key ...]`: the keys, at least one.
    pub fn counted(&mut self) -> Result<&'a [&'a [u8]], Error> {
        let count = self.numkeys_of(1)?;
        let keys = &self.args[self.at..self.at + count];
        self.at += keys.len();
        Ok(keys)
    }

    /// The same for keys that must all be different.
    pub fn keys(&mut self) -> Result<&'a [&'a [u8]], Error> {
        let keys = self.counted()?;
        if has_duplicates(keys) {
            return Err(Error::Syntax);
        }
        Ok(keys)
    }

    /// `numkeys key value [key value ...]`: the values; at least one pair, the keys all different.
    pub fn pairs(&mut self) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>, Error> {
        let count = self.numkeys_of(2)?;
        let pairs = &self.args[self.at..self.at + 2 * count];
        self.at += pairs.len();
        let keys: Vec<&[u8]> = pairs.iter().step_by(2).copied().collect();
        if has_duplicates(&keys) {
            return Err(Error::Syntax);
        }
        Ok(pairs.iter().skip(1).step_by(2).copied())
    }
}

/// Whether `word` is this option. Options are case-insensitive.
pub fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

/// A plain decimal i64 as the server itself reads one: no sign but `-`, no leading zeros, no
/// white space.
#[inline]
pub fn parse_int(bytes: &[u8]) -> Option<i64> {
    match bytes {
        // Nearly all integers. 18 digits fit i64.
        [b'1'..=b'9', ..] if bytes.len() <= 18 => digits(bytes).map(|value| value as i64),
        _ => parse_rare_int(bytes),
    }
}

/// The same for any integer.
#[inline(never)]
fn parse_rare_int(bytes: &[u8]) -> Option<i64> {
    match bytes {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] if bytes.len() <= 19 => i64::try_from(digits(bytes)?).ok(),
        [b'-', rest @ ..] if matches!(rest, [b'1'..=b'9', ..]) && rest.len() <= 19 => {
            0i64.checked_sub_unsigned(digits(rest)?)
        }
        _ => None,
    }
}

/// The number that these digits make, at most 19.
#[inline]
fn digits(bytes: &[u8]) -> Option<u64> {
    if bytes.len() < 4 {
        return each_digit(bytes);
    }
    many_digits(bytes)
}

/// The same for four digits or more. Those of 4 to 16 digits are computed in parallel.
#[inline(never)]
fn many_digits(bytes: &[u8]) -> Option<u64> {
    if let (4..=8, Some(first), Some(last)) = (bytes.len(), bytes.first_chunk(), bytes.last_chunk())
    {
        // The first and the last four digits, which may overlap.
        let missing_bits = 64 - 8 * bytes.len();
        let first = u64::from(u32::from_le_bytes(*first)) << missing_bits;
        let last = u64::from(u32::from_le_bytes(*last)) << 32;
        return eight_digits(first | last, missing_bits);
    }
    if let (9..=16, Some(first), Some(last)) =
        (bytes.len(), bytes.first_chunk(), bytes.last_chunk())
    {
        // The last eight digits, and the digits before them.
        let missing_bits = 128 - 8 * bytes.len();
        let above = eight_digits(u64::from_le_bytes(*first) << missing_bits, missing_bits)?;
        let last = eight_digits(u64::from_le_bytes(*last), 0)?;
        return Some(above * 100_000_000 + last);
    }
    each_digit(bytes)
}

/// The number of at most eight digits in the order of memory, the last digit in the highest byte. The lowest `missing_bits` are
/// zero and stand for no digits. Adjacent digits become pairs, pairs become fours, and fours become the number:
/// <https://lemire.me/blog/2022/01/21/swar-explained-parsing-eight-digits/>
#[inline]
fn eight_digits(word: u64, missing_bits: usize) -> Option<u64> {
    const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);
    let digits = word ^ (ZEROS >> missing_bits << missing_bits);
    // The value of a byte that is no digit is above 9: one of its upper four bits is set, or is set after the addition of 6.
    if (digits | digits.wrapping_add(0x0606_0606_0606_0606)) & 0xf0f0_f0f0_f0f0_f0f0 != 0 {
        return None;
    }
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// The number that these digits make, one by one.
#[inline]
fn each_digit(bytes: &[u8]) -> Option<u64> {
    let mut value: u64 = 0; // 19 digits fit u64
    for byte in bytes {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    Some(value)
}

/// A number of bytes as the server's configuration has it: `1000`, `100mb` (of 1024 kilobytes), `100m`
/// (of 1000).
pub fn parse_memory(bytes: &[u8]) -> Option<i64> {
    const UNITS: [(&str, i64); 8] = [
        ("kb", 1 << 10),
        ("mb", 1 << 20),
        ("gb", 1 << 30),
        ("k", 1000),
        ("m", 1_000_000),
        ("g", 1_000_000_000),
        ("b", 1),
        ("", 1),
    ];
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit());
    let (number, unit) = bytes.split_at(digits.count());
    let (_, times) = UNITS.iter().find(|(name, _)| is(unit, name))?;
    parse_int(number)?.checked_mul(*times)
}

/// A decimal number as the server itself reads one, such as `0.01` or `1e-3`. Infinite ones are
/// numbers, too.
pub fn parse_decimal(bytes: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Whether a key occurs twice.
pub fn has_duplicates(keys: &[&[u8]]) -> bool {
    if keys.len() <= 8 {
        return (1..keys.len()).any(|i| keys[..i].contains(&keys[i]));
    }
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_are_plain_decimal_i64() {
        for (text, value) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("+1", None),
            ("01", None),
            (" 1", None),
            ("1 ", None),
            ("1.0", None),
            ("0x10", None),
            ("1e3", None),
        ] {
            assert_eq!(parse_int(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(parse_int(b"1\0"), None);
        assert_eq!(parse_int(b"\xff"), None);
    }

    proptest! {
        #[test]
        fn every_i64_is_read_back(value: i64) {
            prop_assert_eq!(parse_int(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn bytes_that_are_no_digits_are_refused(digits in "[1-9][0-9]{0,18}", at: usize, byte: u8) {
            let mut bytes = digits.into_bytes();
            let at = at % bytes.len();
            prop_assume!(!byte.is_ascii_digit() && (byte != b'-' || at > 0));
            bytes[at] = byte;
            prop_assert_eq!(parse_int(&bytes), None);
        }

        #[test]
        fn numbers_of_each_length_are_read(value: i64, length in 1usize..19) {
            let value = value % 10_i64.pow(length as u32);
            prop_assert_eq!(parse_int(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = parse_int(&bytes);
        }
    }

    #[test]
    fn numbers_of_bytes_have_units() {
        for (text, value) in [
            ("1000", Some(1000)),
            ("7b", Some(7)),
            ("2k", Some(2000)),
            ("2KB", Some(2048)),
            ("1gb", Some(1 << 30)),
            ("3m", Some(3_000_000)),
            ("gb", None),
            ("-1", None),
            ("1 gb", None),
            ("1tb", None),
            ("9223372036854775807k", None),
        ] {
            assert_eq!(parse_memory(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn decimal_numbers_are_read() {
        for (text, value) in [
            ("0.01", Some(0.01)),
            ("1e-3", Some(0.001)),
            (".5", Some(0.5)),
            ("-1", Some(-1.0)),
            ("inf", Some(f64::INFINITY)),
            ("nan", None),
            ("", None),
            (" 1", None),
            ("1 ", None),
            ("0,1", None),
            ("1%", None),
        ] {
            assert_eq!(parse_decimal(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(parse_decimal(b"0.1\xff"), None);
        assert_eq!(parse_decimal(b"0.1\0"), None);
    }

    #[test]
    fn pairs_are_counted_and_their_keys_unique() {
        let values = |args: &'static [&'static [u8]]| {
            let mut cursor = Cursor::new(args);
            let values: Vec<&[u8]> = cursor.pairs()?.collect();
            Ok((values, cursor.left()))
        };
        assert_eq!(
            values(&[b"2", b"a", b"1", b"b", b"1", b"x"]),
            Ok((vec![&b"1"[..], b"1"], 1))
        );
        assert_eq!(values(&[b"2", b"a", b"1", b"a", b"2"]), Err(Error::Syntax));
        assert_eq!(values(&[b"2", b"a", b"1", b"b"]), Err(Error::Syntax));
        assert_eq!(values(&[b"x", b"a", b"1"]), Err(Error::NotInteger));
        assert!(matches!(
            values(&[b"0", b"a", b"1"]),
            Err(Error::OutOfRange { .. })
        ));
    }

    #[test]
    fn keys_are_counted_and_unique() {
        let keys = |args: &[&'static [u8]]| Cursor::new(args).keys().map(<[_]>::len);
        assert_eq!(keys(&[b"2", b"a", b"b"]), Ok(2));
        assert_eq!(keys(&[b"2", b"a", b"a"]), Err(Error::Syntax));
        assert_eq!(keys(&[b"3", b"a", b"b"]), Err(Error::Syntax));
        assert_eq!(keys(&[b"x", b"a"]), Err(Error::NotInteger));
        assert!(matches!(keys(&[b"0", b"a"]), Err(Error::OutOfRange { .. })));
        assert!(matches!(
            keys(&[b"-1", b"a"]),
            Err(Error::OutOfRange { .. })
        ));
        assert_eq!(keys(&[b"1024", b"a"]), Err(Error::Syntax));
        for above in [&b"1025"[..], b"9007199254740991", b"9223372036854775807"] {
            let refused = keys(&[above, b"a"]).unwrap_err().to_string();
            assert_eq!(refused, "ERR numkeys must be between 1 and 1024");
        }
        let many: Vec<Vec<u8>> = (0..100).map(|i| vec![i]).collect();
        let mut args: Vec<&[u8]> = vec![b"100"];
        args.extend(many.iter().map(Vec::as_slice));
        assert_eq!(Cursor::new(&args).keys().map(<[_]>::len), Ok(100));
        args[57] = args[3];
        assert_eq!(
            Cursor::new(&args).keys().map(<[_]>::len),
            Err(Error::Syntax)
        );
    }
}
