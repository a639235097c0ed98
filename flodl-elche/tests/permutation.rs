//! Golden vectors: the order of an epoch is the same on every process and in every version, because a resumed run goes
//! on in the order that the interrupted one began.

use flodl_elche::Permutation;

/// Seed, epoch, length, and the first samples, as an independent implementation of the documented network gave them.
const GOLDEN: [(u64, u64, u64, [u64; 8]); 8] = [
    (0, 0, 8, [7, 1, 4, 5, 2, 3, 0, 6]),
    (42, 0, 8000, [6338, 6373, 7642, 1877, 1996, 5826, 5704, 2941]),
    (42, 1, 8000, [507, 5302, 7272, 6646, 5031, 6667, 5626, 385]),
    (42, 2, 8000, [1419, 376, 2386, 1508, 76, 2688, 3469, 4724]),
    (43, 0, 8000, [1324, 2358, 1580, 4507, 4433, 7722, 1477, 2564]),
    (7, 3, 1281167, [67076, 800998, 431110, 153432, 597088, 462514, 446714, 451453]),
    (
        u64::MAX,
        u64::MAX,
        1 << 40,
        [
            359273905562,
            501882794910,
            98776081868,
            706244394307,
            811436180598,
            598417333591,
            147235766576,
            1005418028315,
        ],
    ),
    (
        1,
        1,
        u64::MAX,
        [
            6145122988943393963,
            6686505953855603770,
            12706134135235511492,
            15340112698913183876,
            13722496336662041457,
            6675323010172508621,
            7953068796756380065,
            12594390091732853053,
        ],
    ),
];

#[test]
fn orders_never_change() {
    for (seed, epoch, len, first) in GOLDEN {
        let order = Permutation::new(seed, epoch, len);
        let found: Vec<u64> = (0..8).map(|position| order.at(position)).collect();
        assert_eq!(found, first, "seed {seed}, epoch {epoch}, {len} samples");
    }
}
