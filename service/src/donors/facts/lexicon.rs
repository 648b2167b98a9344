//! The words whose meaning matters when facts are compared: numbers, negations, units, opposites.

use std::sync::LazyLock;

use super::spelling::{canonical_hash, plain_hash};

/// What a number word adds to the number that is being read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Numeral {
    /// Below twenty, also in a number like "twenty-one".
    Unit(f64),
    /// Twenty, thirty, ...
    Tens(f64),
    Hundred,
    /// Thousand and above, and the dozen: multiplies what comes before it.
    Scale(f64),
    /// First, second, ...
    Ordinal(f64),
}

/// Which opposite a word is: words of one pair and of different sides exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opposite {
    pub(super) pair: usize,
    pub(super) side: usize,
}

/// A small hash table that is filled once, by words' hashes.
pub(super) struct Lexicon<T> {
    cells: Vec<Option<(u64, T)>>,
}

impl<T: Copy> Lexicon<T> {
    pub(super) fn get(&self, hash: u64) -> Option<T> {
        let mut at = self.home(hash);
        while let Some((key, meaning)) = self.cells[at] {
            if key == hash {
                return Some(meaning);
            }
            at = (at + 1) & (self.cells.len() - 1);
        }
        None
    }

    pub(super) fn has(&self, hash: u64) -> bool {
        self.get(hash).is_some()
    }

    fn new(words: impl IntoIterator<Item = (u64, T)>) -> Self {
        let words: Vec<(u64, T)> = words.into_iter().collect();
        let cells = vec![None; (words.len() * 4).next_power_of_two()];
        let mut lexicon = Self { cells };
        for (hash, meaning) in words {
            let mut at = lexicon.home(hash);
            while lexicon.cells[at].is_some_and(|(key, _)| key != hash) {
                at = (at + 1) & (lexicon.cells.len() - 1);
            }
            lexicon.cells[at] = Some((hash, meaning));
        }
        lexicon
    }

    // The cells are a power of two.
    fn home(&self, hash: u64) -> usize {
        usize::try_from(hash >> 32).unwrap_or(0) & (self.cells.len() - 1)
    }
}

/// Words of one line, separated by spaces.
fn split(lines: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    lines.iter().flat_map(|line| line.split(' '))
}

pub(super) static NUMERALS: LazyLock<Lexicon<Numeral>> = LazyLock::new(|| {
    let counted = |lines: &'static [&'static str], first: u32, step: u32| {
        lines.iter().enumerate().flat_map(move |(nth, words)| {
            let value = f64::from(first + step * u32::try_from(nth).unwrap_or(0));
            words.split(' ').map(move |word| (word, value))
        })
    };
    let units = counted(UNITS_OF_NUMBERS, 0, 1).map(|(word, value)| (word, Numeral::Unit(value)));
    let tens = counted(TENS, 20, 10).map(|(word, value)| (word, Numeral::Tens(value)));
    let ordinals = counted(ORDINALS, 1, 1).chain(counted(TENTHS, 20, 10));
    let ordinals = ordinals.map(|(word, value)| (word, Numeral::Ordinal(value)));
    let others = [
        ("hundred", Numeral::Hundred),
        ("hundert", Numeral::Hundred),
        ("dozen", Numeral::Scale(12.0)),
        ("thousand", Numeral::Scale(1e3)),
        ("tausend", Numeral::Scale(1e3)),
        ("mille", Numeral::Scale(1e3)),
        ("million", Numeral::Scale(1e6)),
        ("billion", Numeral::Scale(1e9)),
        ("trillion", Numeral::Scale(1e12)),
        ("half", Numeral::Unit(0.5)),
        ("twice", Numeral::Unit(2.0)),
        ("thrice", Numeral::Unit(3.0)),
        ("hundredth", Numeral::Ordinal(100.0)),
        ("thousandth", Numeral::Ordinal(1000.0)),
    ];
    let all = units.chain(tens).chain(ordinals).chain(others);
    Lexicon::new(all.map(|(word, numeral)| (plain_hash(word), numeral)))
});

