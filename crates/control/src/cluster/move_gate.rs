//! When a task may move: not for every change of a link, and less and less often where moving does
//! not last.

use std::time::{Duration, Instant};

/// How patient a gate is.
#[derive(Debug)]
pub(super) struct GateLimits {
    /// How long a plan must have been the better one.
    confirmation: Duration,
    /// How long what was changed stays so at least.
    shortest_stay: Duration,
    /// How long it stays so at most where it has changed often.
    longest_stay: Duration,
    /// Where nothing has changed for so long, the last change did last.
    calm: Duration,
    /// Share of a latency that has to be gained, and the least that is worth it.
    least_gain: f64,
    least_gain_seconds: f64,
    /// What has happened when something has changed.
    what: &'static str,
}

/// For tasks that go to other nodes.
pub(super) const MOVES: GateLimits = GateLimits {
    confirmation: Duration::from_millis(400),
    shortest_stay: Duration::from_secs(2),
    longest_stay: Duration::from_secs(60),
    calm: Duration::from_secs(30),
    least_gain: 0.05,
    least_gain_seconds: 0.0005,
    what: "it moved",
};

/// For thresholds, which move nothing.
pub(super) const THRESHOLDS: GateLimits = GateLimits {
    confirmation: Duration::from_millis(200),
    shortest_stay: Duration::from_secs(1),
    longest_stay: Duration::from_secs(30),
    calm: Duration::from_secs(10),
    least_gain: 0.02,
    least_gain_seconds: 0.0,
    what: "thresholds were chosen",
};

/// Decides for one task.
#[derive(Debug)]
pub(super) struct MoveGate {
    limits: &'static GateLimits,
    moved: Option<Instant>,
    stay: Duration,
    /// Where it would go, and since when.
    wish: Option<(Vec<usize>, Instant)>,
    /// Until when nothing is tried, as moving failed; and for how long it was waited.
    paused: Option<(Instant, Duration)>,
}

/// What a move would bring a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveGain {
    /// What a request takes today; none where the plan of today can't stay.
    pub(super) current_seconds: Option<f64>,
    /// What it would take.
    pub(super) planned_seconds: f64,
    /// What fetching costs each request of the next minute.
    pub(super) moving_seconds: f64,
}

/// What becomes of a wish to move.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// It moves.
    Move,
    /// Not now, and why.
    Stay(String),
}

impl MoveGate {
    /// One that nothing has passed yet.
    pub(super) fn new(limits: &'static GateLimits) -> Self {
        Self { limits, moved: None, stay: Duration::ZERO, wish: None, paused: None }
    }

    /// Whether a task may go to these nodes.
    pub(super) fn judge(&mut self, target: &[usize], gain: &MoveGain, now: Instant) -> Verdict {
        if self.paused.is_some_and(|(until, _)| now < until) {
            return Verdict::Stay("it could not be moved a moment ago".to_owned());
        }
        let Some(current) = gain.current_seconds else {
            return Verdict::Move;
        };
        let gained = current - gain.planned_seconds;
        let limits = self.limits;
        let needed = (limits.least_gain * current).max(limits.least_gain_seconds);
        let needed = needed + gain.moving_seconds;
        if gained < needed {
            self.wish = None;
            return Verdict::Stay(format!(
                "it would gain {:.1} ms of {:.1}, and {:.1} are needed for it to pay",
                gained * 1e3,
                current * 1e3,
                needed * 1e3
            ));
        }
        let since = match &self.wish {
            Some((known, since)) if known == target => *since,
            _ => {
                self.wish = Some((target.to_vec(), now));
                now
            }
        };
        let stayed = self.moved.map(|moved| now.saturating_duration_since(moved));
        if let Some(stayed) = stayed.filter(|stayed| *stayed < self.stay) {
            return Verdict::Stay(format!(
                "{} {:.1} s ago, and that stays for {:.0} s as it was often",
                limits.what,
                stayed.as_secs_f64(),
                self.stay.as_secs_f64()
            ));
        }
        if now.saturating_duration_since(since) < limits.confirmation {
            return Verdict::Stay("whether it lasts is looked at for a moment".to_owned());
        }
        Verdict::Move
    }

    /// Nothing better is known.
    pub(super) fn forget_wish(&mut self) {
        self.wish = None;
    }

    /// It could not be moved: it is tried again later and later.
    pub(super) fn note_failure(&mut self, now: Instant) {
        let pause = self.paused.map_or(self.limits.shortest_stay, |(_, pause)| {
            (2 * pause).min(self.limits.longest_stay)
        });
        self.paused = Some((now + pause, pause));
        self.wish = None;
    }

    /// It has moved.
    pub(super) fn note_move(&mut self, now: Instant) {
        let limits = self.limits;
        let is_calm =
            self.moved.is_none_or(|moved| now.saturating_duration_since(moved) >= limits.calm);
        let longer = (2 * self.stay).min(limits.longest_stay);
        self.stay = if is_calm { limits.shortest_stay } else { longer };
        self.moved = Some(now);
        (self.wish, self.paused) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAIN: MoveGain =
        MoveGain { current_seconds: Some(0.4), planned_seconds: 0.2, moving_seconds: 0.0 };

    #[test]
    fn a_task_moves_when_it_pays_and_lasts() {
        let start = Instant::now();
        let mut gate = MoveGate::new(&MOVES);
        let little = MoveGain { planned_seconds: 0.39, ..GAIN };
        assert!(matches!(gate.judge(&[1], &little, start), Verdict::Stay(_)));
        let dear = MoveGain { moving_seconds: 0.3, ..GAIN };
        assert!(matches!(gate.judge(&[1], &dear, start), Verdict::Stay(_)));
        assert!(matches!(gate.judge(&[1], &GAIN, start), Verdict::Stay(_)));
        let later = start + Duration::from_millis(500);
        assert!(matches!(gate.judge(&[2], &GAIN, later), Verdict::Stay(_)));
        assert_eq!(gate.judge(&[2], &GAIN, later + MOVES.confirmation), Verdict::Move);
        let cut = MoveGain { current_seconds: None, ..GAIN };
        gate.note_move(later);
        assert_eq!(gate.judge(&[1], &cut, later), Verdict::Move);
        // What fails is not tried all the time, whatever it is for.
        gate.note_failure(later);
        assert!(matches!(gate.judge(&[1], &cut, later), Verdict::Stay(_)));
        assert_eq!(gate.judge(&[1], &cut, later + MOVES.shortest_stay), Verdict::Move);
        gate.note_failure(later);
        let second = gate.judge(&[1], &cut, later + MOVES.shortest_stay);
        assert!(matches!(second, Verdict::Stay(_)));
    }

    #[test]
    fn a_link_that_flaps_for_a_minute_moves_a_task_at_most_six_times() {
        let start = Instant::now();
        let mut gate = MoveGate::new(&MOVES);
        let (mut at, mut moves) = (0, 0);
        for tick in 0..240 {
            let now = start + Duration::from_millis(250) * tick;
            // The link is bad in every other second.
            let best = (tick as usize / 4) % 2;
            if best != at && gate.judge(&[best], &GAIN, now) == Verdict::Move {
                gate.note_move(now);
                (at, moves) = (best, moves + 1);
            } else if best == at {
                gate.forget_wish();
            }
        }
        assert!((1..=6).contains(&moves), "{moves}");
    }
}
