//! The orders, their sequence and the lost replies. All are drawn from the seed, so each run has the same crowd.

/// One of this many users clicks twice.
const USERS_PER_DOUBLE_CLICK: u64 = 10;

/// Of a hundred orders, this many lose the reply and are sent again.
const LOST_PERCENT: u64 = 5;

/// One click: one item for one user.
pub(crate) struct Order {
    /// It stays the same when the order is sent again. The second click of a double click has another id.
    pub(crate) id: String,
    pub(crate) user: String,
    /// Whether the connection fails between the request and the reply.
    pub(crate) loses_reply: bool,
}

/// All orders, in their sequence. The two clicks of a double click are neighbors.
pub(crate) fn orders(buyers: u64, seed: u64) -> Vec<Order> {
    let mut random = Random(seed);
    let mut users: Vec<_> = (0..buyers).collect();
    random.shuffle(&mut users);
    let presses = users.into_iter().flat_map(|user| {
        let times = if user % USERS_PER_DOUBLE_CLICK == 0 {
            2
        } else {
            1
        };
        (1..=times).map(move |press| (user, press))
    });
    presses
        .map(|(user, press)| Order {
            id: format!("user:{user}/{press}"),
            user: format!("user:{user}"),
            loses_reply: random.below(100) < LOST_PERCENT,
        })
        .collect()
}

/// The user of an order.
pub(crate) fn user_of(order_id: &str) -> Option<&str> {
    order_id.split_once('/').map(|(user, _press)| user)
}

/// Splitmix64: pseudo-random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`. Small numbers are slightly more likely, which does not matter here.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for left in (2..=items.len()).rev() {
            let chosen = self.below(left as u64) as usize;
            items.swap(left - 1, chosen);
        }
    }
}
