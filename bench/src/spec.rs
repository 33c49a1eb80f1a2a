//! Names with parameters, as people write them: `micro.write,io=4k,threads=2`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use nacre_engine::size;

/// A name and its parameters. Each requested parameter is noted, so that a parameter with no use is found.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    name: String,
    given: BTreeMap<String, String>,
    known: RefCell<BTreeMap<String, String>>,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Spec, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().trim().to_owned();
        if name.is_empty() {
            return Err(format!("{text:?} has no name; write NAME[,PARAMETER=VALUE]..."));
        }
        let mut given = BTreeMap::new();
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("{text:?}: {part:?} is no PARAMETER=VALUE"))?;
            if given.insert(key.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(format!("{text:?}: {} is given twice", key.trim()));
            }
        }
        Ok(Spec { name, given, known: RefCell::default() })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.given.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
    }
}

impl Spec {
    /// The part before the parameters.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same without one of its parameters.
    pub fn without(mut self, key: &str) -> Spec {
        self.given.remove(key);
        self
    }

    /// Whether a parameter is given.
    pub fn has(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    fn take<T>(
        &self,
        key: &str,
        default: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        let text = self.given.get(key).map_or(default, String::as_str);
        self.known.borrow_mut().insert(key.to_owned(), text.to_owned());
        read(text).map_err(|why| format!("{}: {key}={text}: {why}", self.name))
    }

    /// A number of bytes.
    pub fn size(&self, key: &str, default: &str) -> Result<u64, String> {
        self.take(key, default, size::parse)
    }

    /// A number of bytes from `range`.
    pub fn size_within(&self, key: &str, default: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
        self.take(key, default, |text| match size::parse(text)? {
            bytes if range.contains(&bytes) => Ok(bytes),
            _ => Err(format!("give {} to {}", size::exact(*range.start()), size::exact(*range.end()))),
        })
    }

    /// A number, at least `least`.
    pub fn number(&self, key: &str, default: u64, least: u64) -> Result<u64, String> {
        self.take(key, &default.to_string(), |text| match text.parse() {
            Ok(number) if number >= least => Ok(number),
            _ => Err(format!("not a whole number of at least {least}")),
        })
    }

    /// A number that need not be whole, from `range`.
    pub fn real(&self, key: &str, default: f64, range: RangeInclusive<f64>) -> Result<f64, String> {
        self.take(key, &default.to_string(), |text| match text.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(format!("not a number from {} to {}", range.start(), range.end())),
        })
    }

    /// One of several words.
    pub fn word<T: Copy>(&self, key: &str, default: &str, words: &[(&str, T)]) -> Result<T, String> {
        self.take(key, default, |text| {
            words.iter().find(|(word, _)| *word == text).map(|&(_, meaning)| meaning).ok_or_else(|| {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                format!("one of {}", words.join(", "))
            })
        })
    }

    /// Any text.
    pub fn text(&self, key: &str, default: &str) -> Result<String, String> {
        self.take(key, default, |text| Ok(text.to_owned()))
    }

    /// After all requests: a parameter that was never requested is an error.
    pub fn finish(&self) -> Result<(), String> {
        let known = self.known.borrow();
        let Some(stranger) = self.given.keys().find(|key| !known.contains_key(*key)) else { return Ok(()) };
        let names: Vec<_> = known.keys().map(String::as_str).collect();
        Err(format!("{} has no parameter {stranger}; it has: {}", self.name, names.join(", ")))
    }

    /// The requested parameters, with the values in use.
    pub fn in_use(&self) -> Vec<(String, String)> {
        self.known.borrow().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Spec;

    #[test]
    fn parameters_are_read_once_and_strangers_are_told() {
        let spec: Spec = "micro.write,io=4k,theads=2".parse().unwrap();
        assert_eq!((spec.name(), spec.size("io", "1M")), ("micro.write", Ok(4096)));
        assert_eq!(spec.number("threads", 1, 1), Ok(1));
        assert!(spec.finish().unwrap_err().contains("no parameter theads; it has: io, threads"));
        assert_eq!(spec.to_string(), "micro.write,io=4k,theads=2");
        assert!("a,b=1,b=2".parse::<Spec>().is_err());
        assert!("a,b".parse::<Spec>().is_err());
        assert!("".parse::<Spec>().is_err());
    }

    #[test]
    fn wrong_values_say_what_would_be_right() {
        let spec: Spec = "x,n=0,w=c,r=2".parse().unwrap();
        assert!(spec.number("n", 1, 1).unwrap_err().contains("at least 1"));
        assert!(spec.word("w", "a", &[("a", 1), ("b", 2)]).unwrap_err().contains("one of a, b"));
        assert!(spec.size_within("n", "1", 1..=1 << 20).unwrap_err().contains("give 1 byte to 1 MiB"));
        assert!(spec.real("r", 0.0, 0.0..=1.0).is_err());
    }
}
