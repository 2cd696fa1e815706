// SPDX-License-Identifier: GPL-2.0

//! Shows that the orderings are strong enough, and that a scenario fails if one of those below is
//! weakened.

use std::panic::catch_unwind;

/// Runs every execution of a scenario, each of which must be good.
fn good(scenario: fn()) {
    loom::model(scenario);
}

/// Checks that one execution of a scenario fails, with this complaint.
fn caught(scenario: fn(), complaint: &str) {
    let Err(why) = catch_unwind(|| loom::model(scenario)) else { panic!("the weakened ordering was not found") };
    let why = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref::<&str>().copied()).unwrap_or("");
    assert!(why.contains(complaint), "it failed for another reason: {why}");
}

mod shipped {
    use weak::shipped::world;

    #[test]
    fn the_last_reference_sees_all() {
        super::good(world::last_reference);
    }

    #[test]
    fn slots_are_written_before_ready() {
        super::good(world::slots_are_written_before_ready);
    }

    #[test]
    fn a_pair_is_whole() {
        super::good(world::a_pair_is_whole);
    }

    #[test]
    fn a_callback_reads_the_slots() {
        super::good(world::a_callback_reads_the_slots);
    }

    #[test]
    fn no_end_without_a_beginning() {
        super::good(world::no_end_without_a_beginning);
    }

    #[test]
    fn the_longest_stays() {
        super::good(world::the_longest_stays);
    }

    #[test]
    fn orphans_are_counted() {
        super::good(world::orphans_are_counted);
    }

    #[test]
    fn an_orphan_is_found() {
        super::good(world::an_orphan_is_found);
        super::caught(world::an_orphan_is_missed, "an orphan was missed");
    }
}

mod weakened {
    use super::caught;

    /// loom's, of what is read unordered; and the scenario's own, of atomics.
    const RACE: &str = "Causality violation";
    const HALF: &str = "half a pair";

    #[test]
    fn arc_drop_relaxed() {
        caught(weak::arc_drop_relaxed::world::last_reference, RACE);
    }

    #[test]
    fn arc_without_fence() {
        caught(weak::arc_without_fence::world::last_reference, RACE);
    }

    #[test]
    fn publish_relaxed() {
        caught(weak::publish_relaxed::world::slots_are_written_before_ready, RACE);
    }

    #[test]
    fn seen_relaxed() {
        caught(weak::seen_relaxed::world::slots_are_written_before_ready, RACE);
        caught(weak::seen_relaxed::world::a_callback_reads_the_slots, RACE);
    }

    #[test]
    fn ends_read_relaxed() {
        caught(weak::ends_read_relaxed::world::no_end_without_a_beginning, "an end without a beginning");
    }

    #[test]
    fn raised_in_two_steps() {
        caught(weak::raised_in_two_steps::world::the_longest_stays, "a longer one was forgotten");
    }

    #[test]
    fn orphans_in_two_steps() {
        caught(weak::orphans_in_two_steps::world::orphans_are_counted, "an orphan is counted wrong");
    }

    #[test]
    fn pair_written_relaxed() {
        caught(weak::pair_written_relaxed::world::a_pair_is_whole, HALF);
    }

    #[test]
    fn pair_read_relaxed() {
        caught(weak::pair_read_relaxed::world::a_pair_is_whole, HALF);
    }
}
