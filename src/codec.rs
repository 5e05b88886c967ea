//! The encoding for RDB, AOF and replication: unsigned integers in LEB128, and byte strings behind their lengths. The reader
//! accepts any input. It returns a value or [`Corrupt`], and allocates no memory for a length that exceeds the input.

/// The error for an input that is not a valid encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// Appends an integer in LEB128: 7 bits per byte, the lowest bits first.
#[inline]
pub fn put_uint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else {
        put_long_uint(out, value);
    }
}

fn put_long_uint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 1 << 56 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    let (word, count) = spread(value);
    let (word, length) = (word.to_le_bytes(), out.len() + count);
    if out.capacity() - out.len() < word.len() {
        out.extend_from_slice(&word[..count]);
    } else {
        // To copy a whole word costs less than to copy some of its bytes.
        out.extend_from_slice(&word);
        out.truncate(length);
    }
}

/// Appends integers, as [`put_uint`] does.
#[inline(always)]
pub fn put_uints<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    out.reserve(N * MAX_UINT_BYTES);
    for value in values {
        put_uint(out, value);
    }
}

/// The bytes of an integer below 2^56, and how many they are. Its bits part into halves, quarters and eighths of 7 bits.
#[inline]
fn spread(value: u64) -> (u64, usize) {
    let halves = (value & 0x00ff_ffff_f000_0000) << 4 | value & 0x0fff_ffff;
    let quarters = (halves & 0x0fff_c000_0fff_c000) << 2 | halves & 0x3fff_0000_3fff;
    let eighths = (quarters & 0x3f80_3f80_3f80_3f80) << 1 | quarters & 0x007f_007f_007f_007f;
    let last = (eighths | 1).ilog2() / 8;
    let continued = 0x0080_8080_8080_8080 & ((1 << (8 * last)) - 1);
    (eighths | continued, last as usize + 1)
}

/// The most bytes of an integer.
const MAX_UINT_BYTES: usize = 10;

/// The number of bytes that [`put_uint`] appends, 1 to 10.
pub fn uint_len(value: u64) -> usize {
    (value | 1).ilog2() as usize / 7 + 1
}

/// Appends the length of a byte string, and the byte string.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_uint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads the output of the `put_` functions.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader over a whole input.
    pub fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// Whether the input is at its end.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Corrupt> {
        let (first, rest) = self.rest.split_first().ok_or(Corrupt)?;
        self.rest = rest;
        Ok(*first)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Corrupt)?;
        self.rest = rest;
        Ok(*array)
    }

    /// An integer of at least `min` and at most `max`, in its shortest form.
    pub fn uint(&mut self, min: u64, max: u64) -> Result<u64, Corrupt> {
        let mut value: u64 = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return Err(Corrupt);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return if (min..=max).contains(&value) {
                    Ok(value)
                } else {
                    Err(Corrupt)
                };
            }
        }
        Err(Corrupt)
    }

    /// A byte string of at least `min` and at most `max` bytes.
    pub fn bytes(&mut self, min: usize, max: usize) -> Result<&'a [u8], Corrupt> {
        let length = self.uint(min as u64, max as u64)? as usize;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Corrupt)?;
        self.rest = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value: u64, bytes: Vec<u8>) {
            let mut out = Vec::new();
            put_uint(&mut out, value);
            prop_assert_eq!(out.len(), uint_len(value));
            put_bytes(&mut out, &bytes);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.uint(0, u64::MAX), Ok(value));
            prop_assert_eq!(reader.bytes(0, usize::MAX), Ok(&bytes[..]));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn integers_are_the_same_alone_and_together(values: [u64; 6]) {
            let (mut alone, mut together) = (vec![1], vec![1]);
            for value in values {
                put_uint(&mut alone, value);
            }
            put_uints(&mut together, values);
            prop_assert_eq!(alone, together);
        }

        #[test]
        fn invalid_bytes_cause_no_panic(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while reader.uint(0, u64::MAX).is_ok() {}
            let _ = Reader::new(&bytes).bytes(0, usize::MAX);
        }
    }

    #[test]
    fn lengths_beyond_the_input_are_refused() {
        let mut out = Vec::new();
        put_uint(&mut out, u64::MAX);
        assert_eq!(Reader::new(&out).bytes(0, usize::MAX), Err(Corrupt));
        assert_eq!(Reader::new(&[0x80, 0x00]).uint(0, 9), Err(Corrupt)); // 0, but not in shortest form
        assert_eq!(Reader::new(&[0xff; 10]).uint(0, u64::MAX), Err(Corrupt));
        assert_eq!(Reader::new(&[0x05]).uint(6, 9), Err(Corrupt));
    }
}
