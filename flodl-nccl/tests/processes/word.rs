//! What the coordinator and a rank's process say to each other: one line each, behind a sign that nothing else begins with.

use flodl_nccl::UniqueId;
use flodl_nccl::session::{Generation, Member};

/// What a line of theirs begins with.
pub const SIGN: char = '@';

/// From the coordinator to a rank.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Make an id.
    Id(Generation),
    /// Form it.
    Form(Generation, UniqueId, Vec<Member>),
    /// Train so many batches.
    Train(u32),
    /// Average: the round, and whose replica all take.
    Sync(u64, Option<u32>),
    /// The round counts.
    Done(u64),
    /// That one is dead.
    Dead(Member),
    /// Close it in order.
    Close(Generation),
    /// Die at once.
    Die,
    /// End in order.
    End,
}

/// From a rank to the coordinator.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// An id, or none.
    Id(Generation, Option<UniqueId>),
    /// It has begun.
    Begun(Generation),
    /// It is ready.
    Formed(Generation),
    /// It will not be; or it is lost, in a round or between two.
    Lost(Generation, String),
    /// The round is done: the result's digest and its first number.
    Acked(u64, u64, f32),
    /// It has ended in order.
    Closed(Generation),
}

fn hex(id: &UniqueId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<UniqueId> {
    let bytes: Vec<u8> = (0..UniqueId::BYTES)
        .map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok())
        .collect::<Option<_>>()?;
    Some(UniqueId::from_bytes(bytes.try_into().ok()?))
}

fn member(text: &str) -> Option<Member> {
    let (rank, incarnation) = text.split_once('.')?;
    Some(Member { rank: rank.parse().ok()?, incarnation: incarnation.parse().ok()? })
}

fn shown(member: &Member) -> String {
    format!("{}.{}", member.rank, member.incarnation)
}

impl Order {
    /// Its line.
    pub fn line(&self) -> String {
        let words = match self {
            Self::Id(of) => format!("id {}", of.0),
            Self::Form(of, id, members) => {
                let members: Vec<String> = members.iter().map(shown).collect();
                format!("form {} {} {}", of.0, hex(id), members.join(" "))
            }
            Self::Train(batches) => format!("train {batches}"),
            Self::Sync(round, root) => format!("sync {round} {}", root.map_or("-".to_owned(), |root| root.to_string())),
            Self::Done(round) => format!("done {round}"),
            Self::Dead(who) => format!("dead {}", shown(who)),
            Self::Close(of) => format!("close {}", of.0),
            Self::Die => "die".to_owned(),
            Self::End => "end".to_owned(),
        };
        format!("{SIGN}{words}")
    }

    /// The order of a line.
    pub fn of(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.strip_prefix(SIGN)?.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let generation = || number(1).map(Generation);
        Some(match *words.first()? {
            "id" => Self::Id(generation()?),
            "form" => {
                let members = words[3..].iter().map(|text| member(text)).collect::<Option<_>>()?;
                Self::Form(generation()?, unhex(words[2])?, members)
            }
            "train" => Self::Train(words.get(1)?.parse().ok()?),
            "sync" => Self::Sync(number(1)?, words.get(2)?.parse().ok()),
            "done" => Self::Done(number(1)?),
            "dead" => Self::Dead(member(words.get(1)?)?),
            "close" => Self::Close(generation()?),
            "die" => Self::Die,
            "end" => Self::End,
            _ => return None,
        })
    }
}

impl Said {
    /// Its line.
    pub fn line(&self) -> String {
        let words = match self {
            Self::Id(of, id) => format!("id {} {}", of.0, id.as_ref().map_or("-".to_owned(), hex)),
            Self::Begun(of) => format!("begun {}", of.0),
            Self::Formed(of) => format!("formed {}", of.0),
            Self::Lost(of, why) => format!("lost {} {why}", of.0),
            Self::Acked(round, digest, first) => format!("acked {round} {digest} {}", first.to_bits()),
            Self::Closed(of) => format!("closed {}", of.0),
        };
        format!("{SIGN}{words}")
    }

    /// The word of a line.
    pub fn of(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.strip_prefix(SIGN)?.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let generation = || number(1).map(Generation);
        Some(match *words.first()? {
            "id" => Self::Id(generation()?, words.get(2).and_then(|text| unhex(text))),
            "begun" => Self::Begun(generation()?),
            "formed" => Self::Formed(generation()?),
            "lost" => Self::Lost(generation()?, words[2..].join(" ")),
            "acked" => Self::Acked(number(1)?, number(2)?, f32::from_bits(words.get(3)?.parse().ok()?)),
            "closed" => Self::Closed(generation()?),
            _ => return None,
        })
    }
}

#[test]
fn words_are_read_as_they_are_written() {
    let (of, id) = (Generation(7), UniqueId::from_bytes(std::array::from_fn(|at| at as u8)));
    let who = Member { rank: 3, incarnation: 2 };
    let orders = [
        Order::Id(of),
        Order::Form(of, id, vec![who, who]),
        Order::Train(4),
        Order::Sync(1, None),
        Order::Sync(2, Some(0)),
        Order::Done(9),
        Order::Dead(who),
        Order::Close(of),
        Order::Die,
        Order::End,
    ];
    for order in orders {
        assert_eq!(Order::of(&order.line()), Some(order));
    }
    let said = [
        Said::Id(of, Some(id)),
        Said::Id(of, None),
        Said::Begun(of),
        Said::Formed(of),
        Said::Lost(of, "a peer died".to_owned()),
        Said::Acked(3, u64::MAX, -0.5),
        Said::Closed(of),
    ];
    for said in said {
        assert_eq!(Said::of(&said.line()), Some(said));
    }
    assert_eq!(Said::of("running 1 test"), None);
}
