//! The orderings are enough; and where one of those below is weakened, a scenario fails.

use std::panic::catch_unwind;

/// Every execution of it is good.
fn good(scenario: fn()) {
    loom::model(scenario);
}

/// One of its executions is not.
fn caught(scenario: fn()) {
    let Err(why) = catch_unwind(|| loom::model(scenario)) else { panic!("the weakened ordering was not found") };
    let why = why.downcast_ref::<String>().map_or("", String::as_str);
    assert!(why.contains("Causality violation"), "it failed for another reason: {why}");
}

mod shipped {
    use weak::shipped::world;

    #[test]
    fn the_last_reference_sees_all() {
        super::good(world::last_reference);
    }

    #[test]
    fn unload_waits_for_the_callback() {
        super::good(world::unload_waits_for_the_callback);
    }

    #[test]
    fn a_callback_is_counted_before_it_reads() {
        super::good(world::counted_before_it_reads);
    }

    #[test]
    fn armed_is_seen_by_whoever_unloads() {
        super::good(world::armed_is_seen);
    }

    #[test]
    fn slots_are_written_before_ready() {
        super::good(world::slots_are_written_before_ready);
    }

    #[test]
    fn free_callback_against_deregistration() {
        super::good(world::revoke_against_unpin);
    }
}

mod weakened {
    use super::caught;

    #[test]
    fn arc_drop_relaxed() {
        caught(weak::arc_drop_relaxed::world::last_reference);
    }

    #[test]
    fn arc_without_fence() {
        caught(weak::arc_without_fence::world::last_reference);
    }

    #[test]
    fn leave_relaxed() {
        caught(weak::leave_relaxed::world::unload_waits_for_the_callback);
    }

    #[test]
    fn wait_relaxed() {
        caught(weak::wait_relaxed::world::unload_waits_for_the_callback);
    }

    #[test]
    fn enter_relaxed() {
        caught(weak::enter_relaxed::world::counted_before_it_reads);
    }

    #[test]
    fn publish_relaxed() {
        caught(weak::publish_relaxed::world::slots_are_written_before_ready);
    }

    #[test]
    fn seen_relaxed() {
        caught(weak::seen_relaxed::world::slots_are_written_before_ready);
    }

    #[test]
    fn full_without_barriers() {
        caught(weak::full_without_barriers::world::counted_before_it_reads);
    }
}