/// By value from zero on; German and French beside English.
const UNITS_OF_NUMBERS: &[&str] = &[
    "zero null",
    "one eins",
    "two zwei zwo deux",
    "three drei trois",
    "four vier quatre",
    "five fünf cinq",
    "six sechs",
    "seven sieben",
    "eight acht huit",
    "nine neun neuf",
    "ten zehn dix",
    "eleven onze",
    "twelve zwölf douze",
    "thirteen dreizehn treize",
    "fourteen vierzehn quatorze",
    "fifteen fünfzehn quinze",
    "sixteen sechzehn seize",
    "seventeen siebzehn",
    "eighteen achtzehn",
    "nineteen neunzehn",
];
const TENS: &[&str] = &[
    "twenty zwanzig vingt",
    "thirty dreißig trente",
    "forty fourty vierzig quarante",
    "fifty fünfzig cinquante",
    "sixty sechzig soixante",
    "seventy siebzig",
    "eighty achtzig",
    "ninety neunzig",
];
const ORDINALS: &[&str] = &[
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
];
const TENTHS: &[&str] = &[
    "twentieth",
    "thirtieth",
    "fortieth",
    "fiftieth",
    "sixtieth",
    "seventieth",
    "eightieth",
    "ninetieth",
];

/// Words that turn a statement round.
pub(super) static NEGATIONS: LazyLock<Lexicon<()>> = LazyLock::new(|| {
    let words = split(&[
        "not no never none nobody nothing nowhere neither nor without hardly scarcely",
        "nicht kein keine keinen keinem keiner nie niemals nichts ohne weder",
        "pas jamais sans aucun aucune rien ni",
        "не ни нет никогда ничего никто без нельзя",
        "不 没 沒 無 无 未 非",
    ]);
    Lexicon::new(words.map(|word| (canonical_hash(word), ())))
});

/// Units that count as facts behind a number, by what they measure with.
pub(super) static MEASURES: LazyLock<Lexicon<usize>> = LazyLock::new(|| {
    let measures = [
        "percent",
        "dollar dollars usd",
        "cent cents",
        "euro euros eur",
        "pound pounds lb lbs",
        "yen",
        "franc francs",
        "mm millimeter millimeters millimetre millimetres",
        "cm centimeter centimeters centimetre centimetres",
        "m meter meters metre metres",
        "km kilometer kilometers kilometre kilometres",
        "inch inches",
        "foot feet ft",
        "nm nanometer nanometers nanometre nanometres",
        "µm μm micrometer micrometers micrometre micrometres micron microns",
        "yard yards",
        "mile miles",
        "acre acres",
        "hectare hectares",
        "mg milligram milligrams",
        "µg μg mcg microgram micrograms",
        "g gram grams",
        "kg kilogram kilograms kilo kilos",
        "ounce ounces oz",
        "ton tons tonne tonnes",
        "ml milliliter milliliters millilitre millilitres",
        "l liter liters litre litres",
        "gallon gallons",
        "barrel barrels",
        "bushel bushels",
        "pint pints",
        "quart quarts",
        "cup cups",
        "tsp teaspoon teaspoons",
        "tbsp tablespoon tablespoons",
        "mph",
        "kmh",
        "knot knots",
        "bit bits",
        "kbit kbps",
        "mbit mbps",
        "gbit gbps",
        "ns nanosecond nanoseconds",
        "us µs μs microsecond microseconds",
        "ms millisecond milliseconds",
        "s sec secs second seconds",
        "min mins minute minutes",
        "h hr hrs hour hours",
        "day days",
        "week weeks",
        "month months",
        "year years yr yrs",
        "decade decades",
        "century centuries",
        "b byte bytes",
        "kb kib kilobyte kilobytes",
        "mb mib megabyte megabytes",
        "gb gib gigabyte gigabytes",
        "tb tib terabyte terabytes",
        "hz hertz",
        "khz",
        "mhz",
        "ghz",
        "celsius",
        "fahrenheit",
        "kelvin",
        "watt watts w",
        "kw kilowatt kilowatts",
        "mw megawatt megawatts",
        "volt volts v",
        "kv kilovolt kilovolts",
        "amp amps ampere amperes",
        "ma milliamp milliamps",
        "kcal kilocalorie kilocalories",
        "joule joules",
        "kj kilojoule kilojoules",
        "am",
        "pm",
    ];
    let each = measures
        .into_iter()
        .enumerate()
        .flat_map(|(measure, words)| words.split(' ').map(move |word| (word, measure)));
    Lexicon::new(each.map(|(word, measure)| (canonical_hash(word), measure)))
});

/// Names that are nothing else, however they are written; "may", "march" and "turkey" are not.
pub(super) static NAMES: LazyLock<Lexicon<()>> = LazyLock::new(|| {
    let words = split(&[
        "monday tuesday wednesday thursday friday saturday sunday january february april june july",
        "august september october november december africa america asia australia austria belgium",
        "brazil britain canada egypt england europe france germany greece india ireland israel",
        "italy japan mexico norway poland portugal russia scotland spain sweden switzerland",
        "amsterdam berlin boston chicago london madrid moscow paris rome tokyo vienna washington",
    ]);
    Lexicon::new(words.map(|word| (canonical_hash(word), ())))
});

