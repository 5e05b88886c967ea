//! A reply of the server, and the parser that makes it from bytes.

use std::fmt;

/// A RESP2 or RESP3 reply.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// Null of either protocol: `_`, `$-1` or `*-1`.
    Nil,
    /// An integer.
    Int(i64),
    /// A bulk string; the text of a verbatim string too, without its format.
    Bulk(Vec<u8>),
    /// A status, such as `OK`.
    Simple(String),
    /// An error, with its code, such as `ERR syntax error`.
    Error(String),
    /// An array.
    Array(Vec<Value>),
    /// A map, in the server's order (RESP3 only).
    Map(Vec<(Value, Value)>),
    /// A set, in the server's order (RESP3 only).
    Set(Vec<Value>),
    /// A boolean (RESP3 only).
    Bool(bool),
    /// A double (RESP3 only).
    Double(f64),
    /// A number outside i64, as its digits (RESP3 only).
    BigNumber(String),
    /// Out-of-band data: a Pub/Sub message, an invalidation (RESP3 only).
    Push(Vec<Value>),
}

impl Value {
    /// The integer; panics on anything else.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("not an integer: {other:?}"),
        }
    }

    /// The bytes of a bulk or simple string; panics on anything else.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bulk(bytes) => bytes,
            Self::Simple(text) | Self::BigNumber(text) => text.as_bytes(),
            other => panic!("not a string: {other:?}"),
        }
    }

    /// The text of a bulk or simple string; panics on anything else, and on bytes that are not UTF-8.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).expect("not UTF-8")
    }

    /// The text of an error; panics on anything else.
    #[track_caller]
    pub fn err(&self) -> &str {
        match self {
            Self::Error(text) => text,
            other => panic!("not an error: {other:?}"),
        }
    }

    /// The elements of an array, a set or a push; panics on anything else.
    #[track_caller]
    pub fn array(&self) -> &[Value] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Whether this is a null.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// Whether this is an error.
    pub fn is_err(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The value of a field, of a map or of a flat field-value array; panics when there is none.
    #[track_caller]
    pub fn field(&self, name: &str) -> &Value {
        self.get(name)
            .unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    /// The value of a field, of a map or of a flat field-value array.
    #[track_caller]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields()
            .into_iter()
            .find(|(field, _)| field.bytes() == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// All fields and values, of a map or of a flat field-value array, so that one test reads both protocols.
    #[track_caller]
    pub fn fields(&self) -> Vec<(&Value, &Value)> {
        match self {
            Self::Map(pairs) => pairs.iter().map(|(field, value)| (field, value)).collect(),
            Self::Array(items) if items.len() % 2 == 0 => {
                items.chunks(2).map(|pair| (&pair[0], &pair[1])).collect()
            }
            other => panic!("neither a map nor a field-value array: {other:?}"),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => write!(out, "nil"),
            Self::Int(number) => write!(out, "{number}"),
            Self::Bulk(bytes) => write!(out, "\"{}\"", bytes.escape_ascii()),
            Self::Simple(text) => write!(out, "+{text}"),
            Self::Error(text) => write!(out, "-{text}"),
            Self::Array(items) => out.debug_list().entries(items).finish(),
            Self::Map(pairs) => {
                let pairs = pairs.iter().map(|(field, value)| (field, value));
                out.debug_map().entries(pairs).finish()
            }
            Self::Set(items) => out.debug_set().entries(items).finish(),
            Self::Bool(truth) => write!(out, "{truth}"),
            Self::Double(number) => write!(out, "{number:?}"),
            Self::BigNumber(digits) => write!(out, "({digits}"),
            Self::Push(items) => {
                write!(out, ">")?;
                out.debug_list().entries(items).finish()
            }
        }
    }
}

/// `assert_eq!(client.call([..]), 1)`
impl PartialEq<i64> for Value {
    fn eq(&self, number: &i64) -> bool {
        matches!(self, Self::Int(own) if own == number)
    }
}

/// `assert_eq!(client.call([..]), "OK")`: a bulk or simple string; never an error.
impl PartialEq<&str> for Value {
    fn eq(&self, text: &&str) -> bool {
        matches!(self, Self::Bulk(_) | Self::Simple(_)) && self.bytes() == text.as_bytes()
    }
}

/// Parses one reply from the front of `bytes`: the reply and its length, or `None` while it is incomplete.
///
/// Panics on bytes that are no RESP: a server that writes them is broken.
pub(super) fn parse(bytes: &[u8]) -> Option<(Value, usize)> {
    let mut reader = Reader { bytes, at: 0 };
    let value = reader.value()?;
    Some((value, reader.at))
}

/// What is read of a reply; `None` from any of its functions means that more bytes must arrive.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Option<Value> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(1);
        let value = match kind {
            "_" => Value::Nil,
            ":" => Value::Int(number(rest)),
            "+" => Value::Simple(rest.into()),
            "-" => Value::Error(rest.into()),
            "(" => Value::BigNumber(rest.into()),
            "#" => Value::Bool(rest == "t"),
            "," => Value::Double(rest.parse().expect("not a double")),
            "$" => match self.blob(rest)? {
                Some(bytes) => Value::Bulk(bytes),
                None => Value::Nil,
            },
            "!" => Value::Error(lossy(self.blob(rest)?.unwrap_or_default())),
            // Three letters of format and a colon stand before the text.
            "=" => Value::Bulk(self.blob(rest)?.unwrap_or_default().split_off(4)),
            "*" if rest == "-1" => Value::Nil,
            "*" => Value::Array(self.values(count(rest))?),
            "~" => Value::Set(self.values(count(rest))?),
            ">" => Value::Push(self.values(count(rest))?),
            "%" => Value::Map(self.pairs(count(rest))?),
            // Attributes describe the reply behind them.
            "|" => {
                self.pairs(count(rest))?;
                self.value()?
            }
            _ => panic!("not a reply: {line:?}"),
        };
        Some(value)
    }

    fn line(&mut self) -> Option<String> {
        let rest = &self.bytes[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        assert!(end > 0, "an empty line is not a reply");
        self.at += end + 2;
        Some(lossy(rest[..end].to_vec()))
    }

    /// A string with its length in front; the inner `None` is RESP2's null.
    fn blob(&mut self, length: &str) -> Option<Option<Vec<u8>>> {
        if length == "-1" {
            return Some(None);
        }
        let end = self.at + count(length);
        let bytes = self.bytes.get(self.at..end)?.to_vec();
        let line_end = self.bytes.get(end..end + 2)?;
        assert_eq!(line_end, b"\r\n", "a string longer than it says");
        self.at = end + 2;
        Some(Some(bytes))
    }

    fn values(&mut self, count: usize) -> Option<Vec<Value>> {
        (0..count).map(|_| self.value()).collect()
    }

    fn pairs(&mut self, count: usize) -> Option<Vec<(Value, Value)>> {
        (0..count)
            .map(|_| Some((self.value()?, self.value()?)))
            .collect()
    }
}

fn number(text: &str) -> i64 {
    text.parse()
        .unwrap_or_else(|_| panic!("not an integer: {text:?}"))
}

fn count(text: &str) -> usize {
    usize::try_from(number(text)).unwrap_or_else(|_| panic!("not a length: {text:?}"))
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}
