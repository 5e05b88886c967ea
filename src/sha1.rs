//! SHA-1, by which servers name scripts: RFC 3174.

/// The digest of a message.
pub fn sha1(message: &[u8]) -> [u8; 20] {
    let mut state = [
        0x6745_2301,
        0xefcd_ab89,
        0x98ba_dcfe,
        0x1032_5476,
        0xc3d2_e1f0,
    ];
    let (blocks, rest) = message.as_chunks::<64>();
    blocks.iter().for_each(|block| digest(&mut state, block));
    let mut end = rest.to_vec();
    end.push(0x80);
    while end.len() % 64 != 56 {
        end.push(0);
    }
    end.extend((message.len() as u64 * 8).to_be_bytes());
    let (blocks, _) = end.as_chunks::<64>();
    blocks.iter().for_each(|block| digest(&mut state, block));
    let mut out = [0; 20];
    for (bytes, word) in out.chunks_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    out
}

fn digest(state: &mut [u32; 5], block: &[u8; 64]) {
    let mut words = [0; 80];
    for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    for t in 16..80 {
        words[t] = (words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (t, word) in words.into_iter().enumerate() {
        let (f, k) = match t {
            0..20 => (b & c | !b & d, 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => (b & c | b & d | c & d, 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6_u32),
        };
        let next = a
            .rotate_left(5)
            .wrapping_add(f)
            .wrapping_add(e)
            .wrapping_add(word)
            .wrapping_add(k);
        (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
    }
    for (own, more) in state.iter_mut().zip([a, b, c, d, e]) {
        *own = own.wrapping_add(more);
    }
}

#[cfg(test)]
mod tests {
    use super::sha1;

    #[test]
    fn the_examples_of_the_rfc_have_their_digests() {
        let hex = |message: &[u8]| sha1(message).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(hex(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(
            hex(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1"
        );
        assert_eq!(
            hex(&[b'a'; 1_000_000]),
            "34aa973cd4c4daa4f61eeb2bdbad27316534016f"
        );
    }
}