/// What passages of a prompt are called by, with a number behind it.
pub(super) static LABELS: LazyLock<Lexicon<()>> = LazyLock::new(|| {
    let words = split(&["document doc passage source context chunk snippet result"]);
    Lexicon::new(words.map(|word| (canonical_hash(word), ())))
});

/// Words that are no names, however they are written.
pub(super) static GRAMMAR: LazyLock<Lexicon<()>> = LazyLock::new(|| {
    let words = split(&[
        "a an the this that these those there here it its he his him she her hers they their them",
        "we our ours us you your yours i me my mine who whom whose which what when where why how",
        "and or but if then else so yet for nor as at by from in into of off on onto out over to",
        "until upon via while with within without about across after against before because",
        "during than through though although whether whereas however therefore thus moreover also",
        "am is are was were be been being do does did done have has had having will would shall",
        "should can could may might must not no never none nothing yes",
    ]);
    Lexicon::new(words.map(|word| (canonical_hash(word), ())))
});

/// Further words that begin sentences without being names.
pub(super) static COMMON: LazyLock<Lexicon<()>> = LazyLock::new(|| {
    let words = split(&[
        "toward towards under up above along amid among around behind below beneath beside besides",
        "between beyond despite down except inside like near next once opposite past per since",
        "throughout till unless hence furthermore nevertheless nonetheless meanwhile otherwise",
        "likewise indeed instead still too even ever always often sometimes perhaps maybe again",
        "already almost just only quite rather soon now today tomorrow yesterday later earlier",
        "finally lastly first second third another other others some any all both each either",
        "every few many more most much neither several such same own let lets get got give given",
        "make made take taken see seen say said go went come came know known think thought look",
        "find found use used want need needs try tried ask asked tell told put set keep kept begin",
        "began start started show shown call called seem seemed feel felt leave left bring brought",
        "consider note notice please thank thanks ok well good great new old long little big large",
        "small high low right last late young important different able available certain clear",
        "true false sure whatever whenever wherever whoever according regarding concerning",
        "notwithstanding accordingly consequently subsequently additionally similarly people",
        "something anything everything someone anyone everyone nobody somebody answer question",
        "questions explain summarize describe list write read compare discuss course enough less",
        "least far further whence whereby wherein thereby hitherto heretofore hereafter thereafter",
        "albeit amidst amongst whilst lest ere being",
        "der die das ein eine und oder aber wenn dass ist sind war waren ich er sie es wir ihr",
        "le la les un une des et ou mais si que qui est sont il elle nous vous ils dans pour",
    ]);
    Lexicon::new(words.map(|word| (canonical_hash(word), ())))
});

/// Words after which a full stop ends no sentence.
pub(super) static ABBREVIATIONS: LazyLock<Lexicon<()>> = LazyLock::new(|| {
    let words = split(&[
        "mister mrs ms doctor prof general colonel captain lieutenant major sergeant messrs rev",
        "hon senator representative governor saint mount no nos vol fig figs sec art ch pp vs etc",
        "eg ie cf al inc ltd co corp dept est approx january february march april june july august",
        "september october november december sun mon tue wed thu fri sat number",
    ]);
    Lexicon::new(words.map(|word| (canonical_hash(word), ())))
});

/// Short forms, each with what it stands for.
pub(super) static SHORT_FORMS: LazyLock<Lexicon<u64>> = LazyLock::new(|| {
    let forms = [
        "mr mister",
        "dr doctor",
        "gen general",
        "col colonel",
        "capt captain",
        "lt lieutenant",
        "maj major",
        "sgt sergeant",
        "sen senator",
        "gov governor",
        "st saint",
        "mt mount",
        "jan january",
        "feb february",
        "mar march",
        "apr april",
        "jun june",
        "jul july",
        "aug august",
        "sep september",
        "sept september",
        "oct october",
        "nov november",
        "dec december",
        "grey gray",
        "okay ok",
        "programme program",
        "cheque check",
        "tyre tire",
        "kerb curb",
        "plough plow",
        "gaol jail",
        "aluminium aluminum",
    ];
    let pair = |form: &'static str| form.split_once(' ');
    Lexicon::new(
        forms
            .into_iter()
            .filter_map(pair)
            .map(|(short, long)| (plain_hash(short), plain_hash(long))),
    )
});

/// Pairs of opposites, by their stems; a word may be in several.
pub(super) static OPPOSITES: LazyLock<Vec<(u64, Opposite)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (pair, words) in PAIRS.iter().enumerate() {
        for (side, words) in words.split('/').enumerate() {
            let opposite = Opposite { pair, side };
            all.extend(
                words
                    .split(' ')
                    .map(|word| (canonical_hash(stem(word)), opposite)),
            );
        }
    }
    all.sort_unstable_by_key(|&(hash, _)| hash);
    all
});

