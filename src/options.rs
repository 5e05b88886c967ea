//! The options of commands. Each family lists its options in one constant table: the word of an option, the kind and range of
//! its argument, and which options exclude or need each other. [`OptionTable::read`] parses by this table.

use crate::error::Error;
use crate::request::Cursor;

/// A set of options of one family, one bit for each option. An option is a set of one.
pub type OptionSet = u16;

/// What follows the word of an option.
#[derive(Debug, Clone, Copy)]
pub enum OptionArgument {
    /// No argument.
    None,
    /// An integer from the first to the second number, which are not negative.
    Integer(i64, i64),
    /// A byte string of at least 1 byte and at most this many.
    Name(usize),
    /// This many byte strings of any length.
    Bytes(usize),
    /// One argument with errors of its own. The function returns a number, or the bits of a decimal number.
    Custom(fn(&mut Cursor<'_>) -> Result<u64, Error>),
    /// The items of the command: all arguments that are left. No option follows.
    Items,
}

/// The options of one family.
#[derive(Debug)]
pub struct OptionTable<const N: usize> {
    words: [FoldedWord; N],
    options: [(&'static str, OptionArgument); N],
    exclusive: &'static [OptionSet],
    dependent: &'static [(OptionSet, OptionSet)],
    /// The options that others exclude, or that need others.
    restricted: OptionSet,
}

impl<const N: usize> OptionTable<N> {
    /// A table of options. The first option has the bit 1, the second one the bit 2, and so on.
    ///
    /// # Panics
    /// If the bit of an option does not fit its position, or its word has not 2 to 16 letters. All tables are constants, so that is a compile error.
    pub const fn new(options: [(OptionSet, &'static str, OptionArgument); N]) -> Self {
        let mut words = [FoldedWord::NONE; N];
        let mut arguments = [("", OptionArgument::None); N];
        let mut index = 0;
        while index < N {
            let (option, name, argument) = options[index];
            assert!(option == 1 << index, "bit of another position");
            words[index] = match FoldedWord::new(name.as_bytes()) {
                Some(word) => word,
                None => panic!("the word of an option has 2 to 16 letters"),
            };
            arguments[index] = (name, argument);
            index += 1;
        }
        Self {
            words,
            options: arguments,
            exclusive: &[],
            dependent: &[],
            restricted: 0,
        }
    }

    /// At most one option of each of these sets may be present.
    pub const fn exclusive(self, sets: &'static [OptionSet]) -> Self {
        let mut restricted = self.restricted;
        let mut index = 0;
        while index < sets.len() {
            restricted |= sets[index];
            index += 1;
        }
        Self {
            exclusive: sets,
            restricted,
            ..self
        }
    }

    /// The first option of each pair may be present only with the second one.
    pub const fn dependent(self, pairs: &'static [(OptionSet, OptionSet)]) -> Self {
        let mut restricted = self.restricted;
        let mut index = 0;
        while index < pairs.len() {
            restricted |= pairs[index].0;
            index += 1;
        }
        Self {
            dependent: pairs,
            restricted,
            ..self
        }
    }

    /// Reads the options of a command: all arguments that are left, or those up to the items.
    ///
    /// An option that is not in `allowed`, a repeated option and a missing argument are syntax errors. So are options that
    /// exclude each other, or that lack the option they need. An argument that is not as the table says is its own error.
    #[inline]
    pub fn read<'a>(
        &'static self,
        cursor: &mut Cursor<'a>,
        allowed: OptionSet,
    ) -> Result<Options<'a, N>, Error> {
        let mut options = Options::NONE;
        self.read_into(&mut options, cursor, allowed)?;
        Ok(options)
    }

    /// The same as [`OptionTable::read`] into [`Options::NONE`]. Hot commands use it, because the result of `read` is copied
    /// twice.
    #[inline]
    pub fn read_into<'a>(
        &'static self,
        options: &mut Options<'a, N>,
        cursor: &mut Cursor<'a>,
        allowed: OptionSet,
    ) -> Result<(), Error> {
        if cursor.left() > 0 {
            self.read_some(options, cursor, allowed)?;
        }
        Ok(())
    }

    fn read_some<'a>(
        &'static self,
        options: &mut Options<'a, N>,
        cursor: &mut Cursor<'a>,
        allowed: OptionSet,
    ) -> Result<(), Error> {
        options.arguments = cursor.arguments();
        while let Some(word) = cursor.next() {
            let word = FoldedWord::new(word).ok_or(Error::Syntax)?;
            let index = self.words.iter().position(|other| *other == word);
            let index = index.ok_or(Error::Syntax)?;
            let option = 1 << index & allowed & !options.given;
            if option == 0 {
                return Err(Error::Syntax);
            }
            options.given |= option;
            let (name, argument) = &self.options[index];
            options.values[index] = match argument {
                OptionArgument::None => 0,
                OptionArgument::Integer(min, max) => cursor.uint(name, *min..=*max)?,
                OptionArgument::Name(max) => {
                    let position = cursor.position();
                    cursor.name(name, *max)?;
                    position as u64
                }
                OptionArgument::Bytes(count) => {
                    let position = cursor.position();
                    for _ in 0..*count {
                        cursor.value()?;
                    }
                    position as u64
                }
                OptionArgument::Custom(read) => read(cursor)?,
                OptionArgument::Items => break,
            };
        }
        if options.given & self.restricted == 0 {
            return Ok(()); // nearly all commands
        }
        self.check(options.given)
    }

    fn check(&self, given: OptionSet) -> Result<(), Error> {
        let is_excluded = |set: &OptionSet| {
            let present = given & set;
            present & present.wrapping_sub(1) != 0 // two or more bits
        };
        let is_alone =
            |(option, needed): &(OptionSet, OptionSet)| given & option != 0 && given & needed == 0;
        if self.exclusive.iter().any(is_excluded) || self.dependent.iter().any(is_alone) {
            return Err(Error::Syntax);
        }
        Ok(())
    }
}

/// A word of 2 to 16 bytes in lower case, which is compared with others in a few instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FoldedWord {
    length: usize,
    /// The first 2, 4 or 8 bytes, as many as there are.
    first: u64,
    /// The last 2, 4 or 8 bytes. They may overlap the first ones.
    last: u64,
}

impl FoldedWord {
    const NONE: Self = Self {
        length: 0,
        first: 0,
        last: 0,
    };

