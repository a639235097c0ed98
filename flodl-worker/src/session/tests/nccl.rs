//! Rounds over NCCL, and the communicators under them.

use super::*;

const ONE: NcclSession = NcclSession(1);
const TWO: NcclSession = NcclSession(2);

fn prepare(round: u64, part: Part) -> Control {
    let Control::RequestParams { round, roster } = request(round, part) else { unreachable!() };
    Control::PrepareSync { round, roster }
}

fn new(session: NcclSession, ranks: &[u32]) -> Control {
    let members = ranks.iter().map(|&rank| (Rank(rank), Incarnation(1))).collect();
    Control::NewNcclSession(Box::new(NewSession { session, id: NcclId([7; NcclId::BYTES]), members }))
}

fn sync_now(round: u64, session: NcclSession) -> Control {
    Control::SyncNow { round: Round(round), session, root: None }
}

fn collected(session: NcclSession, round: u64) -> Input {
    let Input::ResultWhole(result) = whole(Round(round)) else { unreachable!() };
    Input::Collected { session, result }
}

impl Driver {
    fn stands(&mut self, session: NcclSession, standing: Standing) {
        self.give(Input::NcclStands { session, standing });
    }

    /// In round 1, with 5 batches trained, on the communicator of ranks 0 and 2.
    fn averaging() -> Driver {
        let mut driver = Driver::formed();
        driver.order(Control::Window(window(1, &[range(0, 50)])));
        driver.order(prepare(1, Part::Contribute));
        driver.order(new(ONE, &[0, 2]));
        driver.stands(ONE, Standing::Begun);
        driver.stands(ONE, Standing::Ready);
        driver.order(sync_now(1, ONE));
        let ending = driver.log.split_off(driver.log.len() - 6);
        let expect = [
            "prepare round 1",
            "snapshot of 5 steps, 50 samples",
            "form NCCL session 1 at place 1",
            "NCCL session 1: Begun",
            "NCCL session 1: Ready",
            "collective of round 1 on NCCL session 1, root None, mass 5, again false",
        ];
        assert_eq!(ending, expect);
        driver.log.clear();
        driver
    }
}

#[test]
fn a_round_is_copied_averaged_in_place_answered_and_kept() {
    let mut driver = Driver::averaging();
    driver.give(collected(ONE, 1));
    driver.order(committed(1, 1));
    let [ack, rest @ ..] = &driver.log[..] else { panic!("nothing") };
    assert!(
        ack.starts_with("ack Whole(Received { digest: 99, divergence: Some(0.5)") && ack.ends_with("on NCCL session 1")
    );
    assert_eq!(rest, ["apply, reset false"]);
    assert_eq!((driver.session.version(), driver.session.ledger.steps), (Some(Version(1)), 0));
}

#[test]
fn a_round_whose_communicator_is_lost_is_issued_again_from_the_copy() {
    let mut driver = Driver::averaging();
    driver.order(Control::DeclareDead { rank: Rank(0), incarnation: Incarnation(1), why: Reason::new("x", "x") });
    driver.stands(ONE, Standing::Lost { why: "a peer died".to_owned() });
    driver.order(sync_now(1, ONE));
    driver.order(Control::RequestNewNcclId { session: TWO });
    driver.give(Input::NcclIdMade { session: TWO, outcome: Err("none".to_owned()) });
    driver.order(new(TWO, &[1, 2]));
    // What the former one has to say comes too late.
    driver.give(collected(ONE, 1));
    driver.stands(ONE, Standing::Ready);
    driver.order(sync_now(1, TWO));
    driver.stands(TWO, Standing::Ready);
    driver.order(sync_now(1, TWO));
    let expect = [
        "incarnation 1 of rank 0 died",
        "NCCL session 1: Lost { why: \"a peer died\" }",
        "make an id for NCCL session 2",
        "NewNcclIdGenerated { session: NcclSession(2), outcome: Err(\"none\") }",
        "form NCCL session 2 at place 1",
        "NCCL session 2: Ready",
        "collective of round 1 on NCCL session 2, root None, mass 5, again true",
    ];
    assert_eq!(driver.log, expect);
}

#[test]
fn who_has_the_result_does_the_round_again_where_others_do_not() {
    let mut driver = Driver::averaging();
    driver.give(collected(ONE, 1));
    driver.order(new(TWO, &[2, 3]));
    driver.stands(TWO, Standing::Ready);
    driver.log.clear();
    driver.order(Control::SyncNow { round: Round(1), session: TWO, root: Some(1) });
    assert_eq!(driver.log, ["collective of round 1 on NCCL session 2, root Some(1), mass 5, again true"]);
    // The round ends without it: its first result does not count either.
    driver.log.clear();
    driver.order(committed(1, 1));
    assert_eq!(driver.log, ["abort NCCL session 2", "forget round 1"]);
    assert_eq!(driver.session.version(), None, "it takes the consensus by the next round");
}

#[test]
fn a_replica_that_is_not_finite_adds_nothing_and_takes_the_average() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    driver.finite = false;
    driver.order(prepare(1, Part::Contribute));
    assert!(driver.log.contains(&"snapshot of 0 steps, 20 samples".to_owned()), "{:?}", driver.log);
    driver.order(new(ONE, &[0, 2]));
    driver.stands(ONE, Standing::Ready);
    driver.order(sync_now(1, ONE));
    driver.give(collected(ONE, 1));
    driver.order(committed(1, 1));
    assert_eq!(driver.log.last().map(String::as_str), Some("apply, reset true"));
}

#[test]
fn a_round_without_a_result_leaves_the_replica_and_its_steps() {
    for is_answered in [false, true] {
        let mut driver = Driver::averaging();
        if is_answered {
            driver.give(collected(ONE, 1));
        }
        driver.order(nothing(1));
        assert_eq!(driver.log.last().map(String::as_str), Some("forget round 1"));
        assert_eq!((driver.session.version(), driver.session.ledger.steps), (Some(Version(0)), 5));
    }
}

#[test]
fn who_is_no_member_has_nothing_to_do_with_a_communicator() {
    let mut driver = Driver::formed();
    driver.order(new(ONE, &[0, 1]));
    driver.order(sync_now(1, ONE));
    driver.order(Control::DeclareDead { rank: Rank(0), incarnation: Incarnation(1), why: Reason::new("x", "x") });
    assert_eq!(driver.log, [""; 0]);
    // An older one than it has.
    driver.order(new(TWO, &[0, 2]));
    driver.order(new(ONE, &[0, 2]));
    assert_eq!(driver.log, ["form NCCL session 2 at place 1"]);
}

#[test]
fn a_root_that_is_no_member_is_refused() {
    let mut driver = Driver::formed();
    driver.order(prepare(1, Part::Contribute));
    driver.order(new(ONE, &[0, 2]));
    driver.stands(ONE, Standing::Ready);
    driver.order(Control::SyncNow { round: Round(1), session: ONE, root: Some(2) });
    assert!(
        driver.failure().contains("round 1 takes the replica at place 2 of a communicator of 2"),
        "{}",
        driver.failure()
    );
}