/// Every pair that a stem's hash is in.
pub(super) fn opposites(hash: u64) -> impl Iterator<Item = Opposite> {
    let all = &*OPPOSITES;
    let first = all.partition_point(|&(other, _)| other < hash);
    let same = all[first..]
        .iter()
        .take_while(move |&&(other, _)| other == hash);
    same.map(|&(_, opposite)| opposite)
}

/// A word without the endings of number and time, roughly: "rejected" and "rejects" are one.
pub(super) fn stem(word: &str) -> &str {
    const LEFT_MIN: usize = 3;
    for ending in ["ing", "ed", "es", "s", "e"] {
        if let Some(stem) = word.strip_suffix(ending)
            && stem.len() >= LEFT_MIN
        {
            // "permitted" and "permit".
            let (bytes, last) = (stem.as_bytes(), stem.len() - 1);
            let doubled = matches!(ending, "ing" | "ed") && bytes[last] == bytes[last - 1];
            let is_double = doubled && bytes[last].is_ascii_alphabetic();
            return if is_double { &stem[..last] } else { stem };
        }
    }
    word
}

const PAIRS: &[&str] = &[
    "approve accept endorse ratify approval/reject decline deny refuse disapprove veto rejection",
    "allow permit authorize enable/forbid forbidden forbade prohibit deny prevent ban block",
    "increase rise raise grow grew gain rose/decrease fall reduce shrink drop decline lower fell",
    "before prior/after following",
    "above over/below under beneath",
    "more/less fewer",
    "most/least fewest",
    "maximum max/minimum min",
    "higher high/lower low",
    "greater larger bigger/smaller lesser",
    "large big/small little",
    "true/false",
    "on/off",
    "open opened/close shut closed",
    "start begin began begun/end stop finish cease",
    "win won victory/lose lost defeat",
    "succeed success successful/fail failure",
    "pass passed/fail failed",
    "support favor/oppose against",
    "for favor/against",
    "agree agreed/disagree disagreed",
    "buy bought/sell sold",
    "import/export",
    "lend lent/borrow borrowed",
    "include including/exclude excluding",
    "inside within/outside",
    "first/last",
    "early earlier/late later",
    "left/right",
    "north northern/south southern",
    "east eastern/west western",
    "up upward/down downward",
    "front/back",
    "input/output",
    "read/write",
    "push/pull",
    "add added/remove removed subtract delete",
    "insert/delete",
    "create/destroy",
    "build built/destroy demolish",
    "encrypt/decrypt",
    "lock/unlock",
    "connect/disconnect",
    "install/uninstall",
    "enable on/disable off",
    "guilty/innocent",
    "legal lawful/illegal unlawful",
    "safe/dangerous unsafe",
    "dead died die/alive lived live survive",
    "born/died",
    "hot/cold",
    "warm/cool",
    "strong/weak",
    "rich/poor",
    "good better best/bad worse worst poor",
    "right correct/wrong incorrect",
    "positive/negative",
    "profit gain surplus/loss deficit",
    "war/peace",
    "friend ally/enemy foe",
    "public/private",
    "male man men/female woman women",
    "husband/wife",
    "father/mother",
    "brother/sister",
    "son/daughter",
    "king/queen",
    "boy/girl",
    "he him his/she her hers",
    "day/night",
    "morning/evening",
    "arrive/depart",
    "enter/exit leave",
    "send sent/receive",
    "give gave given/take took taken",
    "ask/answer",
    "love/hate",
    "attack/defend",
    "advance/retreat",
    "accelerate/decelerate",
    "expand/contract",
    "hire/fire",
    "appoint/dismiss",
    "present/absent",
    "present/former",
    "old older/new newer young younger",
    "long longer/short shorter",
    "fast faster quick/slow slower",
    "full/empty",
    "hard difficult/easy simple",
    "heavy/light",
    "many/few",
    "much/little",
    "often frequently/rarely seldom",
    "majority/minority",
    "confirm affirm/refute contradict",
    "acquit/convict",
    "grant/revoke withhold",
    "unite join/divide separate",
    "remember/forget forgot",
    "trust/distrust",
    "hope/fear",
    "protect/endanger",
    "credit/debit",
    "ascend/descend",
    "ascending/descending",
    "horizontal/vertical",
    "even/odd",
    "inclusive/exclusive",
    "mutable/immutable",
    "synchronous/asynchronous",
    "must shall/may might",
];