    /// The bit that makes letters lower-case. It makes no other byte a lower-case letter.
    const LOWER_CASE: u64 = 0x2020_2020_2020_2020;

    #[inline]
    const fn new(word: &[u8]) -> Option<Self> {
        let (first, last) = if word.len() > 16 {
            return None;
        } else if let (Some(first), Some(last)) = (word.first_chunk(), word.last_chunk()) {
            (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
        } else if let (Some(first), Some(last)) = (word.first_chunk(), word.last_chunk()) {
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            (first as u64, last as u64)
        } else if let (Some(first), Some(last)) = (word.first_chunk(), word.last_chunk()) {
            let (first, last) = (u16::from_le_bytes(*first), u16::from_le_bytes(*last));
            (first as u64, last as u64)
        } else {
            return None;
        };
        Some(Self {
            length: word.len(),
            first: first | Self::LOWER_CASE,
            last: last | Self::LOWER_CASE,
        })
    }
}

/// The options that a command has, with their arguments.
#[derive(Debug, Clone)]
pub struct Options<'a, const N: usize> {
    given: OptionSet,
    /// The number of each option; for byte strings the position of the first one in `arguments`.
    values: [u64; N],
    arguments: &'a [&'a [u8]],
}

impl<'a, const N: usize> Options<'a, N> {
    /// No options.
    pub const NONE: Self = Self {
        given: 0,
        values: [0; N],
        arguments: &[],
    };

    /// Whether this option is present.
    #[inline]
    pub fn has(&self, option: OptionSet) -> bool {
        self.given & option != 0
    }

    /// The same options if all of these are among them; otherwise a syntax error.
    #[inline]
    pub fn require(self, options: OptionSet) -> Result<Self, Error> {
        if self.given & options == options {
            Ok(self)
        } else {
            Err(Error::Syntax)
        }
    }

    /// A syntax error unless this option is present.
    #[inline]
    pub fn check(&self, option: OptionSet) -> Result<(), Error> {
        if self.has(option) {
            Ok(())
        } else {
            Err(Error::Syntax)
        }
    }

    /// The number after an option, or a default if the option is absent.
    #[inline]
    pub fn number_or(&self, option: OptionSet, default: u64) -> u64 {
        self.number(option).unwrap_or(default)
    }

    /// The number after an option.
    #[inline]
    pub fn number(&self, option: OptionSet) -> Option<u64> {
        self.has(option).then(|| self.value(option))
    }

    /// The byte string after an option.
    #[inline]
    pub fn bytes(&self, option: OptionSet) -> Option<&'a [u8]> {
        self.all_bytes::<1>(option).map(|[bytes]| bytes)
    }

    /// The byte strings after an option.
    #[inline]
    pub fn all_bytes<const COUNT: usize>(&self, option: OptionSet) -> Option<[&'a [u8]; COUNT]> {
        let position = self.number(option)? as usize;
        let arguments = self.arguments.get(position..)?;
        arguments.first_chunk().copied()
    }

    #[inline]
    fn value(&self, option: OptionSet) -> u64 {
        self.values[option.trailing_zeros() as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NX: OptionSet = 1;
    const XX: OptionSet = 2;
    const PX: OptionSet = 4;
    const ID: OptionSet = 8;
    const GUARD: OptionSet = 16;
    const EVEN: OptionSet = 32;
    const ITEMS: OptionSet = 64;
    const ALL: OptionSet = OptionSet::MAX;

    static TABLE: OptionTable<7> = OptionTable::new([
        (NX, "NX", OptionArgument::None),
        (XX, "XX", OptionArgument::None),
        (PX, "PX", OptionArgument::Integer(1, 9)),
        (ID, "ID", OptionArgument::Name(3)),
        (GUARD, "GUARD", OptionArgument::Bytes(2)),
        (EVEN, "EVEN", OptionArgument::Custom(even)),
        (ITEMS, "ITEMS", OptionArgument::Items),
    ])
    .exclusive(&[NX | XX])
    .dependent(&[(ID, PX)]);

    fn even(cursor: &mut Cursor<'_>) -> Result<u64, Error> {
        let number = cursor.uint("EVEN", 0..=100)?;
        (number % 2 == 0).then_some(number).ok_or(Error::BadBits)
    }

    fn read<'a>(words: &'a [&'a [u8]], allowed: OptionSet) -> Result<Options<'a, 7>, Error> {
        TABLE.read(&mut Cursor::new(words), allowed)
    }

    fn words(line: &'static str) -> Vec<&'static [u8]> {
        line.split(' ').map(str::as_bytes).collect()
    }

    #[test]
    fn options_are_read_in_any_order_and_case() {
        let line = words("guard a b pX 7 XX Id abc EVEN 4 ITEMS NX NX");
        let mut cursor = Cursor::new(&line);
        let options = TABLE.read(&mut cursor, ALL).unwrap();
        assert_eq!(options.all_bytes(GUARD), Some([&b"a"[..], b"b"]));
        assert_eq!(options.number(PX), Some(7));
        assert_eq!(options.bytes(ID), Some(&b"abc"[..]));
        assert_eq!(options.number(EVEN), Some(4));
        assert!(options.has(XX) && options.has(ITEMS) && !options.has(NX));
        assert_eq!(cursor.rest(), [b"NX", b"NX"]);
    }

    #[test]
    fn an_absent_option_has_no_argument() {
        for options in [read(&[], ALL).unwrap(), Options::NONE] {
            assert_eq!(options.number(PX), None);
            assert_eq!(options.number_or(PX, 5), 5);
            assert_eq!(options.bytes(ID), None);
            assert!(options.clone().require(0).is_ok());
            assert_eq!(options.require(PX).unwrap_err(), Error::Syntax);
        }
        assert!(read(&[b"PX", b"1"], ALL).unwrap().require(PX).is_ok());
    }

    #[test]
    fn each_mistake_is_an_error_of_its_own() {
        let range = |argument, max| Error::OutOfRange {
            argument,
            min: 1,
            max,
        };
        for (line, error) in [
            ("NO", Error::Syntax),
            ("PX", Error::Syntax),
            ("PX 1 PX 1", Error::Syntax),
            ("NX NX", Error::Syntax),
            ("NX XX", Error::Syntax),
            ("ID a", Error::Syntax),
            ("GUARD a", Error::Syntax),
            ("PX x", Error::NotInteger),
            ("PX 0", range("PX", 9)),
            ("PX 10 NO", range("PX", 9)),
            ("NO PX 10", Error::Syntax),
            ("NX XX PX 10", range("PX", 9)),
            ("ID abcd", range("ID", 3)),
            ("EVEN 3", Error::BadBits),
        ] {
            assert_eq!(read(&words(line), ALL).unwrap_err(), error, "{line}");
        }
        assert_eq!(read(&words("PX 1"), !PX).unwrap_err(), Error::Syntax);
    }

    #[test]
    fn words_are_equal_but_for_their_case() {
        let same =
            |word: &[u8], name: &str| FoldedWord::new(word) == FoldedWord::new(name.as_bytes());
        for name in ["NX", "ALL", "USER", "EARLY", "WATCHDOG", "MAXITERATIONS"] {
            assert!(FoldedWord::new(name.as_bytes()).is_some());
            for position in 0..name.len() {
                for byte in 0..=u8::MAX {
                    let mut word = name.as_bytes().to_vec();
                    word[position] = byte;
                    let is_same = word.eq_ignore_ascii_case(name.as_bytes());
                    assert_eq!(same(&word, name), is_same, "{word:?}");
                }
            }
            assert!(!same(&name.as_bytes()[1..], name) && !same(name.repeat(2).as_bytes(), name));
        }
        assert_eq!(FoldedWord::new(b"X"), None);
        assert_eq!(FoldedWord::new(b"SEVENTEEN_LETTERS"), None);
    }

    proptest! {
        #[test]
        fn no_arguments_make_it_panic(
            words in prop::collection::vec("NX|XX|PX|ID|GUARD|EVEN|ITEMS|[0-9a-c]{0,4}", 0..9),
            allowed: OptionSet,
        ) {
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            let _ = read(&words, allowed);
        }
    }
}
